"""What was measured for a claim, in words: the numbers of each problem, and the ratios that are judged."""

from __future__ import annotations

from collections.abc import Sequence

from fedshed._utils.mathematics import tex
from fedshed.experiments.claims import Claim, Evidence, place_of
from fedshed.experiments.plan import load
from fedshed.experiments.repeats import WORDS, Amount, middle
from fedshed.experiments.verdicts import Case

DATA = {"fashion-mnist": "Fashion-MNIST", "mnist": "MNIST", "msd": "Songs", "news": "News"}
PARTITIONS = {"iid": "i.i.d.", "two-class": "non-i.i.d.", "one-label": "non-i.i.d."}
MET, UNMET = "✓", "✗"


def measured(claim: Claim, evidence: Evidence, cases: Sequence[Case]) -> str:
    """A line for each problem: what each run needed, then the ratios, each with whether it is enough."""
    wanted = _wanted(claim)
    lines = [
        name
        + "; ".join(
            f"{_numbers(evidence, place, count, runs)}{_ratios(place, count, cases)}"
            for count, runs in wanted[place].items()
        )
        for place, name in _named(list(wanted)).items()
    ]
    return "<br>".join(lines)


def _wanted(claim: Claim) -> dict[str, dict[str, list[str]]]:
    """The runs of each place by what is counted, each once."""
    found: dict[str, dict[str, list[str]]] = {}
    for test in claim.tests:
        for at, base in test.places:
            others = [other for run in test.of for other in test.others(run)]
            both = [*test.of, *others] if test.growth else []
            for place, runs in ((at, [*test.of, *both]), (base, [*others, *both])):
                known = found.setdefault(place, {}).setdefault(test.count, [])
                known.extend(dict.fromkeys(run for run in runs if run not in known))
    return found


def _named(places: Sequence[str]) -> dict[str, str]:
    """Each place by what tells it from the others; what all have in common is not said."""
    parts = {place: _parts(place) for place in places}
    told = [k for k in range(4) if len({one[k] for one in parts.values()}) > 1]
    names = {place: ", ".join(one[k] for k in told if one[k]) for place, one in parts.items()}
    return {place: f"*{name}*: " if name else "" for place, name in names.items()}


def _parts(place: str) -> tuple[str, str, str, str]:
    """The data, how they are dealt, the class and the ridge of a panel."""
    figure, panel = place_of(place)
    problem = load(figure).panels[panel].problem
    dealt = "" if problem.dataset == "w8a" else PARTITIONS.get(problem.partition or "", "")
    target = f"class {problem.target}" if problem.target not in (None, 1) else ""
    return DATA.get(problem.dataset, problem.dataset), dealt, target, rf"$\mu = {tex(problem.l2)}$"


def _numbers(evidence: Evidence, place: str, count: str, runs: Sequence[str]) -> str:
    """What each run needed at one place."""
    name, _, rounds = count.partition("@")
    before = f"gap after {rounds} rounds: " if name == "gap" else ""
    numbers = ", ".join(f"{run} {shown(evidence.amounts(place, run, count), count)}" for run in runs)
    return f"{before}{numbers}" + (f" {WORDS[count]}" if count in WORDS else "")


def _ratios(place: str, count: str, cases: Sequence[Case]) -> str:
    """The ratios of one place."""
    here = [case for case in cases if (case.place, case.count) == (place, count)]
    found = [f"{case.name} = {case.ratio} {MET if case.met else UNMET}" for case in here]
    return f" ({', '.join(found)})" if found else ""


def shown(amounts: Sequence[Amount], count: str) -> str:
    """The median with its range over the seeds; what is not known is said to be more."""
    center = middle(amounts).least
    if count == "slope":
        return f"{center:.4f}"
    if count.startswith("gap"):
        return f"${tex(center)}$"
    ahead = "" if middle(amounts).known else "> "
    return f"{ahead}{center:.0f}{_extent(amounts)}"


def _extent(amounts: Sequence[Amount]) -> str:
    """The least and the most over the seeds, where they differ."""
    least, most = min(one.least for one in amounts), max(one.least for one in amounts)
    open_end = "" if all(one.known for one in amounts) or not middle(amounts).known else "> "
    return f" ({least:.0f} to {open_end}{most:.0f})" if most > least else ""
