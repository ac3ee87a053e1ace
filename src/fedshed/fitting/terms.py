"""The terms that a site approves: everything in a study that determines the requests, and its SHA-256."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.algorithms.auto import choose_approved, choose_summable
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.channels import Constant
from fedshed.algorithms.firth import Firth, choose_firth
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.newton_seldom import NewtonSeldom
from fedshed.algorithms.registry import build, check_for_studies, with_one_exchange
from fedshed.inference.result import RowRobust
from fedshed.preparation import Study
from fedshed.solve.evaluating import POINTS as EVALUATION_POINTS
from fedshed.solve.goal import Goal

MOST_POINTS = 400  # that an algorithm may ask about, where the study does not say
MOST_NEWTON_POINTS = 60  # of one that asks for a whole Hessian at each; separated data take over 30
MOST_SELDOM_POINTS = 120  # of one that asks for a Hessian at a third of twice as many points
SEARCHES = 3  # times as many where a parameter is searched for: a dozen fits from near their optima
MOST_FIRTH_POINTS = 150  # of Firth's penalty: a Hessian, and the inverse of the sum of all, at each iteration
SPARE_POINTS = 15  # for the null model, the inspection and the test for separated data


class Terms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of a study.

    `protocol` stands for the rules by which levels, scales and knots follow from the tables; the line search,
    the precision and the start follow from the algorithm.
    """

    protocol: int
    study: Study
    sites: tuple[str, ...]
    algorithm: str
    tolerance: float
    max_iterations: int
    errors: RowRobust | None = None
    points: int | None = None  # parameters that may be asked about
    keys: dict[str, str] = {}  # of a protected study: each site's Ed25519 public key, 64 hexadecimal digits
    least: int | None = None  # of a protected study: sites that must take part; None: all

    @property
    def digest(self) -> bytes:
        """The SHA-256 that names the study: 32 bytes."""
        return sha256(msgspec.json.encode(self, order="deterministic")).digest()

    @property
    def roster(self) -> dict[str, bytes]:
        """Each site's public key."""
        return {site: bytes.fromhex(self.keys[site]) for site in self.sites}

    @property
    def fewest(self) -> int:
        """The sites of a protected study that must take part."""
        return len(self.sites) if self.least is None else self.least

    @property
    def goal(self) -> Goal:
        """When the fit ends, as the Master and every site know it."""
        return Goal(self.tolerance, self.max_iterations)

    def in_words(self) -> str:
        """The model in one line, and whether each site's numbers are masked."""
        study = self.study
        terms = "all other columns" if study.columns is None else " + ".join(study.columns) or "1"
        masked = " (masked: only sums over all sites are seen)" * study.protected
        random = " with a random intercept per site" * study.random_intercept
        firth = " with Firth's penalty" * study.firth
        what = f"{study.family}{random}{firth}"
        left = study.target if study.event is None else f"({study.target}, {study.event})"
        return f"{what}: {study.formula or f'{left} ~ {terms}'}{masked}{_held(study)}"

    def most_points(self, algorithm: AnyAlgorithm) -> int:
        """The number of points a study may ask about, including the null model and the inspection."""
        if self.points is not None:
            return self.points
        return self._evaluation_points + _points_of(algorithm) * (SEARCHES if self.study.searched else 1)

    def most_iterations(self, algorithm: AnyAlgorithm) -> int:
        """The iterations that those points allow, beside what comes before and after them."""
        each = 2 if isinstance(algorithm, Firth) else 1
        left = self.most_points(algorithm) - SPARE_POINTS - self._evaluation_points
        return max(1, left // each)

    @property
    def _evaluation_points(self) -> int:
        return 0 if self.study.holdout is None else EVALUATION_POINTS

    def choose(self, n: int) -> tuple[AnyAlgorithm, str]:
        """What a fit of n coefficients runs by these terms alone, and one line that says so at every site."""
        if self.study.firth:
            return choose_firth()
        if self.algorithm != "auto":
            return build(self.algorithm), self.algorithm
        if self.study.protected and not self.study.selects:
            return choose_summable(n)
        return choose_approved(n, self.study.selects)

    def check_algorithm(self, algorithm: AnyAlgorithm, n: int) -> None:
        """Refuse a fit by another algorithm, or with other settings of it; any that is for comparisons."""
        check_for_studies(algorithm)
        if _plain(algorithm) != _plain(self.choose(n)[0]):
            raise ProtocolError("the fit uses another algorithm than the one that was approved")

    def check_study(self) -> None:
        """Refuse an algorithm that is unknown or for comparisons only."""
        if self.algorithm != "auto":
            check_for_studies(build(self.algorithm))


def _points_of(algorithm: AnyAlgorithm) -> int:
    """The points that one fit by an algorithm may take."""
    if isinstance(algorithm, Firth):
        return MOST_FIRTH_POINTS
    if isinstance(algorithm, NewtonSeldom):
        return MOST_SELDOM_POINTS
    return MOST_NEWTON_POINTS if isinstance(algorithm, Newton) else MOST_POINTS


def _plain(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """An algorithm without what depends on the links: its channel, and how many exchanges a search takes."""
    algorithm = replace(algorithm, fixed=()) if isinstance(algorithm, Firth) else with_one_exchange(algorithm)
    return replace(algorithm, channel=Constant(1)) if hasattr(algorithm, "channel") else algorithm


def _held(study: Study) -> str:
    """The rows that the model is evaluated on, in words."""
    if study.holdout is None:
        return ""
    marked = isinstance(study.holdout, str)
    rows = f"rows with {study.holdout}" if marked else f"{study.holdout:.0%} of the rows"
    return f" ({rows} held out, and the model evaluated on them)"


def check_points(points: int | None) -> None:
    """Refuse an impossible number of points."""
    if points is not None and points < 1:
        raise ConfigError(
            f"points, the sets of parameters that a study may ask about, must be at least 1, not {points}"
        )
