"""One HTML file that needs no network: the data as JSON, the plotting library, and a little script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from fedshed._utils.figure_style import PALETTE, Look, look
from fedshed._utils.files import write_atomically
from fedshed._utils.names import printable, printable_lines
from fedshed.report.downsample import TARGETS, thinned
from fedshed.report.model import Problem, Report, Run
from fedshed.solve.trace import Row

COLUMNS = (
    "iteration", "rounds", "exchanges", "uplink_bytes", "downlink_bytes", "uplink_vectors", "hessians",
    "seconds", "gap", "grad_norm", "eta", "q_max", "renewed",
)  # fmt: skip
SCRIPTS = (
    "base.js", "looks.js", "plot.js", "scales.js", "curves.js", "curve_words.js", "table.js", "times.js",
    "traffic.js", "agents.js", "spectrum.js", "fit.js", "evaluation.js", "print.js", "main.js",
)  # fmt: skip


def write(path: str | Path, report: Report) -> Path:
    """Write the report to one self-contained file."""
    return write_atomically(path, page(report).encode())


def page(report: Report, live: dict[str, Any] | None = None) -> str:
    """The report as HTML; `live` is what the script needs to follow a run that goes on."""
    scripts = (*SCRIPTS[:-1], "form.js", "live.js", SCRIPTS[-1]) if live else SCRIPTS
    parts = {
        "title": html.escape(printable(report.title)),
        "connect": "'self'" if live else "'none'",
        "style": _asset("report.css"),
        "plotly": _asset("plotly-cartesian.min.js", "vendor"),
        "data": embedded(payload(report) | {"live": live}),
        "script": "\n".join(map(_asset, scripts)),
    }
    text = _asset("page.html")
    before, *rest = text.split("{{")  # one pass: what is filled in is not searched again
    filled = [parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest)]
    return before + "".join(filled)


def payload(report: Report) -> dict[str, Any]:
    """The data of a page: traces by column, thinned, with the look of each algorithm."""
    return {
        "title": report.title,
        "targets": TARGETS,
        "problems": [_problem(problem) for problem in report.problems or (Problem("", (), 1),)],
        "fit": report.fit,
        "rerun": report.rerun,
        "evaluation": _evaluation(report),
    }


def _evaluation(report: Report) -> dict[str, Any] | None:
    """The curves and the text of an evaluation."""
    found = report.evaluation
    if found is None:
        return None
    return {"text": found.summary(), "roc": found.roc, "calibration": found.calibration}


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element: no tag and no comment can begin or end in it."""
    plain = msgspec.to_builtins(value, enc_hook=lambda scalar: scalar.item())  # NumPy's
    text = msgspec.json.encode(_shown(plain)).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _shown(value: Any) -> Any:
    """The same data with every name and sentence as it may be shown."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {_shown(key): _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "title": problem.title,
        "count": problem.count,
        "agents": problem.agents,
        "times": problem.times,
        "gap": problem.gap,
        "runs": [_run(run, look) for run, look in zip(problem.runs, distinct(problem.runs), strict=True)],
    }


def distinct(runs: Sequence[Run]) -> list[Look]:
    """Each algorithm's own look; one that is taken already is replaced by the first that is free."""
    looks: list[Look] = []
    for run in runs:
        own, free = look(run.name), (Look(colour, "8", dash) for dash in _DASHES for colour in PALETTE)
        looks.append(next((one for one in (own, *free) if one not in looks), own))
    return looks


def _run(run: Run, look: Look) -> dict[str, Any]:
    several = [run.rows, *run.repeats] if run.repeats else []
    return {
        "name": run.name,
        "look": _words(look),
        "rows": len(run.rows),
        "columns": _columns(run.rows),
        "repeats": [_columns(rows) for rows in several],
        "ended": run.ended,
        "converged": run.converged,
        "pairs": run.pairs,
        "budget": run.budget,
        "spectra": run.spectra,
        "traffic": run.traffic,
    }


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """A trace by column, thinned."""
    shown = thinned(rows)
    return {name: [getattr(row, name) for row in shown] for name in COLUMNS}


_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
_SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "<": "triangle-left",
    ">": "triangle-right", "p": "pentagon", "*": "star", "D": "diamond", "d": "diamond-tall", "X": "x",
    "P": "cross", "H": "hexagon2", "+": "cross-thin-open", "x": "x-thin-open", "1": "y-down-open",
    "2": "y-up-open", "3": "y-left-open", "4": "y-right-open", "8": "octagon", "h": "hexagon",
}  # fmt: skip


def _words(look: Look) -> dict[str, str]:
    """A look of the figures in the words of the page's library."""
    symbol = _SYMBOLS[look.marker]
    hollow = "-open" if look.hollow and not symbol.endswith("-open") else ""
    return {"color": look.color, "dash": _DASHES[look.line], "symbol": symbol + hollow}


@cache
def _asset(name: str, folder: str = "assets") -> str:
    return files("fedshed.report").joinpath(folder, name).read_text(encoding="utf-8")
