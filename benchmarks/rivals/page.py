"""What the runs say, as tables in Markdown: the settings chosen, and the two lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log
from statistics import median

from benchmarks.rivals.contenders import ALL, TUNED_ON, Contender
from benchmarks.rivals.problems import DRAWN, HELD_OUT, SMALL, TASKS
from benchmarks.rivals.runs import Cell, Outcome
from fedshed._utils.mathematics import tex

Known = Mapping[Cell, Outcome]


def score(outcomes: Iterable[Outcome]) -> float:
    """What a setting is chosen by: sum of log(exchanges x KB up); the gap where it was not reached."""
    return sum(
        log(max(one.exchanges * one.up, 1e-9)) if one.reached else 1e3 + log(max(one.gap, 1e-300))
        for one in outcomes
    )


def tuned(known: Known) -> dict[str, str]:
    """The setting of each contender with the best score on the problems for tuning."""
    chosen = {}
    for one in ALL:
        scores = {
            setting: score(known[Cell(problem, 0, one.name, setting)] for problem in TUNED_ON)
            for setting in one.grid
        }
        chosen[one.name] = min(scores, key=lambda setting: scores[setting])
    return chosen


def seeds_of(one: Contender, problem: str, known: Known, setting: str) -> tuple[int, ...]:
    """The seeds that a contender is run with on a problem.

    Those that send by far more have one seed, on the problems that are drawn and the small ones; those that
    were far away where they were tuned are run there and on the small ones.
    """
    seeds = TASKS[problem].seeds
    if one.thrice:
        return seeds
    arrived = all(known[Cell(where, 0, one.name, setting)].gap < 1e-6 for where in TUNED_ON)
    where = (*SMALL, *(DRAWN if arrived else TUNED_ON))
    return seeds[:1] if problem in where else ()


class Medians:
    """Medians over the seeds of a problem."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.reached = all(one.reached for one in outcomes)
        self.exchanges = median(one.exchanges for one in outcomes)
        self.up, self.down = median(one.up for one in outcomes), median(one.down for one in outcomes)
        self.both = median(one.both for one in outcomes)
        self.gap, self.cpu = max(one.gap for one in outcomes), median(one.cpu for one in outcomes)

    def __str__(self) -> str:
        if not self.reached:
            return f"gap ${tex(self.gap)}$ after {self.exchanges:.0f}" if self.gap < inf else "breaks down"
        return f"{self.exchanges:.0f} / {_kb(self.up)} / {_kb(self.down)}"


def _kb(size: float) -> str:
    return f"{size:.0f}" if size >= 100 else f"{size:.1f}"


def medians(known: Known, settings: Mapping[str, str]) -> dict[tuple[str, str], Medians]:
    """By problem and contender."""
    cells = {
        (problem, one.name): cells_of(one, problem, known, settings[one.name])
        for problem in TASKS
        for one in ALL
    }
    return {key: Medians([known[cell] for cell in of]) for key, of in cells.items() if of}


def cells_of(one: Contender, problem: str, known: Known, setting: str) -> list[Cell]:
    """The runs of a contender on a problem, with its setting."""
    return [Cell(problem, seed, one.name, setting) for seed in seeds_of(one, problem, known, setting)]


def table(found: Mapping[tuple[str, str], Medians], problems: Sequence[str]) -> str:
    """A row for each contender: exchanges / KB up / KB down."""
    lines = ["| | " + " | ".join(problems) + " |", "|---|" + "---|" * len(problems)]
    for one in ALL:
        cells = (str(found.get((problem, one.name), "")) for problem in problems)
        lines.append(f"| `{one.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


LEAST = {"exchanges": "fewest exchanges", "up": "fewest KB up", "both": "fewest KB both ways"}


def least(found: Mapping[tuple[str, str], Medians]) -> str:
    """What coded L-BFGS does better than PEN, first, and who needs the least on each held-out problem."""
    costs = {
        problem: {
            one.name: cost
            for one in ALL
            if (cost := found.get((problem, one.name))) is not None and cost.reached
        }
        for problem in HELD_OUT
    }
    rows = [f"| | {' | '.join(LEAST.values())} |", "|---|---|---|---|"]
    for problem, of in costs.items():
        names = {count: min(of, key=lambda name: getattr(of[name], count)) for count in LEAST}
        cells = (f"`{name}`: {_amount(of[name], count)}" for count, name in names.items())
        rows.append(f"| {problem} | {' | '.join(cells)} |")
    return "\n".join([_rival_first(costs), "", *rows])


def _amount(cost: Medians, count: str) -> str:
    return f"{cost.exchanges:.0f}" if count == "exchanges" else f"{_kb(getattr(cost, count))} KB"


def _rival_first(costs: Mapping[str, Mapping[str, Medians]]) -> str:
    """On which problems coded L-BFGS sends fewer bytes up than PEN, and at how many times its exchanges."""
    both = {p: of for p, of in costs.items() if {"lbfgs-coded", "pen"} <= of.keys()}
    pairs = {p: (of["lbfgs-coded"], of["pen"]) for p, of in both.items()}
    fewer = {p: (rival, pen) for p, (rival, pen) in pairs.items() if rival.up < pen.up}
    more = [p for p in pairs if p not in fewer]
    if not fewer:
        return f"PEN sends fewer bytes up than coded L-BFGS on all {len(pairs)} held-out problems."
    times = [rival.exchanges / pen.exchanges for rival, pen in fewer.values()]
    amounts = "; ".join(
        f"{p}: {_kb(rival.up)} KB in {rival.exchanges:.0f} exchanges, "
        f"PEN {_kb(pen.up)} KB in {pen.exchanges:.0f}"
        for p, (rival, pen) in fewer.items()
    )
    text = (
        f"**Coded L-BFGS sends fewer bytes up than PEN on {len(fewer)} of the {len(pairs)} problems that "
        f"were held out** ({amounts}), with {min(times):.1f} to {max(times):.1f} times as many exchanges."
    )
    return text + (f" On the others ({', '.join(more)}) PEN sends fewer." if more else "")


def settings_table(known: Known, settings: Mapping[str, str]) -> str:
    """What was tuned, from which grid, and what each setting gave."""
    lines = ["| | grid | chosen | on " + ", ".join(TUNED_ON) + " |", "|---|---|---|---|"]
    for one in ALL:
        gave = "; ".join(
            f"{setting}: " + ", ".join(str(Medians([known[Cell(p, 0, one.name, setting)]])) for p in TUNED_ON)
            for setting in one.grid
        )
        grid = ", ".join(one.grid) if not one.ours else "none: defaults of the library"
        lines.append(f"| `{one.name}` | {grid} | {settings[one.name]} | {gave} |")
    return "\n".join(lines)
