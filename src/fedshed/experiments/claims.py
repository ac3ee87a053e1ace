"""The paper's claims as comparisons of recorded runs, which `verdicts` judges (figures/claims.toml)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed.experiments.plan import GAP_OF_A_COUNT, load, read
from fedshed.experiments.repeats import Amount, Repeats, exactly
from fedshed.experiments.reproduce import recorded
from fedshed.experiments.spectra import lyapunov_bound
from fedshed.experiments.verdicts import Case

BOUND = "bound"  # of Lemma 7, where slopes are compared


class Test(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs that are compared: `of` at `at`, by the ratio to `over` at `base`.

    Places are FIGURE/PANEL; without a base they are the same for both.  `over` may be a number, or nothing
    for the run itself.  `growth` compares how much more both need at `at` than at `base`.
    """

    by: str  # the threshold
    of: tuple[str, ...]
    at: tuple[str, ...]
    over: tuple[str, ...] | float | None = None
    base: tuple[str, ...] = ()
    count: str = "rounds"
    growth: bool = False

    @property
    def places(self) -> list[tuple[str, str]]:
        """Where the two are measured."""
        return list(zip(self.at, self.base or self.at, strict=True))

    def others(self, run: str) -> tuple[str, ...]:
        """The runs that a run is compared with."""
        if isinstance(self.over, float | int):
            return ()
        return self.over or (run,)


class Claim(Struct, frozen=True, forbid_unknown_fields=True):
    """One sentence of the paper, with what decides whether it holds."""

    figure: str
    says: str
    tests: tuple[Test, ...]


class Contrast(Struct, frozen=True, forbid_unknown_fields=True):
    """What the paper says of a place, and the same place under both pre-processings of the images."""

    says: str
    of: tuple[str, ...]
    rescaled: str  # FIGURE/PANEL
    uncentred: str
    rescaled_base: str = ""  # what is shown is how many times as much it needs as here
    uncentred_base: str = ""
    over: str = ""  # what is shown is the ratio to this run
    count: str = "rounds"


class Claims(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of claims."""

    claims: tuple[Claim, ...]
    contrasts: tuple[Contrast, ...]


def claims() -> Claims:
    """The claims in the order of the paper, and the contrasts (figures/claims.toml)."""
    return msgspec.toml.decode(read("claims.toml"), type=Claims)


def place_of(text: str) -> tuple[str, int]:
    """The figure and the number of its panel."""
    figure, _, panel = text.rpartition("/")
    return figure, int(panel)


class Evidence:
    """The recorded runs, asked for by figure, panel and run."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self._folder, self._quick = folder, quick
        self._found: dict[str, dict[str, list[Repeats]]] = {}

    def amounts(self, place: str, run: str, count: str, gap: float = GAP_OF_A_COUNT) -> tuple[Amount, ...]:
        """What a run needed with each seed until the gap was small."""
        figure, panel = place_of(place)
        if count == "slope":
            return (exactly(self._slope(figure, panel, run)),)
        return tuple(self._run(figure, panel, run).amounts(count, gap))

    def growth(
        self, at: str, base: str, run: str, count: str, gap: float = GAP_OF_A_COUNT
    ) -> tuple[Amount, ...]:
        """How many times as much a run needs at one place as at the other."""
        pairs = zip(self.amounts(at, run, count, gap), self.amounts(base, run, count, gap), strict=True)
        return tuple(a.over(b) for a, b in pairs)

    def cases(self, claim: Claim, gap: float = GAP_OF_A_COUNT) -> list[Case]:
        """All comparisons of a claim."""
        return [
            case
            for test in claim.tests
            for at, base in test.places
            for run in test.of
            for case in self._cases(test, at, base, run, gap)
        ]

    def _cases(self, test: Test, at: str, base: str, run: str, gap: float) -> list[Case]:
        """One run against all that it is compared with."""

        def measured(place: str, one: str) -> tuple[Amount, ...]:
            if test.growth:
                return self.growth(at, base, one, test.count, gap)
            return self.amounts(place, one, test.count, gap)

        of = measured(at, run)
        if isinstance(test.over, float | int):
            named = tuple(exactly(float(test.over)) for _ in of)
            return [Case(at, test.count, f"{run} / {test.over:g}", of, named, test.by)]
        found = []
        for other in test.others(run):
            if test.growth:
                name = f"growth of {run} / growth of {other}"
            else:
                name = f"{run} / {other}" if test.over else f"growth of {run}"
            found.append(Case(at, test.count, name, of, measured(base, other), test.by))
        return found

    def uses_matrices(self, place: str, run: str) -> bool:
        """Whether a run begins with a whole Hessian, which may count as a packed or as a full matrix."""
        figure, panel = place_of(place)
        plan = load(figure, self._quick).panels[panel]
        return any(one.name == run and one.algorithm.startswith("fednl") for one in plan.runs)

    def _run(self, figure: str, panel: int, run: str) -> Repeats:
        if figure not in self._found:
            try:
                self._found[figure] = recorded(load(figure, self._quick), self._folder)
            except KeyError:
                raise ConfigError(f"a claim needs the runs of {figure}: fedshed reproduce {figure}") from None
        runs = list(self._found[figure].values())[panel]
        return next(one for one in runs if one.name == run)

    def _slope(self, figure: str, panel: int, run: str) -> float:
        """The measured rate of the error per iteration over the last periods, or the bound a-bar_T."""
        plan = load(figure, self._quick).panels[panel]
        if run == BOUND:
            return lyapunov_bound(plan)
        T, errors = plan.runs[0].renewal_period or 1, np.array(self._run(figure, panel, run).first.errors)
        span = min(max(1, (len(errors) - 1) // T - 2) * T, len(errors) - 1)
        return float((errors[-1] / errors[-1 - span]) ** (1 / span))
