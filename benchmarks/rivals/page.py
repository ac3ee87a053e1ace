"""What the runs say, as tables in Markdown: the settings chosen, the two lists, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log
from statistics import median

from benchmarks.rivals.contenders import ALL, TUNED_ON, Contender
from benchmarks.rivals.problems import DRAWN, HELD_OUT, SMALL, TASKS
from benchmarks.rivals.runs import Cell, Outcome

Known = Mapping[Cell, Outcome]
# exchanges, KB up and KB down that were asked for, each with one more exchange and a tenth more bytes
REACH: dict[str, dict[str, tuple[float, float, float]]] = {
    "pen": {
        "F5": (15, 36, 28), "F6": (16, 45, 38), "F8": (18, 52, 48), "W5": (14, 33, 26),
        "WI6": (16, 46, 32), "A5": (11, 10, 10), "M5": (16, 40, 26),
    },
    "qn-shed": {
        "F5": (50, 57, 20), "F6": (71, 82, 28), "F8": (98, 112, 39), "W5": (50, 48, 18),
        "WI6": (75, 70, 28), "A5": (68, 31, 17),
    },
}  # fmt: skip


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
            return f"gap {self.gap:.0e} after {self.exchanges:.0f}" if self.gap < inf else "breaks down"
        return f"{self.exchanges:.0f} / {_kb(self.up)} / {_kb(self.down)}"

    def within(self, reach: tuple[float, float, float]) -> bool:
        """Whether it is reached, with one more exchange and a tenth more bytes."""
        exchanges, up, down = reach
        fits = self.exchanges <= exchanges + 1 and self.up <= 1.1 * up and self.down <= 1.1 * down
        return self.reached and fits

    def undercuts(self, other: Medians) -> bool:
        """Whether it needs no more exchanges than the other and fewer bytes, up or both ways."""
        return self.reached and self.exchanges <= other.exchanges and (
            self.up < other.up or self.both < other.both
        )  # fmt: skip


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


def verdicts(found: Mapping[tuple[str, str], Medians], dims: Mapping[str, int]) -> list[str]:
    """Every target, met or missed, with what was measured."""
    said = []
    for name, wanted in REACH.items():
        for problem, reach in wanted.items():
            label = f"{problem}'" if f"{problem}'" in HELD_OUT else problem
            for where in dict.fromkeys((problem, label)):
                one = found[where, name]
                mark = "met" if one.within(reach) else "MISSED"
                said.append(f"{name} on {where}: {mark} ({one}; asked {' / '.join(map(str, reach))})")
    for problem in HELD_OUT:
        pen, newton = found[problem, "pen"], found[problem, "newton"]
        most = 1.5 * newton.exchanges if dims[problem] > 32 else newton.exchanges + 8
        mark = "met" if pen.reached and pen.exchanges <= most else "MISSED"
        said.append(
            f"pen against newton on {problem} (n = {dims[problem]}): {mark} "
            f"({pen.exchanges:.0f} against {newton.exchanges:.0f} exchanges, at most {most:.0f})"
        )
    for problem in TASKS:
        pen = found[problem, "pen"]
        others = {one.name: found.get((problem, one.name)) for one in ALL if one.name != "pen"}
        rivals = [name for name, other in others.items() if other is not None and other.undercuts(pen)]
        said.append(
            f"fewer bytes than pen in no more exchanges on {problem}: {', '.join(rivals) or 'no rival'}"
        )
    return said
