"""Q-SHED: Fib-SHED whose eigenvectors travel in few bits, which later rounds refine.

After Dal Fabbro, Rossi, Schenato, Dey, "Q-SHED: distributed optimization at the edge via Hessian eigenvectors
quantization", IEEE ICC 2023 (arXiv 2305.10852).  Of that paper only the abstract and the introduction were at
hand: bits are allocated to incrementally quantised eigenvectors, with a total given.  The allocation here is
our derivation (`q_shed_coding`), and so are the planes of bits and the message; `q-shed-equal` is the naive
variant.

The Master says how many bits of each vector it has, so an agent needs no memory of what it sent: its
eigenvectors are a cache, and what was lost is asked for again.  Rounded vectors are made unit but are not
orthogonal; H_hat stays a sum of positive semidefinite terms plus rho + l2, and Armijo's rule keeps descent.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import State
from fedshed.algorithms.eigenpair_cache import Spectrum, recall_spectrum
from fedshed.algorithms.rivals.q_shed_coding import (
    MOST_BITS,
    Allocation,
    Counts,
    WaterFilling,
    plane_bytes,
    planes,
    refine_cells,
    scales_of,
    unit_vectors,
    upright,
)
from fedshed.algorithms.shed import Shed
from fedshed.algorithms.shed_curvature import SharedCurvature, stack_eigenpairs
from fedshed.linalg import LowRankPlusDiagonal
from fedshed.linalg.arrays import Gradient, Matrix, Scalars, Vector
from fedshed.protocol.conversation import Agent, AgentId, Problem, wrong_type_reason
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message, Update
from fedshed.protocol.precision import EntropyCoded, Precision


class Refine(Message, frozen=True):
    """How many bits of each eigenvector of an agent's Hessian of iteration k the Master holds."""

    k: Count
    bits: bytes
    more: bool
    anchor: Vector | None

    def __post_init__(self) -> None:
        if self.k < 1 or not all(1 <= b <= MOST_BITS for b in self.bits):
            raise ValueError(f"no Hessian has k={self.k} and vectors of {list(self.bits[:9])} bits")


class Refinement(Message, frozen=True):
    """More bits of the eigenvectors of the Hessian of iteration k: from `start` to `bits` of each."""

    k: Count
    start: bytes
    bits: bytes
    values: Scalars  # of vectors that begin, as their scales
    scales: Scalars
    code: bytes
    rho: float
    last: bool  # nothing follows

    def __post_init__(self) -> None:
        super().__post_init__()
        new = len(self.bits) - len(self.start)
        if not len(self.values) == len(self.scales) == new:
            raise ValueError(f"{len(self.values)} values and {len(self.scales)} scales for {new} new vectors")
        if not all(a <= b <= MOST_BITS and b for a, b in zip(self.start, self.bits, strict=False)):
            raise ValueError("bits of a vector may only grow, up to 16")
        if (
            not all(1 <= b <= MOST_BITS for b in self.bits[len(self.start) :])
            or self.scales.min(initial=0) < 0
        ):
            raise ValueError("a new vector needs from 1 to 16 bits, and a scale of at least 0")
        if self.rho < 0 or (np.diff(np.append(self.values, self.rho)) > 1e-9 * self.rho).any():
            raise ValueError("eigenvalues must decrease and end with a rho of at least 0")

    @property
    def planes(self) -> int:
        """Planes of bits in the code."""
        return sum(self.bits) - sum(self.start)


class LocalRefined(Message, frozen=True):
    """f^(i), g^(i) and more bits of eigenvectors, if any."""

    loss: float
    gradient: Gradient
    pairs: Refinement | None

    def __post_init__(self) -> None:
        super().__post_init__()
        n, pairs = len(self.gradient), self.pairs
        if pairs is not None and len(pairs.bits) > max(n - 1, 0):
            raise ValueError(f"{len(pairs.bits)} eigenpairs are more than n - 1 = {n - 1}")
        if pairs is not None and len(pairs.code) != pairs.planes * plane_bytes(n):
            raise ValueError(f"{len(pairs.code)} bytes are not {pairs.planes} planes of {n} bits")


class RefinedCurvature(SharedCurvature, frozen=True, kw_only=True):
    """What the Master holds of one agent's Hessian: each vector by the cells of its entries."""

    cells: Matrix
    scales: Scalars
    bits: bytes

    def add_pairs(self, pairs: Any, t: int) -> RefinedCurvature:
        """With the bits of a reply; one that starts from other bits changes nothing."""
        if pairs.k != self.k or pairs.start != self.bits:
            return replace(self, needs_anchor=True)
        new = len(pairs.values)
        cells = np.concatenate([self.cells, np.zeros((new, self.cells.shape[1]))])
        old = np.append(_counts(self.bits), np.zeros(new, dtype=np.int64))
        cells = refine_cells(cells, pairs.code, old, _counts(pairs.bits))
        scales = np.append(self.scales, pairs.scales)
        return replace(
            self,
            values=np.append(self.values, pairs.values),
            vectors=unit_vectors(cells, scales, _counts(pairs.bits)),
            cells=cells,
            scales=scales,
            bits=pairs.bits,
            rho=pairs.rho,
            complete=pairs.last,
            t=t,
            needs_anchor=False,
        )


