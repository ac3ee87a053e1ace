"""The conversations about one problem, by the number under which both ends of a study know them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.linesearch import Fused
from fedshed.algorithms.newton import Newton
from fedshed.exchange.sites import Sites, Stage
from fedshed.exchange.wire import Traffic
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.protocol.conversation import AgentId, Problem, Size
from fedshed.solve.engine import Progress
from fedshed.solve.evaluating import BINS, Evaluating, Told
from fedshed.solve.folds import Folds
from fedshed.solve.goal import Goal
from fedshed.solve.inspection import Inspected, Inspection
from fedshed.solve.life_counts import SiteTables, SurvivalCounts
from fedshed.solve.null_start import NullStart
from fedshed.solve.path import PathSettings, Walked, walk
from fedshed.solve.private_fit import PrivateFit
from fedshed.solve.profile import JointPoint, Profile
from fedshed.solve.run import play, run
from fedshed.solve.scatter import RowScatter, Scatter, Scattered
from fedshed.solve.separation import SeparationTest
from fedshed.solve.site_estimates import AskEstimate, NoEstimate, SiteEstimate, SiteEstimates
from fedshed.solve.site_scores import AskScores, Scores, SiteScores
from fedshed.solve.survival_checks import CheckSurvival, SurvivalCheck, SurvivalChecked

NO_TRAFFIC = Traffic()
FIT, PRIVATE = 1, 7
NULL = Newton(line_search=Fused())  # fits the model without columns
START = Stage(0, NullStart())
INSPECT = Stage(2, Inspection())
LEAST = Stage(3, NULL, null=True)
SEPARATION = Stage(4, SeparationTest())
SCATTER = Stage(5, RowScatter())
SCORES = Stage(6, SiteScores())  # of a protected study
SURVIVAL = Stage(8, SurvivalCheck())  # of a survival model
CURVES = Stage(9, SurvivalCounts())  # life tables of a survival study
EVALUATION = Stage(10, Evaluating(), held=True)  # of rows that were held out
PROFILE = Stage(11, Profile())  # of a family whose parameter is searched for
ESTIMATES = Stage(12, SiteEstimates())  # of a study that declares them
FOLDS = Stage(13, Folds())  # of a path, which is in no approved study
BESIDE_THE_FIT = {
    stage.number: stage
    for stage in (
        START, INSPECT, LEAST, SEPARATION, SCATTER, SCORES, SURVIVAL, CURVES, EVALUATION, PROFILE, ESTIMATES,
        FOLDS,
    )
}  # fmt: skip


_NULL_GOAL = Goal(tol=1e-10, max_iterations=100)


def private_stage(fit: PrivateFit, number: int = PRIVATE) -> Stage:
    """The one stage of a private fit; ProtocolError for another number."""
    if number != PRIVATE:
        raise ProtocolError("a private study has no other conversation than its fit")
    return Stage(PRIVATE, fit)


def fit_stage(algorithm: AnyAlgorithm) -> Stage:
    """The stage in which the study's own algorithm is played."""
    return Stage(FIT, algorithm)


def null_start(sites: Sites, problem: Problem, patience: int = 20) -> tuple[Vector, Traffic]:
    """The start at the model without columns, and what it took."""
    return play(sites, START, problem, NullStart().flow(problem), Traffic(), patience)


def inspect(
    sites: Sites, problem: Problem, theta: Vector, traffic: Traffic = NO_TRAFFIC, patience: int = 20
) -> tuple[dict[AgentId, Inspected], Traffic]:
    """What each site says at the estimate."""
    return play(sites, INSPECT, problem, Inspection().flow(problem, theta), traffic, patience)


