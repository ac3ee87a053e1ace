"""docs/results.md: the paper's claims with what was measured, the figures, and all numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedshed._utils.mathematics import plain
from fedshed.experiments import verdicts
from fedshed.experiments.claims import Claim, Evidence, claims
from fedshed.experiments.measured import contrasted, details, in_a_line
from fedshed.experiments.plan import Figure, load, names, read
from fedshed.experiments.provenance import stamp
from fedshed.experiments.reproduce import seeds_of
from fedshed.experiments.verdicts import Case

_HEAD = "| no. | where | the paper says | measured | verdict |\n|---|---|---|---|---|\n"
_CONTRASTS = "| the paper | components rescaled to [0, 1] | uncentred PCA |\n|---|---|---|\n"


def page(folder: Path, figures: str, quick: bool = False) -> str:
    """The claims one by one, then the figures."""
    evidence, plans, stated = Evidence(folder, quick), [load(name, quick) for name in names()], claims()
    warning = "*Quick form, on small embedded data: these numbers are not the paper's.*\n\n" if quick else ""
    cases = [evidence.cases(claim) for claim in stated.claims]
    rows = "\n".join(_row(k, *one) for k, one in enumerate(zip(stated.claims, cases, strict=True), 1))
    contrasts = _CONTRASTS + "\n".join(contrasted(contrast, evidence) for contrast in stated.contrasts)
    folded = "\n\n".join(_folded(k, claim, evidence) for k, claim in enumerate(stated.claims, 1))
    drawn = [load(name) for name in names() if load(name).kind != "table"]
    paper, beside = (
        [_section(plan, figures) for plan in drawn if plan.beside is which] for which in (False, True)
    )
    parts = (
        f"{read('results.md').rstrip()}\n\n{warning}{stamp(seeds_of(plans)).sentence()}",
        f"## When a claim holds\n\n{read('verdicts.md').rstrip()}\n\n{verdicts.table('goal')}",
        f"## The claims\n\n{_counted(cases)}\n\n{_HEAD}{rows}",
        f"## The pre-processing of the images\n\n{read('preprocessing.md').rstrip()}\n\n{contrasts}",
        "## The paper's figures", *paper,
        "## Beside the paper's figures", *beside,
        f"## All numbers\n\n{read('numbers.md').rstrip()}\n\n{folded}",
    )  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _counted(cases: Sequence[Sequence[Case]]) -> str:
    """How many claims there are of each verdict."""
    found = Counter(verdicts.tally(one).verdict for one in cases)
    said = ", ".join(
        f"{found[one]} {one if found[one] == 1 else _PLURAL[one]}" for one in _PLURAL if found[one]
    )
    return f"Of {len(cases)} claims {said}."


_PLURAL = {
    "holds": "hold", "holds partly": "hold partly", "does not hold": "do not hold",
    "undecided": "are undecided",
}  # fmt: skip


def _row(number: int, claim: Claim, cases: Sequence[Case]) -> str:
    cells = (
        str(number), load(claim.figure).paper, claim.says, in_a_line(cases), verdicts.verdict(cases),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _folded(number: int, claim: Claim, evidence: Evidence) -> str:
    """All numbers of a claim, which a reader unfolds."""
    summary = f"<summary>{number}. {load(claim.figure).paper}</summary>"
    needed = f"{claim.says}. Needed: {verdicts.decided_by(evidence.cases(claim))}."
    return f'<details markdown="1">\n{summary}\n\n{needed}\n\n{details(claim, evidence)}\n\n</details>'


def _section(plan: Figure, folder: str) -> str:
    """A figure with its title and its note."""
    note = f"\n\n{plan.note}" if plan.note else ""
    title = f"{plan.paper}: {plan.title}" if plan.paper else plan.title
    return f"### {title}\n\n![{plain(plan.title)}]({folder}/{plan.name}.svg){note}"
