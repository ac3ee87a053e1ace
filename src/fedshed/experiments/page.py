"""docs/results.md: the paper's claims with what was measured, the thresholds that decide, and the figures."""

from __future__ import annotations

from pathlib import Path

from fedshed._utils.mathematics import plain
from fedshed.experiments import verdicts
from fedshed.experiments.claims import Claim, Evidence, claims
from fedshed.experiments.measured import measured
from fedshed.experiments.plan import load, names, read
from fedshed.experiments.provenance import stamp
from fedshed.experiments.reproduce import seeds_of

_HEAD = "| | claim | data here | measured | threshold that decided | verdict |\n|---|---|---|---|---|---|\n"


def page(folder: Path, figures: str, quick: bool = False) -> str:
    """The claims one by one, then the figures."""
    evidence, plans = Evidence(folder, quick), [load(name, quick) for name in names()]
    warning = "*Quick form, on small embedded data: these numbers are not the paper's.*\n\n" if quick else ""
    rows = "\n".join(_row(claim, evidence) for claim in claims())
    sections = "\n\n".join(_section(name, figures) for name in names() if load(name).kind != "table")
    parts = (
        f"{read('results.md').rstrip()}\n\n{warning}{stamp(seeds_of(plans)).sentence()}",
        f"## When a claim holds\n\n{verdicts.table()}",
        f"## The claims\n\n{_HEAD}{rows}",
        f"## The figures\n\n{sections}",
    )
    return "\n\n".join(parts) + "\n"


def _row(claim: Claim, evidence: Evidence) -> str:
    cases = evidence.cases(claim)
    cells = (
        load(claim.figure).paper, claim.says, claim.data, measured(claim, evidence, cases),
        verdicts.decided_by(cases), verdicts.verdict(cases),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _section(name: str, folder: str) -> str:
    """A figure with its title and its note."""
    plan = load(name)
    note = f"\n\n{plan.note}" if plan.note else ""
    return f"### {plan.paper}: {plan.title}\n\n![{plain(plan.title)}]({folder}/{name}.svg){note}"