def null_loss(
    sites: Sites, problem: Problem, start: Vector, traffic: Traffic = NO_TRAFFIC, patience: int = 20
) -> tuple[float | None, Traffic]:
    """The least mean loss of the model without columns, fitted without a ridge; None if it is not reached."""
    names = tuple(f"intercept {k + 1}" for k in range(len(start)))
    sizes = {i: Size(size.rows, None) for i, size in problem.sizes.items()}  # its columns are of ones
    null = Problem(np.zeros(len(start)), problem.weights, problem.loss, names, problem.stateless, sizes)
    with sites.open(LEAST) as transport:
        progress = Progress(NULL.start(null, start), traffic, rows=[])
        result = run(NULL, null, transport, progress, replace(_NULL_GOAL, patience=patience))
    return (result.trace[-1].f if result.converged else None), result.traffic


def scatter(
    sites: Sites, problem: Problem, asked: Scatter, traffic: Traffic, patience: int = 20
) -> tuple[dict[AgentId, Scattered], Traffic]:
    """Each site's sum of squared scores."""
    return play(sites, SCATTER, problem, RowScatter().flow(problem, asked), traffic, patience)


def walk_path(
    sites: Sites, problem: Problem, settings: PathSettings, patience: int = 20
) -> tuple[Walked, Traffic]:
    """A path of penalties, and what it took."""
    return play(sites, FOLDS, problem, walk(problem, settings), NO_TRAFFIC, patience)


def site_scores(
    sites: Sites, problem: Problem, asked: AskScores, traffic: Traffic, patience: int = 20
) -> tuple[Scores, Traffic]:
    """What the sites' scores add up to in the statistics that compare sites."""
    return play(sites, SCORES, problem, SiteScores().flow(problem, asked), traffic, patience)


def survival_counts(
    sites: Sites, problem: Problem, times: Vector | None, columns: tuple[int, ...] = (),
    last: float | None = None, least: int = 0, traffic: Traffic = NO_TRAFFIC, patience: int = 20,
) -> tuple[SiteTables, Traffic]:  # fmt: skip
    """The life table of each site, on a grid or on the times of all events."""
    flow = SurvivalCounts().flow(problem, times, columns, last, least)
    return play(sites, CURVES, problem, flow, traffic, patience)


def survival_checks(
    sites: Sites, problem: Problem, asked: CheckSurvival, traffic: Traffic, patience: int = 20
) -> tuple[dict[AgentId, SurvivalChecked], Traffic]:
    """Each site's pairs of rows, and its sums for a test of proportional hazards."""
    return play(sites, SURVIVAL, problem, SurvivalCheck().flow(problem, asked), traffic, patience)


def evaluate(
    sites: Sites, problem: Problem, theta: Vector, bins: int = BINS, cut: float = 0.0, alone: bool = True,
    traffic: Traffic = NO_TRAFFIC, patience: int = 20,
) -> tuple[Told, Traffic]:  # fmt: skip
    """What the sites say of a model on rows that it was not fitted to."""
    flow = Evaluating().flow(problem, theta, bins, cut, alone)
    return play(sites, EVALUATION, problem, flow, traffic, patience)


def profile(
    sites: Sites, problem: Problem, theta: Vector, traffic: Traffic = NO_TRAFFIC, patience: int = 20
) -> tuple[JointPoint, Traffic]:
    """How the cost at theta depends on theta and on the family's parameter."""
    return play(sites, PROFILE, problem, Profile().flow(problem, theta), traffic, patience)


def site_estimates(
    sites: Sites, problem: Problem, asked: AskEstimate, patience: int = 20
) -> tuple[dict[AgentId, SiteEstimate | NoEstimate], Traffic]:
    """Each site's own estimate with its covariance, or why it has none."""
    return play(sites, ESTIMATES, problem, SiteEstimates().flow(problem, asked), Traffic(), patience)


def decreases_without_bound(
    sites: Sites, problem: Problem, theta: Vector, step: Vector, H: Matrix, traffic: Traffic,
    patience: int = 20,
) -> tuple[bool, Traffic]:  # fmt: skip
    """Whether the data are separated: theta is where a run ended, H the Hessian there, and step H^-1 g."""
    weight = sum(problem.weights.values())
    flow = SeparationTest().flow(problem, theta, step, H, weight)
    return play(sites, SEPARATION, problem, flow, traffic, patience)
