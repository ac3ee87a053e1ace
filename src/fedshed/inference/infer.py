"""From a converged fit to an `Inference`: two short stages over any transport, then statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedshed._utils.errors import ConfigError, SingularError
from fedshed.algorithms.composite import steepest
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.inference.covariance import Curvatures, cluster_covariance, effective_clusters, row_covariance
from fedshed.inference.heterogeneity import excess, score_test, site_tests
from fedshed.inference.nuisance import Nuisance
from fedshed.inference.records import Numbers, Score, SiteReport, numbers, packed
from fedshed.inference.result import ENOUGH_CLUSTERS, EXPECTED, Inference, RowRobust, WeightType
from fedshed.inference.wording import which_weights
from fedshed.linalg.arrays import Matrix, Vector, pack
from fedshed.linalg.solve import inverse_root
from fedshed.objectives import family_of
from fedshed.objectives.build import threshold_count
from fedshed.objectives.family import Totals
from fedshed.protocol.conversation import Problem
from fedshed.solve.certificate import certificate
from fedshed.solve.inspection import Inspected
from fedshed.solve.null_start import levels_of
from fedshed.solve.scatter import Scatter, Scattered
from fedshed.solve.site_scores import AskScores, Scores, scores_of, total, whitened
from fedshed.solve.stages import inspect, null_loss, scatter, site_scores

POWERS = {"HC2": 1, "HC3": 2}  # of 1 - leverage


class Evidence(Struct, frozen=True):
    """The answers of the sites at the estimate, from which all statistics are computed."""

    sites: dict[str, Inspected]  # the answer of each site
    null_loss: float | None  # the least mean loss of the model without columns; None if it was not reached
    traffic: Traffic  # the exchanges and bytes that it took
    scores: Scores | None = None  # sums over all sites, if nobody sees the answer of a single site

    @property
    def null_deviance(self) -> float | None:
        """The deviance of the null model, D + 2 W (f_null - f)."""
        if self.null_loss is None:
            return None
        f0 = self.null_loss
        return sum(site.deviance + 2 * site.weight * (f0 - site.loss) for site in self.sites.values())


def infer(sites: Sites, problem: Problem, theta: Vector, weight_type: WeightType = "auto") -> Inference:
    """Standard errors, tests and measures of fit at a converged theta, exactly as from the pooled rows.

    Parameters
    ----------
    sites : Sites
        The sites of the fit.
    problem : Problem
        The problem that was solved: loss, columns, penalties and weights of the sites.
    theta : ndarray
        The estimate, at which the fit has converged.
    weight_type : "auto", "frequency" or "precision", default "auto"
        What weights mean. "auto" takes weights that are not whole numbers for precisions, and refuses others.

    Returns
    -------
    Inference
        The statistics; if there are no standard errors, its `notes` say why.

    Raises
    ------
    ProtocolError
        If a site does not answer, or its answer is not plausible.
    """
    with threadpool_limits(1):
        return infer_from(problem, theta, gather(sites, problem, theta), weight_type)


def gather(sites: Sites, problem: Problem, theta: Vector, patience: int = 20) -> Evidence:
    """Ask the sites in one exchange at theta, and then fit the null model (an intercept and the offsets).

    Parameters
    ----------
    sites : Sites
        The sites of the fit.
    problem : Problem
        The problem that was solved: loss, columns, penalties and weights of the sites.
    theta : ndarray
        The estimate, at which the fit has converged.
    patience : int, default 20
        How many times in a row a site may fail to answer.

    Returns
    -------
    Evidence
        The answers of the sites.
    """
    inspected, traffic = inspect(sites, problem, theta, patience=patience)
    start = levels_of(problem, {i: site.moments for i, site in inspected.items()})
    sums = np.asarray(sum(site.moments for site in inspected.values()))
    known = family_of(problem.loss).objective.null_cost(sums)
    if known is not None:
        weight = sum(site.weight for site in inspected.values())
        return Evidence(inspected, known / weight, traffic)
    least, traffic = null_loss(sites, problem, start, traffic, patience)
    return Evidence(inspected, least, traffic)


def robust_by_rows(
    sites: Sites, problem: Problem, theta: Vector, evidence: Evidence, found: Inference, kind: RowRobust,
    patience: int = 20,
) -> tuple[Inference, Traffic]:  # fmt: skip
    """Add errors that are robust by rows to an inference, with one more exchange.

    HC2, HC3 and "cluster" send the inverse of the information to the sites. Kinds that end with "-expected"
    have the expected information on both sides of the sandwich, and the others the Hessian.

    Parameters
    ----------
    sites : Sites
        The sites of the fit.
    problem : Problem
        The problem that was solved: loss, columns, penalties and weights of the sites.
    theta : ndarray
        The estimate, at which the fit has converged.
    evidence : Evidence
        The answers of the sites at theta.
    found : Inference
        The inference that the errors are added to.
    kind : "HC0" to "HC3", "HC0-expected" to "HC3-expected", or "cluster"
        The kind of errors.
    patience : int, default 20
        How many times in a row a site may fail to answer.

    Returns
    -------
    tuple of Inference and Traffic
        The inference with `row_covariance`, and all exchanges and bytes so far.
    """
    if found.model_covariance is None:
        return found, evidence.traffic
    curvatures = Curvatures(problem, evidence.sites)
    plain, half = kind.removesuffix(EXPECTED), curvatures.bread(curvatures.information)
    inverse = pack(half) if plain in {*POWERS, "cluster"} else None
    asked = Scatter(theta, inverse, POWERS.get(plain, 0), found.weight_type != "precision", kind == "cluster")
    answers, traffic = scatter(sites, problem, asked, evidence.traffic, patience)
    groups = sum(answer.clusters for answer in answers.values())
    half = half if kind.endswith(EXPECTED) else curvatures.bread(curvatures.hessian)
    unscaled = family_of(problem.loss).survival
    covariance = row_covariance(answers, half, plain, found.parameters, found.observations, unscaled)
    return replace(
        found,
        row_covariance=packed(covariance),
        row_kind=kind,
        row_clusters=groups,
        row_groups=_groups(answers),
    ), traffic


def _groups(answers: Mapping[str, Scattered]) -> tuple[float, ...] | None:
    """(sum_c s_cj)^2 / sum_c s_cj^2: the effective number of clusters behind each coefficient."""
    shares = [each.shares for each in answers.values() if each.shares is not None]
    squares = [each.squared_shares for each in answers.values() if each.squared_shares is not None]
    if len(shares) < len(answers) or len(squares) < len(answers):
        return None
    return numbers(effective_clusters(np.sum(shares, axis=0), np.sum(squares, axis=0)))


def infer_from(
    problem: Problem, theta: Vector, evidence: Evidence, weight_type: WeightType = "auto"
) -> Inference:
    """Compute the statistics from the answers of the sites.

    Parameters
    ----------
    problem : Problem
        The problem that was solved.
    theta : ndarray
        The estimate.
    evidence : Evidence
        The answers of the sites at theta.
    weight_type : "auto", "frequency" or "precision", default "auto"
        What weights mean. "auto" takes weights that are not whole numbers for precisions, and refuses others.

    Returns
    -------
    Inference
        The statistics; if there are no standard errors, its `notes` say why.
    """
    sites, fit = evidence.sites, totals(evidence.sites, weight_type, family_of(problem.loss).survival)
    curvatures = Curvatures(problem, sites)
    g = _gradient(problem, theta, sites)
    bare = _bare(problem, theta, g, evidence, fit)
    if problem.l1 is not None:
        return selected(problem, theta, bare, curvatures, fit)
    try:
        bread = curvatures.bread(curvatures.information)
    except SingularError as error:
        return replace(bare, notes=(f"No standard errors: {error}",))
    k = curvatures.parameters(bread)
    family = family_of(problem.loss)
    phi = _dispersion(fit, fit.observations - k) if family.dispersed else 1.0
    root = inverse_root(curvatures.information)
    asked = _asked(problem, theta, sites, root, bread)
    own = {i: whitened(site, asked.excess) for i, site in sites.items()}
    scores = evidence.scores or total(scores_of(sites[i], asked, own[i]) for i in sites)
    tests = site_tests(own, root, phi)
    parts = {i: each.statistic / (phi or np.inf) for i, each in own.items()}
    return replace(
        bare,
        model_covariance=packed(None if phi is None else phi * curvatures.covariance(bread)),
        cluster_covariance=packed(cluster_covariance(scores, curvatures, k, fit.observations)),
        clusters=_clusters(scores),
        dispersion=phi,
        parameters=k,
        log_likelihood=family.log_likelihood(fit, phi),
        certificate=certificate(problem, g, curvatures.mean),
        heterogeneity=score_test(scores.statistic, scores.rank, root, phi),
        sites={i: replace(bare.sites[i], contribution=parts[i], score=tests[i]) for i in sites},
        protected=None if evidence.scores is None else evidence.scores.sites,
        notes=tuple(note for note in (curvatures.caveat(), _no_freedom(fit.observations, k)) if note),
    )


def selected(
    problem: Problem, theta: Vector, bare: Inference, curvatures: Curvatures, fit: Totals
) -> Inference:
    """The inference of a fit with an absolute penalty: measures of fit, and no standard errors.

    The degrees of freedom are the number of coefficients that are not 0; with a ridge they are the trace of
    (H + W l2)^-1 H over these (Zou, Hastie and Tibshirani 2007, Annals of Statistics 35, 2173).
    """
    kept = (theta != 0) | (problem.penalised == 0)
    H, ridge = curvatures.information[np.ix_(kept, kept)], curvatures.ridge[kept]
    k = float(kept.sum())
    if ridge.any():
        k = float(np.trace(np.linalg.lstsq(H + np.diag(ridge), H, rcond=None)[0]))
    family = family_of(problem.loss)
    phi = _dispersion(fit, fit.observations - k) if family.dispersed else 1.0
    return replace(
        bare, parameters=k, dispersion=phi, log_likelihood=family.log_likelihood(fit, phi), notes=(NO_ERRORS,)
    )


NO_ERRORS = (
    "No standard errors: the absolute penalty (l1) shrinks the estimates and selects columns, and the "
    "usual errors do not account for this. Fit the selected columns again with l1 = 0 to get errors; they "
    "are still too small, unless that fit uses other rows than the selection."
)


def compared(
    sites: Sites, problem: Problem, theta: Vector, evidence: Evidence, count: int, patience: int = 20
) -> Evidence:
    """The evidence with the sums of the scores of `count` sites, which take one more exchange."""
    curvatures = Curvatures(problem, evidence.sites)
    try:
        bread = curvatures.bread(curvatures.information)
    except SingularError:
        return evidence
    root = inverse_root(curvatures.information)
    asked = _asked(problem, theta, evidence.sites, root, bread)
    if count < ENOUGH_CLUSTERS:
        asked = replace(asked, inverse=None)
    scores, traffic = site_scores(sites, problem, asked, evidence.traffic, patience)
    return replace(evidence, scores=scores, traffic=traffic)


def _asked(
    problem: Problem, theta: Vector, sites: Mapping[str, Inspected], root: Matrix, bread: Matrix
) -> AskScores:
    return AskScores(theta, excess(sites, root), problem.l2 * theta, pack(bread))


def _clusters(scores: Scores) -> Numbers | None:
    """The effective number of sites behind each coefficient, if the sites have sent their shares."""
    if scores.shares is None or scores.squared_shares is None:
        return None
    return numbers(effective_clusters(scores.shares, scores.squared_shares))


def _dispersion(fit: Totals, df_resid: float) -> float | None:
    """phi = chi2 / (N - k), as in the GLM of statsmodels; None if no degrees of freedom are left."""
    return None if df_resid <= 0 or fit.pearson is None else fit.pearson / df_resid


def _no_freedom(observations: float, k: float) -> str | None:
    if k < observations:
        return None
    return f"{observations:.6g} observations leave no degrees of freedom with {k:.6g} parameters."


def totals(
    sites: Mapping[str, Inspected], weight_type: WeightType = "auto", survival: bool = False
) -> Totals:
    """Sums over the sites, in sorted order; of whole-number weights the type is asked for.

    The errors of a survival model are the same for both types, so its rows are observations unless said.
    """
    each = tuple(sites.values())
    rows, weight = sum(site.rows for site in each), sum(site.weight for site in each)
    if weight_type == "auto":
        precise = survival or any(site.weighing == "fractions" for site in each)
        if not precise and any(site.weighing for site in each):
            raise ConfigError(which_weights("whole numbers above 1", rows, weight))
    else:
        precise = weight_type == "precision"
    return Totals(
        rows=rows,
        weight=weight,
        observations=rows if precise else weight,
        deviance=sum(site.deviance for site in each),
        pearson=_sum_of_all(site.pearson for site in each),
        constant=_sum_of_all((site.precise if precise and site.weighing else site.constant) for site in each),
        weight_type=_meaning(precise, any(site.weighing for site in each)),
    )


def _meaning(precise: bool, weighted: bool) -> Literal["none", "frequency", "precision"]:
    """What the weights mean, if there are any."""
    if not weighted:
        return "none"
    return "precision" if precise else "frequency"


def _sum_of_all(values: Iterable[float | None]) -> float | None:
    """The sum, if every site has sent its part."""
    known = tuple(values)
    return None if None in known else sum(value for value in known if value is not None)


def _bare(problem: Problem, theta: Vector, g: Vector, evidence: Evidence, fit: Totals) -> Inference:
    """The inference without anything that needs an inverse matrix."""
    nothing = Score(0.0, 0, None)
    sites = {i: SiteReport(s.rows, s.weight, s.deviance, 0.0, nothing) for i, s in evidence.sites.items()}
    return Inference(
        loss=problem.loss, names=_names(problem), coefficients=numbers(theta), model_covariance=None,
        cluster_covariance=None, dispersion=None, l2=numbers(problem.l2), rows=fit.rows, weight=fit.weight,
        parameters=float(problem.n), deviance=fit.deviance, null_deviance=evidence.null_deviance,
        pearson=fit.pearson, log_likelihood=family_of(problem.loss).log_likelihood(fit, None),
        certificate=certificate(problem, steepest(problem, theta, g), None),
        heterogeneity=nothing, sites=sites,
        traffic=evidence.traffic, weight_type=fit.weight_type, intercepts=_intercepts(problem),
        l1=() if problem.l1 is None else numbers(problem.l1),
        nuisance=_given(problem.loss),
    )  # fmt: skip


def _given(loss: str) -> Nuisance | None:
    """The parameter of the family, as the loss has it."""
    family = family_of(loss)
    if family.parameter is None:
        return None
    return Nuisance(family.parameter.name, float(getattr(family.objective, "parameter")), found=False)  # noqa: B009


def _gradient(problem: Problem, theta: Vector, sites: Mapping[str, Inspected]) -> Vector:
    """The gradient of the mean cost, with the ridge."""
    W = sum(site.weight for site in sites.values())
    g: Vector = problem.l2 * theta
    for site in sites.values():
        g = g + site.weight / W * site.gradient
    return g


def _intercepts(problem: Problem) -> int:
    ordered = family_of(problem.loss).classes == "ordered"
    intercepts = sum(name.partition(" [contrast")[0] == "intercept" for name in problem.columns)
    return threshold_count(problem.columns) if ordered else intercepts


def _names(problem: Problem) -> tuple[str, ...]:
    return problem.columns or tuple(f"x{j}" for j in range(problem.n))
