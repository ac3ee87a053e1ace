"""A page of survival curves: the figure, the summary, the table, and how to make it again; no script."""

from __future__ import annotations

import html
from base64 import b64encode
from importlib.resources import files
from pathlib import Path

from fedshed._utils.files import write_atomically
from fedshed._utils.names import printable, printable_lines
from fedshed.inference.survival_result import COLUMNS, SurvivalCurves
from fedshed.report.model import Rerun

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_ROWS = 2000  # in the page; the CSV file has them all


def write_survival(
    path: str | Path, found: SurvivalCurves, svg: bytes, rerun: Rerun, level: float = 0.95
) -> Path:
    """Write the page to one file that needs no network."""
    return write_atomically(path, survival_page(found, svg, rerun, level).encode())


def survival_page(found: SurvivalCurves, svg: bytes, rerun: Rerun, level: float = 0.95) -> str:
    """The page as HTML, with the figure inside it."""
    title = _safe(f"{found.time} to {found.event}: survival over {len(found.sites)} sites")
    style = files("fedshed.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
figure img {{ max-width: 100%; background: #ffffff; }}
</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
<section><h2>Curves</h2>
<figure><img alt="Survival curves with bands, and the numbers at risk" src="data:image/svg+xml;base64,{
        b64encode(svg).decode()
    }"></figure>
</section>
<section><h2>Summary</h2><pre tabindex="0">{
        html.escape(printable_lines(found.summary(level)))
    }</pre></section>
<section><h2>Table</h2>
<div class="scroll tall" tabindex="0" role="region" aria-label="Curves">{_table(found, level)}</div>
</section>
<section><h2>Make it again</h2>{_rerun(rerun)}</section>
</main>
</body>
</html>
"""


def _table(found: SurvivalCurves, level: float) -> str:
    rows = found.rows(level)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows[:MOST_ROWS]
    )
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in COLUMNS)
    more = f"<p>The first {MOST_ROWS:,} of {len(rows):,} rows; the CSV file has them all.</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" + more * (
        len(rows) > MOST_ROWS
    )


def _cell(value: str | float) -> str:
    return _safe(value) if isinstance(value, str) else f"{value:.4g}"


def _rerun(rerun: Rerun) -> str:
    facts = [*rerun.data.items(), *rerun.versions.items()]
    listed = "".join(f"<tr><td>{_safe(name)}</td><td>{_safe(value)}</td></tr>" for name, value in facts)
    return f"<pre>{_safe(rerun.command)}</pre><table><tbody>{listed}</tbody></table>"


def _safe(text: str) -> str:
    return html.escape(printable(text))
