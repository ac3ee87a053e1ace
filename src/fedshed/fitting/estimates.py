"""Each site's own estimate, in a study that asks for it, in the units of the table."""

from __future__ import annotations

import numpy as np

from fedshed._utils.errors import ConfigError
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.inference.meta import SiteResult
from fedshed.linalg.arrays import Matrix, Vector, pack, unpack
from fedshed.objectives import family_of
from fedshed.preparation import DesignPlan
from fedshed.protocol.conversation import Problem
from fedshed.solve.site_estimates import REASONS, AskEstimate, NoEstimate, SiteEstimate
from fedshed.solve.stages import site_estimates


def own_estimates(
    plan: DesignPlan, problem: Problem, sites: Sites, theta: Vector, patience: int
) -> tuple[dict[str, SiteResult], Traffic]:
    """Each site's estimate from its own rows, in one exchange, if the study asks for them."""
    study = plan.study
    if not study.site_estimates:
        return {}, Traffic()
    if problem.n != len(plan.coefficients):
        raise ConfigError(
            f"a meta-analysis needs one linear predictor, but the {study.family} family has more parameters; "
            "leave out site_estimates"
        )
    precise = None if study.weight_type == "auto" else study.weight_type == "precision"
    asked = AskEstimate(theta, family_of(study.loss).dispersed, study.trials is not None or precise)
    answers, traffic = site_estimates(sites, problem, asked, patience)
    A = plan.to_original()[0]
    return {site: _result(A, answer) for site, answer in answers.items()}, traffic


def _result(A: Matrix, answer: SiteEstimate | NoEstimate) -> SiteResult:
    """A theta and A V A', or the reason."""
    if isinstance(answer, NoEstimate):
        return SiteResult(left_out=REASONS[answer.why])
    V = A @ unpack(answer.covariance, len(A)) @ A.T
    moved = np.asarray(A @ answer.estimate)
    return SiteResult(tuple(moved.tolist()), tuple(pack((V + V.T) / 2).tolist()))
