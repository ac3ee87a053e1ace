"""The exchange for a meta-analysis: each site's own estimate from its own rows, with its covariance.

A site minimises its own cost by Newton's method and sends what a published study would: n coefficients and
n(n + 1)/2 covariances.  A site that has no estimate says why, in one of four words.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.rows import gram
from fedshed.linalg.solve import unit_diagonal
from fedshed.objectives import Objective, Point
from fedshed.privacy.points import ForbiddenPointError
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, everyone
from fedshed.protocol.messages import Message

Reason: TypeAlias = Literal["small", "singular", "separated", "withheld"]
REASONS: dict[Reason, str] = {
    "small": "it has too few rows for the number of coefficients",
    "singular": "its columns are constant or collinear there",
    "separated": "its own rows are separated, so it has no finite estimate",
    "withheld": "its disclosure policy withholds it, as too few rows would decide it",
}
MOST_STEPS, MOST_HALVINGS = 100, 60
NEAR = 1e-10  # of the length of a Newton step, in units of the curvature at 0: nearer is as good as there
SINGULAR = 1e-12  # of the smallest eigenvalue of a Hessian with unit diagonal


class AskEstimate(Message, frozen=True):
    """Asks for a site's own estimate; Newton's method may start at theta, the estimate of all sites.

    With `dispersed` the covariance is that of a family whose dispersion is estimated, at the site, from
    Pearson's chi2; with `precise` a weight is a precision, and its row one observation (None: as it looks).
    """

    theta: Vector
    dispersed: bool
    precise: bool | None = None


class SiteEstimate(Message, frozen=True):
    """The minimum of the site's own cost, and the inverse of the information there, times the dispersion."""

    estimate: Vector
    covariance: Packed

    def __post_init__(self) -> None:
        super().__post_init__()
        n = len(self.estimate)
        if len(self.covariance) != n * (n + 1) // 2:
            raise ValueError(f"a covariance of {n} coefficients has {n * (n + 1) // 2} entries")
        if not (np.isfinite(self.estimate).all() and np.isfinite(self.covariance).all()):
            raise ValueError("an estimate and its covariance are finite")
        V = unpack(self.covariance, n)
        if np.diag(V).min(initial=1.0) <= 0 or np.linalg.eigvalsh(unit_diagonal(V)[1])[0] < -1e-8:
            raise ValueError("a covariance is not negative in any direction, and a variance above 0")


class NoEstimate(Message, frozen=True):
    """A site that has no estimate from its own rows, and the reason."""

    why: Reason


class SiteEstimates(Conversation, frozen=True, tag=True):
    """One exchange, in a study that declares it (`Study.site_estimates`)."""

    messages: ClassVar[tuple[type[Message], ...]] = (AskEstimate, SiteEstimate, NoEstimate)
    requests = ((AskEstimate, None),)

    def flow(self, problem: Problem, asked: AskEstimate) -> Flow[dict[AgentId, SiteEstimate | NoEstimate]]:
        """Each site's estimate, or why it has none, in sorted order."""
        replies = yield from everyone([asked], problem)
        for site, (answer,) in replies.items():
            if not isinstance(answer, SiteEstimate | NoEstimate):
                raise ProtocolError(f"site {site!r} answered AskEstimate with {type(answer).__name__}")
        return {site: replies[site][0] for site in sorted(replies)}

    def respond(
        self, agent: Agent, cache: None, part: AskEstimate, own_part: Any
    ) -> tuple[None, SiteEstimate | NoEstimate]:
        """The estimate of this site's rows alone, unless a rule forbids a point on the way to it."""
        try:
            with np.errstate(all="ignore"):  # what is not finite is looked at
                return None, own_estimate(agent.objective, part)
        except ForbiddenPointError:
            return None, NoEstimate("withheld")


def own_estimate(objective: Objective, asked: AskEstimate) -> SiteEstimate | NoEstimate:
    """The minimum of a cost, its covariance phi I^-1 with phi = chi2 / (N - n) or 1; or why there is none."""
    begun = objective.at(np.zeros(objective.dim))
    if not np.isfinite(begun.value):  # thresholds in order, say, cannot all be 0
        begun = objective.at(asked.theta)
    metric = gram(begun.factor)
    freedom = _observations(begun, objective.weight, asked.precise) - objective.dim
    if freedom <= 0:
        return NoEstimate("small")
    if _singular(metric):
        return NoEstimate("singular")
    theta = minimum(objective, asked.theta, metric)
    if theta is None:
        return NoEstimate("separated")
    point = objective.at(theta)
    information = gram(point.information)
    phi = point.fit.pearson / freedom if asked.dispersed else 1.0
    if _singular(information) or not 0 < phi < np.inf:
        return NoEstimate("singular" if phi > 0 else "small")
    scale, unit = unit_diagonal(information)
    inverse = scale[:, None] * np.linalg.inv(unit) * scale
    return SiteEstimate(theta, pack(phi / objective.weight * (inverse + inverse.T) / 2))


def _observations(point: Point, weight: float, precise: bool | None) -> float:
    """Rows, or the weight of rows where weights count them."""
    fit = point.fit
    return fit.rows if (fit.weighing == "fractions" if precise is None else precise) else weight


def _singular(H: Matrix) -> bool:
    if not np.isfinite(H).all() or (np.diag(H) <= 0).any():
        return True
    return bool(np.linalg.eigvalsh(unit_diagonal(H)[1])[0] < SINGULAR)


def minimum(objective: Objective, start: Vector, metric: Matrix) -> Vector | None:
    """The minimum by damped Newton steps; None where they do not become short, for then there is none.

    The length of a step p is (p' M p)^(1/2) with M the curvature at 0.  Near a minimum it falls to 0
    quadratically; where the rows are separated every step moves some margins by about 1, for as long as
    the curvature can be told from 0 (Albert and Anderson 1984, Biometrika 71, 1).
    """
    theta = start if np.isfinite(objective.at(start).value) else np.zeros_like(start)
    for _ in range(MOST_STEPS):
        point = objective.at(theta)
        H, g = gram(point.factor), point.gradient
        scale, unit = unit_diagonal(H)
        try:
            step = -scale * np.linalg.solve(unit, scale * g)
        except np.linalg.LinAlgError:
            return None
        length = np.sqrt(step @ metric @ step)
        if not np.isfinite(length):
            return None
        if length <= NEAR * (1 + np.sqrt(theta @ metric @ theta)):
            return np.asarray(theta + step)
        theta = theta + _step_size(objective, theta, step, point.value, float(g @ step)) * step
    return None


def _step_size(objective: Objective, theta: Vector, step: Vector, value: float, slope: float) -> float:
    """The first of 1, 1/2, 1/4, ... at which the cost has fallen enough (Armijo 1966); 1 within rounding."""
    if -slope <= 64 * np.finfo(float).eps * max(1.0, abs(value)):
        return 1.0
    for k in range(MOST_HALVINGS):
        eta = 0.5**k
        if objective.along(theta, step, np.array([eta]))[0] <= value + 1e-4 * eta * slope:
            return eta
    return 0.5**MOST_HALVINGS
