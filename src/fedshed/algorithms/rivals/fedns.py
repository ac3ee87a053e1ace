"""FedNS: the federated Newton sketch, k random combinations of the rows of each Hessian's square root.

Li, Liu, Wang, "FedNS: a fast sketching Newton-type algorithm for federated learning", AAAI 2024, Algorithm 1,
with Armijo's rule for the step; the sketch is that of Pilanci and Wainwright, SIAM J. Optim. 27 (2017).  With
H_i = R_i'R_i the Master solves with sum_i p_i (S_i R_i)'(S_i R_i) + l2, where E S'S = I, so that the sketched
Hessian is unbiased.  R has at most n rows (one QR decomposition at the agent); where k is no less, R itself
is sent, which is exact.  From k = (n + 1)/2 on a packed Hessian has no more numbers than a sketch.

A sketched Hessian of few rows lies below the Hessian in most directions, so it cannot stand for an agent that
is silent: a round waits for every agent.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import name_key
from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, gradient
from fedshed.algorithms.linesearch import LineSearch, TwoExchange
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Gradient, Matrix, Vector
from fedshed.linalg.rows import Rows, gram
from fedshed.protocol.conversation import Agent, Ask, Flow, Problem, Replies, wrong_type_reason
from fedshed.protocol.messages import Message, Update

FEWEST = 32  # rows of a sketch, unless k says otherwise: with fewer columns there is nothing to save


class LocalSketch(Message, frozen=True):
    """f^(i), g^(i) and S_i R_i: at most k rows whose Gram matrix stands for the Hessian."""

    loss: float
    gradient: Gradient
    rows: Matrix


class Sketched(Struct, frozen=True):
    """One agent's Hessian as its sketch."""

    rows: Matrix

    def matvec(self, s: Vector) -> Vector:
        """(S R)'(S R) s."""
        product: Vector = (self.rows @ s) @ self.rows
        return product


class Gaussian(Struct, frozen=True, tag=True):
    """A sketch with independent normal entries of variance 1/k."""

    seed: int | None = None  # None: the run's

    def __call__(self, R: Matrix, k: int, rng: np.random.Generator) -> Matrix:
        """S R."""
        rows: Matrix = rng.normal(size=(k, len(R))) @ R / np.sqrt(k)
        return rows


class Srht(Struct, frozen=True, tag=True):
    """A sketch of k rows, drawn without replacement, of a Hadamard transform of rows with random signs."""

    seed: int | None = None

    def __call__(self, R: Matrix, k: int, rng: np.random.Generator) -> Matrix:
        """sqrt(m/k) times k rows of W D R: W is orthogonal, m is the power of two that R is padded to."""
        m = 1 << (len(R) - 1).bit_length()
        signs, chosen = rng.choice([-1.0, 1.0], size=len(R)), rng.permutation(m)[:k]
        padded = np.zeros((m, R.shape[1]))
        padded[: len(R)] = signs[:, None] * R
        rows: Matrix = walsh_hadamard(padded)[chosen] * np.sqrt(m / k)
        return rows


Sketch: TypeAlias = Gaussian | Srht


class FedNS(Algorithm[State[Sketched], Update, None, LocalSketch, None], frozen=True, tag=True):
    """FedNS: Newton's method with sketched Hessians.

    theta^{t+1} = theta^t - eta_t [sum_i p_i (S_i R_i)' S_i R_i + diag(l2)]^-1 g_t, where R_i is a square root
    of the Hessian, H_i = R_i' R_i, and S_i is a random matrix that is drawn again in every round.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    k : int, optional
        The number of rows of a sketch, at least 1. Default: n / 2, but at least 32.
    sketch : Srht or Gaussian, default Srht()
        The distribution of S_i: a randomised Hadamard transform, or independent normal entries.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.

    Raises
    ------
    ConfigError
        If `k` is below 1.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.FedNS(k=48)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    k: Annotated[int, Meta(ge=1, lt=2**31)] | None = None  # rows of a sketch; None: n/2, at least 32
    sketch: Sketch = Srht()  # how the random combinations of rows are drawn
    line_search: LineSearch = TwoExchange()  # how eta_t is found

    compare_only: ClassVar[bool] = True
    messages: ClassVar[tuple[type[Message], ...]] = (Update, LocalSketch)
    state = State[Sketched]
    cache = None

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ConfigError(f"k, the number of rows of a FedNS sketch, must be at least 1, not {self.k}")

    def ask(self, problem: Problem, state: State[Sketched]) -> Ask:
        """f_i, g_i and a sketch of H_i at theta^t."""
        return Ask((self.update(state),), dict.fromkeys(problem.agents))

    def absorb(
        self, problem: Problem, state: State[Sketched], replies: Replies[LocalSketch]
    ) -> State[Sketched]:
        """Each agent that answered is known at theta^t, its Hessian by its sketch."""
        known = dict(state.known)
        for i, (local,) in replies.items():
            known[i] = SiteModel(state.theta, local.loss, local.gradient, Sketched(local.rows))
        return replace(state, known=known)

    def step(self, problem: Problem, state: State[Sketched]) -> Flow[tuple[State[Sketched], Info]]:
        """The Newton step of the sketched Hessian, damped by the line search."""
        g = gradient(problem, state)
        H = np.zeros((problem.n, problem.n))
        for i in problem.agents:
            H += problem.p[i] * gram(state.known[i].curvature.rows)
        direction = -DensePlusRidge(H, problem.l2, problem.columns).solve(g)
        step = yield from self.line_search(self, problem, state, g, direction)
        rounds = 1 + self.line_search.rounds
        return step.state, Info(step.eta, rounds, renewed=len(problem.agents), stopped=step.stopped)

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """At most as many rows as asked for."""
        if why := wrong_type_reason(answer, LocalSketch):
            return why
        most = min(self.rows_of(problem.n), problem.n)
        return (
            None if len(answer.rows) <= most else f"it sent a sketch of {len(answer.rows)} rows, not {most}"
        )

    def rows_of(self, n: int) -> int:
        """k; by default as many rows as have the numbers of a packed Hessian, and at least 32."""
        return max((n + 1) // 2, FEWEST) if self.k is None else self.k

    def respond(self, agent: Agent, cache: None, part: Update, own_part: None) -> tuple[None, LocalSketch]:
        """f_i, g_i and the sketch that follows from (seed, agent, t); R itself where k is no less."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        R, k = square_root(point.factor), self.rows_of(agent.objective.dim)
        if k < len(R):
            rng = np.random.default_rng((self.sketch.seed or 0, name_key(agent.name), part.t))
            R = self.sketch(R, k, rng)
        return None, LocalSketch(point.value, point.gradient, R)


def square_root(factor: Rows) -> Matrix:
    """R with R'R = F'F and at most n rows: F itself, or the triangle of its QR decomposition."""
    F = np.asarray(factor if isinstance(factor, np.ndarray) else factor.toarray())
    return np.asarray(np.linalg.qr(F, mode="r")) if len(F) > F.shape[1] else F


def walsh_hadamard(x: Matrix) -> Matrix:
    """W x for the orthogonal Walsh-Hadamard matrix W of 2^j rows, by j butterflies."""
    m, half = len(x), 1
    while half < m:
        pairs = x.reshape(m // (2 * half), 2, half, -1)
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(m, -1)
        half *= 2
    transformed: Matrix = x / np.sqrt(m)
    return transformed
