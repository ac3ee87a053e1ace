"""What was measured for a claim: its ratios in a line, and a table of all numbers at four gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedshed._utils.mathematics import tex
from fedshed.experiments.claims import Claim, Contrast, Evidence, Test, place_of
from fedshed.experiments.plan import load
from fedshed.experiments.repeats import GAPS, WORDS, Amount, middle
from fedshed.experiments.verdicts import Case, ratio_in_words, tally

DATA = {
    "fashion-mnist": "Fashion-MNIST", "emnist-digits": "EMNIST", "mnist": "MNIST", "msd": "Songs",
    "news": "News",
}  # fmt: skip
PARTITIONS = {"iid": "i.i.d.", "two-class": "non-i.i.d.", "one-label": "non-i.i.d."}
FEW = 4  # ratios that are all said in the line


def in_a_line(cases: Sequence[Case]) -> str:
    """The ratios: all of a few; of many how many are as said, their range, and those that are not."""
    if len(cases) <= FEW:
        return _listed(cases)
    counts = tally(cases)
    medians = [middle(case.of).over(middle(case.over)) for case in cases]
    known = [one.least for one in medians if one.known]
    which = "they" if len(known) == len(cases) else "those that are known"
    extent = f"; {which} are {min(known):.3g} to {max(known):.3g}" if known else ""
    unmet = [case for case in cases if case.met is False]
    exceptions = f"; not: {_listed(unmet)}" if 0 < len(unmet) <= FEW else ""
    open_cases = f"; {counts.open} are open" if counts.open else ""
    return f"{counts.met} of {len(cases)} ratios are as said{extent}{exceptions}{open_cases}"


def _listed(cases: Sequence[Case]) -> str:
    """Each name of a ratio once, with its values, their marks, and what tells them from each other."""
    places = _named([case.place for case in cases])
    several = len({case.count for case in cases}) > 1
    values: dict[str, list[str]] = {}
    for case in cases:
        kinds = [places[case.place], _word(case.count) if several else ""]
        where = ", ".join(kind for kind in kinds if kind)
        said = f"{case.ratio} {case.mark}{f' ({where})' if where else ''}"
        values.setdefault(case.name, []).append(said)
    return "; ".join(f"{name} = {', '.join(found)}" for name, found in values.items())


def _word(count: str) -> str:
    """What is counted."""
    name, _, rounds = count.partition("@")
    return f"gap after {rounds} rounds" if name == "gap" else WORDS.get(count, count)


def details(claim: Claim, evidence: Evidence) -> str:
    """For each place and count: what each run needed at four gaps, then the ratios that are judged."""
    names = _named(list(dict.fromkeys(place for place, _, _ in _wanted(claim))), all_parts=True)
    tables: dict[tuple[str, str], list[str]] = {}
    for place, count, run in _wanted(claim):
        rows = tables.setdefault((place, count), [])
        rows.append(_row(run, _at_gaps(evidence, place, count, run)))
        if count == "uplink_vectors" and evidence.uses_matrices(place, run):
            amounts = _at_gaps(evidence, place, "matrix_vectors", run)
            rows.append(_row(f"{run}, first Hessian as a matrix", amounts))
    for at_gaps in zip(*(evidence.cases(claim, gap) for gap in GAPS), strict=True):
        judged = at_gaps[-1]
        before = [case.ratio for case in at_gaps[:-1]] if _by_gap(judged.count) else []
        cells = [*before, f"{judged.ratio} {judged.mark}"]
        tables[judged.place, judged.count].append(_row(f"**{judged.name}**", cells))
    parts = [
        f"{names[place]}, {_word(count)}\n\n{_head(count)}\n" + "\n".join(rows)
        for (place, count), rows in tables.items()
    ]
    return "\n\n".join(parts)


def _by_gap(count: str) -> bool:
    """Whether a count depends on how small the gap has to be."""
    return count not in ("slope", "error") and not count.startswith("gap")


def _head(count: str) -> str:
    columns = [f"gap ${tex(gap)}$" for gap in GAPS] if _by_gap(count) else [_word(count)]
    return f"| | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|"


def _at_gaps(evidence: Evidence, place: str, count: str, run: str) -> list[str]:
    gaps = GAPS if _by_gap(count) or count == "matrix_vectors" else GAPS[-1:]
    return [shown(evidence.amounts(place, run, count, gap), count) for gap in gaps]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _wanted(claim: Claim) -> list[tuple[str, str, str]]:
    """Place, count and run of all that is measured, each once."""
    found = dict.fromkeys(one for test in claim.tests for one in _of_test(test))
    return sorted(found, key=lambda one: list(dict.fromkeys(each[:2] for each in found)).index(one[:2]))


def _of_test(test: Test) -> Iterator[tuple[str, str, str]]:
    for at, base in test.places:
        others = [other for run in test.of for other in test.others(run)]
        both = others if test.growth else []
        yield from ((at, test.count, run) for run in (*test.of, *both))
        yield from ((base, test.count, run) for run in (*others, *(test.of if test.growth else ())))


class _Parts(NamedTuple):
    """What tells a place from others."""

    data: str
    dealt: str
    target: str
    ridge: str


def _named(places: Sequence[str], all_parts: bool = False) -> dict[str, str]:
    """Each place by what tells it from the others, or by all of it."""
    parts = {place: _parts(place) for place in places}
    told = [k for k in range(4) if all_parts or len({one[k] for one in parts.values()}) > 1]
    return {place: ", ".join(one[k] for k in told if one[k]) for place, one in parts.items()}


def _parts(place: str) -> _Parts:
    figure, panel = place_of(place)
    problem = load(figure).panels[panel].problem
    dealt = "" if problem.dataset == "w8a" else PARTITIONS.get(problem.partition or "", "")
    target = f"class {problem.target}" if problem.target not in (None, 1) else ""
    return _Parts(DATA.get(problem.dataset, problem.dataset), dealt, target, rf"$\mu = {tex(problem.l2)}$")


def contrasted(contrast: Contrast, evidence: Evidence) -> str:
    """A row: what the paper says, and what was measured with each pre-processing."""
    ways = ((contrast.rescaled, contrast.rescaled_base), (contrast.uncentred, contrast.uncentred_base))
    cells = [_measured(contrast, evidence, at, base) for at, base in ways]
    return f"| {contrast.says} | {' | '.join(cells)} |"


def _measured(contrast: Contrast, evidence: Evidence, at: str, base: str) -> str:
    """What each run needed, or its ratio to another run or another place."""
    found = []
    for run in contrast.of:
        amounts = evidence.amounts(at, run, contrast.count)
        if base:
            said = ratio_in_words(middle(evidence.growth(at, base, run, contrast.count)))
        elif contrast.over:
            over = evidence.amounts(at, contrast.over, contrast.count)
            said = ratio_in_words(middle(amounts).over(middle(over)))
        else:
            said = shown(amounts, contrast.count)
        found.append(f"{run} {said}")
    return ", ".join(found)


def shown(amounts: Sequence[Amount], count: str) -> str:
    """The median with its range over the seeds; what is not known is said to be more."""
    center = middle(amounts)
    if count == "slope":
        return f"{center.least:.4f}"
    if count.startswith("gap"):
        return f"${tex(center.most)}$" if center.known else rf"$\le {tex(center.most)}$"
    ahead = "" if center.known else "> "
    return f"{ahead}{center.least:.0f}{_extent(amounts)}"


def _extent(amounts: Sequence[Amount]) -> str:
    """The least and the most over the seeds, where they differ."""
    least, most = min(one.least for one in amounts), max(one.least for one in amounts)
    open_end = "" if all(one.known for one in amounts) or not middle(amounts).known else "> "
    return f" ({least:.0f} to {open_end}{most:.0f})" if most > least else ""
