"""What the Master knows about each agent's Hessian in the SHED family, and H_hat computed from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.base import State
from fedshed.linalg import DensePlusRidge, LowRankPlusDiagonal
from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.solve import Factor, cholesky_of
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Eigenpairs, Share

Operator: TypeAlias = LowRankPlusDiagonal | DensePlusRidge


FIELDS = {"needs_anchor": "lost", "renewal_missed": "owed"}  # names in checkpoints of 0.2


class SharedCurvature(Struct, frozen=True, gc=False, rename=FIELDS):
    """What the Master knows about one agent's Hessian of iteration k: q eigenpairs and rho (equation 9).

    H_hat = sum_j (lambda_j - rho) v_j v_j' + rho I; with units r it is multiplied by diag(r) on both sides.
    """

    k: int
    theta_k: Vector
    values: Scalars
    vectors: Matrix
    rho: float
    complete: bool  # no pairs follow: H_hat is the agent's whole Hessian
    t: int  # the last iteration whose pairs are in
    needs_anchor: bool = False  # the agent forgot this Hessian and needs theta_k
    renewal_missed: bool = False  # a renewal was due but did not arrive
    units: Vector | None = None  # r, of pairs of diag(1/r) H diag(1/r)

    @property
    def q(self) -> int:
        """Number of eigenpairs held."""
        return len(self.values)

    def matvec(self, s: Vector) -> Vector:
        """H_hat s."""
        s = s if self.units is None else self.units * s
        product: Vector = self.rho * s + (self.excess * (self.vectors @ s)) @ self.vectors
        return product if self.units is None else self.units * product

    @property
    def excess(self) -> Vector:
        """lambda_j - rho, at least 0."""
        return np.maximum(self.values - self.rho, 0.0)

    def first(self, q: int) -> SharedCurvature:
        """The same with only the first q pairs."""
        rho = float(self.values[q]) if q < self.q else self.rho
        return replace(self, values=self.values[:q], vectors=self.vectors[:q], rho=rho)

    def add_pairs(self, pairs: Eigenpairs, t: int) -> SharedCurvature:
        """The same with the pairs of a reply added; a repeated reply changes nothing."""
        new = slice(self.q - pairs.start, None)
        anew = pairs.k == self.k and pairs.start == 0 and len(pairs.values) >= self.q
        if anew:  # all of them: no mixture
            return replace(self, values=pairs.values, vectors=pairs.vectors, rho=pairs.rho,
                           complete=pairs.last, t=t, needs_anchor=False)  # fmt: skip
        if pairs.k != self.k or pairs.start > self.q or pairs.start + len(pairs.values) < self.q:
            return replace(self, needs_anchor=True)  # another Hessian, a hole, or an answer from the past
        return replace(
            self,
            values=np.concatenate([self.values, pairs.values[new]]),
            vectors=np.concatenate([self.vectors, pairs.vectors[new]]),
            rho=pairs.rho,
            complete=pairs.last,
            t=t,
            needs_anchor=False,
        )


def mean_hessian(problem: Problem, state: State[SharedCurvature]) -> LowRankPlusDiagonal:
    """H_hat_t = sum_i p_i H_hat_t^(i) + diag(l2) (equation 17)."""
    held = [state.known[i].curvature for i in problem.agents]
    rows, diagonal = stack_eigenpairs(problem, held)
    return LowRankPlusDiagonal(
        rows, diagonal, problem.columns, preconditioner=lambda: _preconditioner(problem, held)
    )


def stack_eigenpairs(problem: Problem, held: Sequence[SharedCurvature]) -> tuple[Matrix, Vector]:
    """U and d with H_hat = U'U + diag(d)."""
    weights = [problem.p[i] for i in problem.agents]
    rows = np.concatenate([h.vectors for h in held])
    rows *= np.concatenate([np.sqrt(p * h.excess) for p, h in zip(weights, held, strict=True)])[:, None]
    rho = sum(p * h.rho for p, h in zip(weights, held, strict=True))
    if (units := held[0].units) is not None:
        rows *= units
        return rows, rho * np.square(units) + problem.l2
    return rows, rho + problem.l2


def _preconditioner(problem: Problem, held: Sequence[SharedCurvature]) -> Factor:
    """The factor of H_hat with each agent's first 1, 2, 4, 8, ... pairs, until that number doubles.

    It depends on the state alone, so a resumed run uses the same one.
    """
    counts = [1 << h.q.bit_length() - 1 if h.q else 0 for h in held]
    key = tuple((h.k, q) for h, q in zip(held, counts, strict=True))
    if problem.memo.get("preconditioner", (None,))[0] != key:
        first = [h.first(q) for h, q in zip(held, counts, strict=True)]
        problem.memo["preconditioner"] = key, cholesky_of(*stack_eigenpairs(problem, first))
    factor: Factor = problem.memo["preconditioner"][1]
    return factor


def curvature_after_reply(
    old: SharedCurvature | None, share: Share, pairs: Eigenpairs | None, state: State[SharedCurvature]
) -> SharedCurvature:
    """The Master's copy after a reply to `share`."""
    if pairs is not None and pairs.k == state.t == share.k and pairs.start == 0:
        return SharedCurvature(
            pairs.k, state.theta, pairs.values, pairs.vectors, pairs.rho, pairs.last, state.t
        )
    assert old is not None  # the first answer has pairs: see `refusal`
    if pairs is None:
        return replace(
            old,
            needs_anchor=old.needs_anchor or share.more,
            renewal_missed=old.renewal_missed or (share.more and share.k == state.t),
        )
    return old.add_pairs(pairs, state.t)