class QShed(Shed, frozen=True, tag=True):
    """Q-SHED: Fib-SHED whose eigenvectors travel in few bits, which later rounds refine.

    Per round an agent sends `bits` bits per entry for each eigenpair that its link carries.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default EntropyCoded()
        How precisely gradients travel.
    renewal : Renewal, default Fibonacci()
        At which iterations an agent computes a new Hessian.
    channel : Channel, default Constant(1)
        How many eigenpairs an agent's link carries per round.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.
    rho : NextEigenvalue, Midpoint or TailMean, default NextEigenvalue()
        The number that stands for the eigenvalues that have not been sent.
    kernel : Kernel, default Automatic()
        How an agent computes its eigenpairs.
    bits : int, default 64
        Bits per entry that stand for one eigenpair, from 1 to 1024; a float64 number has 64.
    allocation : WaterFilling or EqualBits, default WaterFilling()
        How the bits are shared among the eigenvectors.

    Raises
    ------
    ConfigError
        If `bits` is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.QShed(bits=32)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    precision: Precision = EntropyCoded()  # of gradients
    bits: Annotated[int, Meta(ge=1, le=1024)] = 64  # an entry, for each eigenpair: a float64 has 64
    allocation: Allocation = WaterFilling()  # how bits are divided among eigenvectors

    compare_only: ClassVar[bool] = True
    messages: ClassVar[tuple[type[Message], ...]] = (Update, Refine, LocalRefined)
    requests = ((Update, Refine),)
    state: ClassVar[Any] = State[RefinedCurvature]

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 1024:
            raise ConfigError(f"bits of QShed must be from 1 to 1024 per eigenpair, not {self.bits}")

    # --- at the Master ---------------------------------------------------------------------------

    def update_held_curvature(
        self, held: Any, share: Any, pairs: Any, state: State[SharedCurvature]
    ) -> SharedCurvature:
        """The Master's copy after a reply: a new one at a renewal, else one with more bits."""
        if pairs is None or not (pairs.k == state.t == share.k and not pairs.start):
            return super().update_held_curvature(held, share, pairs, state)
        n, none = len(state.theta), np.zeros(0)
        empty = np.zeros((0, n))
        fresh = RefinedCurvature(
            pairs.k, state.theta, none, empty, pairs.rho, False, state.t, cells=empty, scales=none, bits=b""
        )
        return fresh.add_pairs(pairs, state.t)

    def approximate_hessian(self, problem: Problem, state: State[SharedCurvature]) -> LowRankPlusDiagonal:
        """H_hat_t; without a lasting preconditioner, for vectors held change as bits arrive."""
        held = [state.known[i].curvature for i in problem.agents]
        return LowRankPlusDiagonal(*stack_eigenpairs(problem, held), problem.columns)

    def exact_curvature(self, problem: Problem, state: State[SharedCurvature]) -> None:
        """None: no vector is exact."""
        return None

    def refusal(self, problem: Problem, part: Update, own_part: Any, answer: Any) -> str | None:
        """Bits must be those asked for: of the Hessian of iteration k, after the bits held."""
        if why := wrong_type_reason(answer, LocalRefined):
            return why
        pairs = answer.pairs
        if pairs is None:
            first = own_part.more and own_part.k == part.t
            return "it sent nothing of its Hessian when it was first asked for it" if first else None
        if not own_part.more or (pairs.k, pairs.start) != (own_part.k, own_part.bits):
            asked = f"more than {sum(own_part.bits)} of k={own_part.k}" if own_part.more else "none"
            return f"it sent bits beyond {sum(pairs.start)} of k={pairs.k}; asked for were {asked}"
        return None

    def share(self, problem: Problem, state: State[Any], i: AgentId) -> Refine:
        """As SHED, with the bits of each vector in place of how many vectors there are."""
        share = super().share(problem, state, i)
        bits = state.known[i].curvature.bits if share.have else b""
        return Refine(share.k, bits, share.more, share.anchor)

    # --- at an agent -----------------------------------------------------------------------------

    def respond(
        self, agent: Agent, cache: Spectrum | None, part: Update, own_part: Refine
    ) -> tuple[Spectrum | None, LocalRefined]:
        """The cost, the gradient, and as many bits of eigenvectors as the link carries."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        pairs = None
        if own_part.more:
            theta_k = part.theta if own_part.k == part.t else own_part.anchor
            cache = recall_spectrum(self, agent, cache, own_part.k, theta_k, agent.objective.dim)
            total = self.bits * self.pairs_per_round(agent, part.t)
            pairs = None if cache is None else self._refinement(cache, own_part, total)
        return cache, LocalRefined(point.value, point.gradient, pairs)

    def _refinement(self, spectrum: Spectrum, own_part: Refine, total: int) -> Refinement:
        """What `total` more bits an entry are spent on."""
        pairs, old = spectrum.pairs, _counts(own_part.bits)
        if len(old) > pairs.q:
            raise ValueError(f"{len(old)} eigenvectors cannot be refined: there are {pairs.q}")
        values = pairs.spectrum
        new = self.allocation(values, old, total, pairs.q)
        q, begun = len(new), len(old)
        vectors = upright(pairs.vectors[:q])
        code = planes(vectors, np.append(old, np.zeros(q - begun, dtype=np.int64)), new)
        last = bool(pairs.complete and q == pairs.q and (new >= self.allocation.finest).all())
        return Refinement(
            own_part.k,
            own_part.bits,
            new.astype(np.uint8).tobytes(),
            values[begun:q],
            scales_of(vectors[begun:]),
            code,
            float(values[q]),
            last,
        )


def _counts(bits: bytes) -> Counts:
    """Bits of each vector as numbers."""
    return np.frombuffer(bits, np.uint8).astype(np.int64)
