"""Checks of a survival model besides its coefficients: concordance, and tests of proportional hazards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.special import chdtrc

from fedshed._utils.errors import Error
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.inference.infer import Evidence
from fedshed.inference.records import PhTest, SurvivalFacts
from fedshed.inference.result import Inference
from fedshed.linalg.arrays import Matrix, Vector, unpack
from fedshed.objectives.life_table import LifeTable
from fedshed.objectives.time_scale import POOLED, TimeScale, Transform, pooled_scale
from fedshed.protocol.conversation import Problem
from fedshed.solve.stages import survival_checks, survival_counts
from fedshed.solve.survival_checks import CheckSurvival, SurvivalChecked


class HazardsTest(Struct, frozen=True):
    """The scale of time of a test of proportional hazards, and the counts of a grid that it follows from."""

    transform: Transform = "identity"
    counts: LifeTable | None = None


BY_TIME = HazardsTest()


class ScoreSums(Struct, frozen=True):
    """The score test of gamma = 0 in the hazard ratio theta + gamma g(t): its scores and information."""

    start: Vector  # the score of theta, which is 0 but for a ridge and rounding
    score: Vector  # of gamma
    information: Matrix  # of theta
    cross: Matrix
    square: Matrix

    def test(self, chosen: list[int]) -> PhTest:
        """chi2 = u'(I_gg - I_gt I_tt^-1 I_tg)^-1 u with u = u_g - I_gt I_tt^-1 u_t, for entries of gamma.

        It is the same for a + b g(t) in place of g(t), as R's cox.zph has it, which centres g.
        """
        cross = self.cross[:, chosen]
        known = cross.T @ np.linalg.pinv(self.information)
        within = self.square[np.ix_(chosen, chosen)] - known @ cross
        values, vectors = np.linalg.eigh((within + within.T) / 2)
        kept = values > 1e-10 * max(float(np.diag(self.square)[chosen].max(initial=0.0)), 1e-300)
        projected = vectors[:, kept].T @ (self.score[chosen] - known @ self.start)
        statistic, df = float((projected**2 / values[kept]).sum()), int(kept.sum())
        return PhTest(statistic, df, float(chdtrc(df, statistic)) if df else None)


def check_survival(
    sites: Sites, problem: Problem, theta: Vector, evidence: Evidence, found: Inference,
    hazards: HazardsTest = BY_TIME, patience: int = 20,
) -> tuple[Inference, Traffic]:  # fmt: skip
    """The inference with what one more exchange tells; where a site refuses it, a note says so."""
    try:
        scale, traffic = _time_scale(sites, problem, hazards, evidence.traffic, patience)
        asked = CheckSurvival(theta, scale.transform, scale.times, scale.values)
        answers, traffic = survival_checks(sites, problem, asked, traffic, patience)
    except Error as error:
        note = f"No concordance and no test of proportional hazards: {error}"
        return replace(found, notes=(*found.notes, note)), evidence.traffic
    events = sum(float(site.moments[0]) for site in evidence.sites.values())
    return replace(found, survival=_facts(problem, evidence, answers, events, hazards.transform)), traffic


def _time_scale(
    sites: Sites, problem: Problem, hazards: HazardsTest, traffic: Traffic, patience: int
) -> tuple[TimeScale, Traffic]:
    """The scale of time; one that needs counts asks for those at all event times if it has none."""
    if hazards.transform not in POOLED:
        return TimeScale(hazards.transform), traffic
    table = hazards.counts
    if table is None:
        counted, traffic = survival_counts(sites, problem, None, traffic=traffic, patience=patience)
        table = counted.total
    return pooled_scale(hazards.transform, table), traffic


def _facts(
    problem: Problem, evidence: Evidence, answers: Mapping[str, SurvivalChecked], events: float,
    transform: Transform,
) -> SurvivalFacts:  # fmt: skip
    n = problem.n
    concordant, discordant, tied = (
        sum(getattr(answer, name) for answer in answers.values())
        for name in ("concordant", "discordant", "tied")
    )
    pairs = concordant + discordant + tied
    sums = ScoreSums(
        -np.asarray(sum(site.weight * site.gradient for site in evidence.sites.values())),
        np.asarray(sum(answer.score for answer in answers.values())),
        np.asarray(sum(site.weight * unpack(site.hessian, n) for site in evidence.sites.values())),
        unpack(np.sum([answer.cross for answer in answers.values()], axis=0), n),
        unpack(np.sum([answer.square for answer in answers.values()], axis=0), n),
    )
    return SurvivalFacts(
        events=events,
        concordance=(concordant + tied / 2) / pairs if pairs > 0 else None,
        pairs=pairs,
        transform=transform,
        proportional=tuple(sums.test([j]) for j in range(n)),
        proportional_global=sums.test(list(range(n))),
    )
