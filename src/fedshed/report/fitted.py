"""The report of a fit, at one machine or of a deployed study: from what the Master has, nothing more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from fedshed.exchange.contacts import Contact
from fedshed.fitting.model import Model
from fedshed.inference import Summary
from fedshed.preparation import DesignPlan
from fedshed.report.model import Agent, Coefficient, Fit, Gap, Kind, Problem, Report, Rerun, Run, SiteTraffic
from fedshed.report.recorder import Recorder
from fedshed.solve.certificate import Certificate
from fedshed.solve.trace import Row

NO_OPTIMUM = "The pooled optimum is not computed in a study, so the gap is not known exactly."


def of_model(model: Model, recorder: Recorder, rerun: Rerun, summary: Summary) -> Report:
    """The report of a fit: its coefficients with intervals, its summary, and its one run."""
    inference, study = model.inference, model.plan.study
    sums = inference.protected is not None
    who = f"{'protected: sums over ' * sums}{inference.site_count} sites"
    title = f"{study.target}: {study.family}, {who}"
    agents = () if sums else tuple(Agent(name, site.rows) for name, site in inference.sites.items())
    gap, rows = estimated_gaps(model.trace or (), model.certificate)
    run = Run(
        model.run.algorithm.partition(":")[0], rows, model.run.reason, model.converged, recorder.pairs(),
        None, recorder.spectra(), traffic=() if sums else _traffic(model.contacts),
    )  # fmt: skip
    fit = Fit(
        tuple(_coefficients(model, summary)), str(replace(summary, influence=True)), summary.level,
        summary.inference.ratio if summary.exp else _ratio(summary), summary.exp,
    )  # fmt: skip
    problem = Problem(title, (run,) if rows else (), max(1, len(agents)), agents, gap=gap)
    return Report(title, (problem,), rerun, fit, evaluation=model.evaluation)


def estimated_gaps(trace: Sequence[Row], certificate: Certificate | None) -> tuple[Gap, list[Row]]:
    """The rows with f - f_end + e for the gap, e being what the certificate says of the end, and in words.

    With an estimate of e it is an estimate, with a bound of e an upper bound; without either, e = 0 gives a
    lower bound, of which nothing is shown at the end itself.
    """
    if not trace or any(row.gap is not None for row in trace):
        return Gap(), list(trace)
    end, left, gap = trace[-1].f, 0.0, _LOWER
    if certificate is not None and certificate.estimate is not None and certificate.estimate >= 0:
        left, gap = certificate.estimate, _estimated(certificate.estimate)
    elif certificate is not None and certificate.bound is not None:
        left, gap = certificate.bound, _bounded(certificate.bound)
    rows = [replace(row, gap=row.f - end + left) for row in trace]
    return gap, rows if gap is not _LOWER else [*rows[:-1], trace[-1]]


_LOWER = Gap(
    "f above the end",
    f"{NO_OPTIMUM} Shown is f minus the f of the last iterate, a lower bound of the gap: nothing is known of "
    "how far the last iterate is from the optimum.",
)


def _estimated(left: float) -> Gap:
    return Gap(
        "estimated gap",
        f"{NO_OPTIMUM} It is estimated: f minus the f of the last iterate, plus g'H⁻¹g/2 = {left:.1e}, which "
        "estimates the gap there from the exact Hessian of all sites.",
    )


def _bounded(left: float) -> Gap:
    return Gap(
        "gap at most",
        f"{NO_OPTIMUM} Shown is an upper bound: f minus the f of the last iterate, plus ‖g‖²/(2 l2) = "
        f"{left:.1e}, which the gap there cannot exceed.",
    )


def _traffic(contacts: Mapping[str, Contact]) -> tuple[SiteTraffic, ...]:
    return tuple(
        SiteTraffic(name, one.uplink_bytes, one.downlink_bytes, one.last, one.refused)
        for name, one in sorted(contacts.items())
    )


def _ratio(summary: Summary) -> str:
    """What the exponential of a coefficient is called; nothing where it is no ratio."""
    name = summary.inference.ratio
    return "" if name == "exp(coef)" else name


def _coefficients(model: Model, summary: Summary) -> Iterator[Coefficient]:
    """The coefficients with their intervals, and what is known of their columns."""
    plan, it = model.plan, summary.inference
    names = summary.names
    table = it.table(summary.level, summary.robust)[: len(names)].tolist()
    for name, (estimate, error, _, p, low, high) in zip(names, table, strict=True):
        column = name if it.coding is None else name.rpartition(" [")[0]  # without a class
        kind = _kind(plan, column)
        deviation = model.deviations.get(column) if kind == "number" else None
        yield Coefficient(name, estimate, error, low, high, p, kind, deviation)


def _kind(plan: DesignPlan, column: str) -> Kind:
    """Whether a coefficient belongs to a number, to a level of a category, or to no column."""
    term = dict(zip(plan.names, plan.terms, strict=True)).get(column)
    if term is None:
        return "constant"
    of_category = any(term == name or term.startswith(f"C({name}") for name in plan.levels)
    return "level" if of_category else "number"
