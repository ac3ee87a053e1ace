"""What is claimed of our own algorithms, judged by the thresholds that the paper's claims are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from benchmarks.rivals.contenders import ALL
from benchmarks.rivals.page import Known, cells_of
from benchmarks.rivals.problems import HELD_OUT, TASKS
from benchmarks.rivals.runs import Outcome
from fedshed.experiments.repeats import Amount, exactly, middle
from fedshed.experiments.verdicts import Case, decided_by, verdict

BY_NAME = {one.name: one for one in ALL}
LARGER = 32  # coefficients, above which a packed Hessian is large
LARGEST = 120
# exchanges, KB up and KB down that were written down before the held-out problems were run
GOALS: dict[str, dict[str, tuple[float, float, float]]] = {
    "pen": {
        "F5": (15, 36, 28), "F6": (16, 45, 38), "F8": (18, 52, 48), "W5": (14, 33, 26),
        "WI6": (16, 46, 32), "A5": (11, 10, 10), "M5": (16, 40, 26),
    },
    "qn-shed": {
        "F5": (50, 57, 20), "F6": (71, 82, 28), "F8": (98, 112, 39), "W5": (50, 48, 18),
        "WI6": (75, 70, 28), "A5": (68, 31, 17),
    },
}  # fmt: skip
COUNTS = {"exchanges": "exchanges", "up": "KB up", "down": "KB down", "both": "KB both ways"}


class Ours:
    """The claims, from the outcomes of all runs."""

    def __init__(self, known: Known, settings: Mapping[str, str], dims: Mapping[str, int]) -> None:
        self._known, self._settings, self._dims = known, settings, dims

    def table(self) -> str:
        """A row for each claim, as Markdown."""
        larger = [problem for problem in HELD_OUT if self._dims[problem] > LARGER]
        rows = {
            "PEN needs hardly more exchanges than Newton's method": [
                self._ratio(problem, "exchanges", "pen", "newton", "hardly") for problem in HELD_OUT
            ],
            f"PEN sends at most half of Newton's bytes up, with more than {LARGER} coefficients": [
                self._ratio(problem, "up", "newton", "pen", "at least 2") for problem in larger
            ],
            f"PEN sends about a hundredth of its bytes up, with more than {LARGER} coefficients": [
                self._ratio(problem, "up", "newton", "pen", "about 100") for problem in larger
            ],
            f"Coded L-BFGS sends fewer bytes up than PEN, with more than {LARGEST} coefficients": [
                self._ratio(problem, "up", "pen", "lbfgs-coded", "more")
                for problem in HELD_OUT
                if self._dims[problem] > LARGEST
            ],
            "No rival sends fewer bytes up, or both ways, than PEN in no more exchanges": [
                case for problem in TASKS for case in self._undercut(problem)
            ],
            **{
                f"{name} keeps the goals that were written down before (exchanges, KB up, KB down)": [
                    case for problem in goals for case in self._goals(name, problem)
                ]
                for name, goals in GOALS.items()
            },
        }
        lines = [_row(claim, cases) for claim, cases in rows.items()]
        return "\n".join(
            ("| claim | measured | threshold that decided | verdict |", "|---|---|---|---|", *lines)
        )

    def _amounts(self, problem: str, name: str, count: str) -> tuple[Amount, ...]:
        cells = cells_of(BY_NAME[name], problem, self._known, self._settings[name])
        return tuple(_amount(self._known[cell], count) for cell in cells)

    def _ratio(self, problem: str, count: str, of: str, over: str, by: str) -> Case:
        return Case(
            problem, count, f"{of} / {over}", self._amounts(problem, of, count),
            self._amounts(problem, over, count), by,
        )  # fmt: skip

    def _goals(self, name: str, problem: str) -> list[Case]:
        """On the problem and, where there is one, on its twin with other seeds."""
        counts = dict(zip(("exchanges", "up", "down"), GOALS[name][problem], strict=True))
        found = []
        for where in (problem, f"{problem}'") if f"{problem}'" in HELD_OUT else (problem,):
            for count, goal in counts.items():
                of = self._amounts(where, name, count)
                named = tuple(exactly(float(goal)) for _ in of)
                found.append(Case(where, count, f"{name} / goal", of, named, "goal"))
        return found

    def _undercut(self, problem: str) -> list[Case]:
        """Each rival that needs no more exchanges than PEN, with the seeds that both were run with."""
        found, pen = [], self._amounts(problem, "pen", "exchanges")
        for rival in (one.name for one in ALL if one.name != "pen"):
            theirs = self._amounts(problem, rival, "exchanges")
            if theirs and middle(theirs).most <= middle(pen[: len(theirs)]).least:
                for count in ("up", "both"):
                    of, over = (self._amounts(problem, name, count)[: len(theirs)] for name in (rival, "pen"))
                    found.append(Case(problem, count, f"{rival} / pen", of, over, "more"))
        return found


def _amount(outcome: Outcome, count: str) -> Amount:
    """What a run cost, or that it is more than it had cost when it ended."""
    value = float(getattr(outcome, count))
    return Amount(value, value if outcome.reached else inf)


def _row(claim: str, cases: Sequence[Case]) -> str:
    """A claim with all of its ratios."""
    several = len({case.count for case in cases}) > 1 or len({case.name for case in cases}) > 1
    said = ", ".join(f"{_named(case, several)} {case.ratio} {case.mark}" for case in cases)
    return f"| {claim} | {said} | {decided_by(cases)} | {verdict(cases)} |"


def _named(case: Case, several: bool) -> str:
    return f"{case.place} ({case.name}, {COUNTS[case.count]})" if several else case.place
