"""docs/results.md: the paper's claims with what was measured, and the figures.

The whole page comes from the runs of all experiments; one experiment changes only its own rows and figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedshed._utils.errors import ConfigError
from fedshed._utils.version import __version__
from fedshed.experiments.claims import JUDGES, Claim, Evidence, claims
from fedshed.experiments.plan import load, names, read
from fedshed.experiments.runs import code_hash

_TABLE = "| | claim | data here | measured | verdict |\n|---|---|---|---|---|\n"
_FIGURES = "\n## The figures\n\n"


def page(folder: Path, figures: str, quick: bool = False) -> str:
    """The claims one by one, then the figures."""
    evidence = Evidence(folder, quick)
    warning = "*Quick form, on small embedded data: these numbers are not the paper's.*\n" if quick else ""
    rows = [_row(claim, evidence) for claim in claims()]
    return _whole(f"{read('results.md')}\n{warning}\n", rows, (_section(name, figures) for name in names()))


def page_before(path: Path) -> str:
    """The page as it is, to be amended; refused before anything runs if it is none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if _TABLE not in text or _FIGURES not in text:
        raise ConfigError(f"{path} is no page of claims; fedshed reproduce all --results {path} writes one")
    return text


def amended(
    text: str, chosen: Sequence[str], folder: Path, figures: str, command: str, quick: bool = False
) -> str:
    """The page with the rows and figures of the chosen experiments measured now; all else stays as it is."""
    head, rest = text.split(_TABLE, 1)
    table, drawn = rest.split(_FIGURES, 1)
    evidence, before = Evidence(folder, quick), _by_start(table.splitlines())
    rows = [
        _row(claim, evidence) if claim.figure in chosen else before.get(_start(claim)) for claim in claims()
    ]
    sections = {one.splitlines()[0]: one for one in re.split(r"(?m)^(?=### )", drawn) if one.strip()}
    made = f"*Run by `{command}`, fedshed {__version__}, core {code_hash()}.*\n\n"
    found = (
        _section(name, figures) + made
        if name in chosen and load(name).kind != "table"
        else sections.get(_title(name))
        for name in names()
    )
    return _whole(head, [row for row in rows if row], (one for one in found if one))


def _whole(head: str, rows: Sequence[str], sections: Iterable[str]) -> str:
    parts = (one.rstrip() for one in sections if one)
    return head + _TABLE + "\n".join(rows) + "\n" + _FIGURES + "\n\n".join(parts) + "\n"


def _row(claim: Claim, evidence: Evidence) -> str:
    measured, verdict = JUDGES[claim.judge](evidence)
    return f"{_start(claim)} {claim.data} | {measured} | **{verdict}** |"


def _start(claim: Claim) -> str:
    """What tells a row from all others."""
    return f"| {load(claim.figure).paper} | {claim.says} |"


def _by_start(lines: Sequence[str]) -> dict[str, str]:
    return {_start(claim): line for claim in claims() for line in lines if line.startswith(_start(claim))}


def _title(name: str) -> str:
    return f"### {load(name).paper}: {load(name).title}"


def _section(name: str, folder: str) -> str:
    """A figure with its title and its note; a table is a page of its own."""
    plan = load(name)
    if plan.kind == "table":
        return ""
    note = f"{plan.note}\n\n" if plan.note else ""
    return f"{_title(name)}\n\n![{plan.title}]({folder}/{name}.svg)\n\n{note}"
