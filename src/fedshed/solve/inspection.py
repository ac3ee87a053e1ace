"""The exchange for statistics: each site's exact score, information and fit at two points."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Matrix, Packed, Scalars, Vector, pack, unpack
from fedshed.linalg.rows import gram
from fedshed.linalg.solve import unit_diagonal
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, answers_of, everyone
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import FINE, GRADIENT, HESSIAN, MAYBE, MEAN, TOTAL, Numbers, Rule, Scaling, flags
from fedshed.solve.inspection_checks import disagreement


class Inspect(Message, frozen=True):
    """The site's statistics at theta, without the ridge."""

    theta: Vector


class _Weighing(Struct, frozen=True):
    """Whether rows have weights at any site, and whether all of these are whole numbers."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """Two flags."""
        return None, flags(bool(message.weighing), message.weighing == "fractions")

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """The word for both."""
        weighted, fractions = totals == inf
        return "fractions" if fractions else "counts" if weighted else ""


class _Precise(Struct, frozen=True):
    """The total constant where weights are precisions: that of a site without weights is its `constant`."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """The number, whose flag is raised where it is unknown, and whether there are weights."""
        value = message.precise if message.weighing else message.constant
        weighted = flags(bool(message.weighing)).values
        return None, Numbers(np.append(inf if value is None else value, weighted), apart=True)

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """None where no site has weights, or one does not know it."""
        return float(totals[0]) if totals[0] < inf and totals[1] == inf else None


class Inspected(Message, frozen=True):
    """Totals over a site's rows; loss, gradient, information are means, to be multiplied by its weight.

    `observed` is the Hessian where it is not the expected information; `pearson` is None where infinite;
    `moments` are the sums from which the null model starts; `weighing` and,
    where there are weights, `precise` are as in `Fit`.
    """

    rows: int
    weight: float
    loss: float
    deviance: float
    pearson: float | None
    constant: float
    gradient: Vector
    information: Packed
    observed: Packed | None
    moments: Scalars
    weighing: Literal["", "counts", "fractions"] = ""
    precise: float | None = None

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "rows": TOTAL, "weight": TOTAL, "loss": MEAN, "deviance": TOTAL, "pearson": MAYBE, "constant": TOTAL,
        "gradient": GRADIENT, "information": HESSIAN, "observed": HESSIAN, "moments": FINE,
        "weighing": _Weighing(), "precise": _Precise(),
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows < 1 or self.weight <= 0:
            raise ValueError(f"a site has rows and a weight, not {self.rows} and {self.weight}")

    @property
    def hessian(self) -> Packed:
        """The Hessian of the mean loss."""
        return self.information if self.observed is None else self.observed


class Inspection(Conversation, frozen=True, tag=True):
    """One exchange at the estimate that changes nothing: every site must answer, and exactly."""

    messages: ClassVar[tuple[type[Message], ...]] = (Inspect, Inspected)
    requests = ((Inspect, None),)

    def flow(self, problem: Problem, theta: Vector) -> Flow[dict[AgentId, Inspected]]:
        """Each site's answer at theta, in sorted order."""
        replies = yield from everyone([Inspect(theta)], problem)
        answers = answers_of(replies, Inspected, Inspect)
        for i, answer in answers.items():
            if why := disagreement(problem, i, answer):
                raise ProtocolError(
                    f"the answer of site {i!r} is not plausible: {why}; check its table and its software"
                )
        return answers

    def respond(self, agent: Agent, cache: None, part: Inspect, own_part: Any) -> tuple[None, Inspected]:
        """The exact statistics at theta, never those of an approximation."""
        point = agent.objective.at(part.theta)
        fit, factor, information = point.fit, point.factor, point.information
        return None, Inspected(
            rows=fit.rows,
            weight=agent.objective.weight,
            loss=point.value,
            deviance=fit.deviance,
            pearson=fit.pearson if isfinite(fit.pearson) else None,
            constant=fit.constant,
            gradient=point.gradient,
            information=pack(gram(information)),
            observed=None if information is factor else pack(gram(factor)),
            moments=agent.objective.null_moments(),
            weighing=fit.weighing,
            precise=fit.precise if fit.weighing else None,
        )


def newton_step(problem: Problem, theta: Vector, sites: Mapping[AgentId, Inspected]) -> tuple[Matrix, Vector]:
    """The exact Hessian H of the cost and H^-1 g, from what the sites said at theta.

    In units where the diagonal of H is 1, and without directions in which H is 0 to rounding; with an
    absolute penalty the step is along the coefficients without one.
    """
    W, n = sum(site.weight for site in sites.values()), problem.n
    H, g = np.diag(problem.l2), problem.l2 * theta
    for site in sites.values():
        H = H + site.weight / W * unpack(site.hessian, n)
        g = g + site.weight / W * site.gradient
    scale, unit = unit_diagonal(H)
    if problem.l1 is not None:
        unit, g = unit * np.outer(problem.l1 == 0, problem.l1 == 0), np.where(problem.l1 == 0, g, 0.0)
    step = scale * np.linalg.lstsq(unit, scale * g, rcond=n * np.finfo(float).eps)[0]
    return H, np.asarray(step)
