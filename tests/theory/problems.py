"""Random problems, and runs replayed so that a test sees every state of the Master.

Everything a theorem is compared with (f, g, H, spectra, theta*, L, K) is computed here from the pooled rows,
so that neither the weights p_i nor the split between agents and Master is taken over from the library.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec import Struct

from fedshed import datasets, optimum
from fedshed.algorithms.base import advance, gradient
from fedshed.algorithms.channels import Constant
from fedshed.algorithms.linesearch import FullStep, Step
from fedshed.algorithms.renewal import Once
from fedshed.algorithms.rho import Midpoint, RhoRule
from fedshed.algorithms.shed import Shed
from fedshed.algorithms.shed_curvature import SharedCurvature, mean_hessian
from fedshed.exchange import InProcess
from fedshed.exchange.site import Site
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Problem
from fedshed.solve.engine import Traffic, Wire
from fedshed.tables import Federation

EPS = float(np.finfo(float).eps)
SLACK = 4 * EPS  # what the line search forgives, times max(1, |f|) (docs/paper.md 9)
norm = np.linalg.norm


def examples(count: int) -> settings:
    """Hypothesis settings: the same examples in every run, no deadline on a shared machine."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, suppress_health_check=quiet)


# --- the problem of a theorem ----------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """min (1/N) sum_j l_j + l2 |theta|^2 / 2 over the rows of a federation, and the paper's constants."""

    federation: Federation
    loss: str
    l2: float

    @property
    def n(self) -> int:
        return self.federation.dim

    @cached_property
    def N(self) -> int:
        return sum(self.federation.rows.values())

    @cached_property
    def p(self) -> dict[str, float]:
        return {i: rows / self.N for i, rows in self.federation.rows.items()}

    @cached_property
    def pooled(self) -> tuple[Matrix, Vector]:
        table = self.federation.pooled()
        return table.X, table.y.astype(float)

    @cached_property
    def theta_star(self) -> Vector:
        return optimum(self.federation, loss=self.loss, l2=self.l2)[0]

    def mean(self, of: Callable[[str], Any]) -> Any:
        """sum_i p_i of(i)."""
        return sum(p * of(i) for i, p in self.p.items())

    def f(self, theta: Vector) -> float:
        X, y = self.pooled
        z = X @ theta
        losses = np.logaddexp(0, -y * z) if self.loss == "logistic" else (z - y) ** 2 / 2
        return float(losses.mean() + self.l2 * theta @ theta / 2)

    def gradient(self, theta: Vector) -> Vector:
        X, y = self.pooled
        z = X @ theta
        slopes = -y / (1 + np.exp(np.minimum(y * z, 700))) if self.loss == "logistic" else z - y
        return X.T @ slopes / self.N + self.l2 * theta

    def hessian(self, theta: Vector, site: str | None = None) -> Matrix:
        """H(theta), or H^(i)(theta) of one site, both with the ridge."""
        X = self.pooled[0] if site is None else self.federation.tables[site].X
        weights = np.ones(len(X))
        if self.loss == "logistic":
            weights = np.exp(-np.logaddexp(0, X @ theta) - np.logaddexp(0, -(X @ theta)))
        return (X.T * weights) @ X / len(X) + self.l2 * np.eye(self.n)

    def eigenvalues(self, site: str, theta: Vector) -> Vector:
        """lambda_1 >= ... >= lambda_n of H^(i)(theta)."""
        return np.linalg.eigvalsh(self.hessian(theta, site))[::-1]

    @cached_property
    def L(self) -> float:
        """Lipschitz constant of H: |l'''| <= 1/(6 sqrt 3) for the logistic loss, 0 for least squares."""
        cubes = norm(self.pooled[0], axis=1) ** 3
        return float(cubes.mean() / (6 * np.sqrt(3))) if self.loss == "logistic" else 0.0

    def smoothness(self, site: str | None = None) -> float:
        """K of f, or K_i of f^(i): l'' is at most 1/4 (logistic) or 1, both attained at theta = 0."""
        return float(np.linalg.eigvalsh(self.hessian(np.zeros(self.n), site))[-1])

    @cached_property
    def K(self) -> float:
        return self.smoothness()

    @cached_property
    def K_bar(self) -> float:
        """sum_i p_i K_i."""
        return self.mean(self.smoothness)

    @cached_property
    def kappa_bar(self) -> float:
        """sum_i p_i kappa_i: only the ridge is left of the logistic loss far away."""
        lowest = self.mean(lambda i: self.eigenvalues(i, np.zeros(self.n))[-1])
        return self.l2 if self.loss == "logistic" else float(lowest)

    def rounding(self, *thetas: Vector) -> float:
        """How far rounding can move theta: error of g (sums of N terms) times 1/kappa."""
        y = self.pooled[1]
        scale = max(norm(theta) for theta in (self.theta_star, *thetas)) + norm(y) / np.sqrt(self.N * self.K)
        return 16 * (self.N + self.n) * EPS * (self.K_bar / self.kappa_bar) * float(scale)

    def cost_rounding(self, theta: Vector) -> float:
        """How far rounding, and the slack of the line search, can move f."""
        size = abs(self.f(theta)) + self.K * (theta @ theta) + np.mean(self.pooled[1] ** 2)
        return SLACK * max(1.0, abs(self.f(theta))) + 16 * (self.N + self.n) * EPS * float(size)


# --- a run, seen from within -----------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """Iteration t as the Master saw it, with the whole spectra of the Hessians it used."""

    instance: Instance
    t: int
    theta: Vector
    g: Vector
    held: Mapping[str, SharedCurvature]
    lambdas: Mapping[str, Vector]  # of H^(i)(theta^k), recomputed here
    H_hat: Matrix
    eta: float
    after: Vector

    @property
    def k(self) -> int:
        (k,) = {held.k for held in self.held.values()}
        return k

    @property
    def theta_k(self) -> Vector:
        return next(iter(self.held.values())).theta_k

    @property
    def q(self) -> dict[str, int]:
        return {i: held.q for i, held in self.held.items()}

    @property
    def rho(self) -> dict[str, float]:
        """rho_t^(i) as the Master holds it: the eigenvalues of G_i, and with them rho, shift by l2."""
        return {i: held.rho + self.instance.l2 for i, held in self.held.items()}

    def next_eigenvalue(self, i: str) -> float:
        """lambda_{q+1} of agent i, which Algorithm 4 takes for rho."""
        return float(self.lambdas[i][self.q[i]])

    @property
    def rho_bar(self) -> float:
        """mean lambda_{q+1}."""
        return float(self.instance.mean(self.next_eigenvalue))

    @property
    def lambda_n_bar(self) -> float:
        return float(self.instance.mean(lambda i: self.lambdas[i][-1]))

    @property
    def c(self) -> float:
        """1 - mean lambda_n / mean rho_t with rho of Algorithm 4."""
        return 1 - self.lambda_n_bar / self.rho_bar

    @property
    def c_star(self) -> float:
        """1 - mean lambda_n / mean rho_t with rho* = (lambda_{q+1} + lambda_n) / 2 of Algorithm 1."""
        return 1 - 2 * self.lambda_n_bar / (self.rho_bar + self.lambda_n_bar)

    @property
    def direction(self) -> Vector:
        return np.linalg.solve(self.H_hat, self.g)

    def error(self, after: bool = False) -> float:
        return float(norm((self.after if after else self.theta) - self.instance.theta_star))


def replay(instance: Instance, algorithm: Shed, theta: Vector, iterations: int) -> list[Round]:
    """The rounds of a run of the library; one with eta = 0 is the last."""
    return list(islice(rounds(instance, algorithm, theta), iterations))


def rounds(instance: Instance, algorithm: Shed, theta: Vector) -> Iterator[Round]:
    """Round after round over the library's own engine, bytes included."""
    objectives = local_objectives(instance.federation, instance.loss)
    weights = {i: objective.weight for i, objective in objectives.items()}
    problem = Problem(np.full(instance.n, instance.l2), weights, instance.loss, instance.federation.columns)
    sites = {i: Site(i, objective, algorithm) for i, objective in objectives.items()}
    wire = Wire(algorithm, problem, InProcess(sites), Traffic())
    state = algorithm.start(problem, np.array(theta, dtype=float))
    lambdas: dict[str, Vector] = {}
    eta = 1.0
    while eta > 0:
        state = wire.run_conversation(algorithm.observe(problem, state))
        held = {i: state.known[i].curvature for i in problem.agents}
        fresh = {i: instance.eigenvalues(i, held[i].theta_k) for i in held if held[i].k == state.t}
        lambdas = {**lambdas, **fresh}
        operator = mean_hessian(problem, state)
        H_hat = np.array([operator.matvec(e) for e in np.eye(instance.n)])
        after, info = wire.run_conversation(algorithm.step(problem, state))
        eta = info.eta
        g = gradient(problem, state)
        yield Round(instance, state.t, state.theta, g, held, lambdas, H_hat, eta, after.theta)
        state = after


class FixedStep(Struct, frozen=True):
    """eta as given, without asking."""

    eta: float
    rounds: ClassVar[int] = 0

    def __call__(
        self, algorithm: Any, problem: Any, state: Any, g: Vector, direction: Vector
    ) -> Generator[Any, Any, Step]:
        return Step(self.eta, advance(state, state.theta + self.eta * direction, g))
        yield


class FixedRho(RhoRule, frozen=True):
    """rho as given."""

    rho: float

    def __call__(self, values: Vector, q: int) -> float:
        return float(self.rho)


class Between(RhoRule, frozen=True):
    """rho = lambda_n + share (lambda_{q+1} - lambda_n)."""

    share: float

    def __call__(self, values: Vector, q: int) -> float:
        return float(values[-1] + self.share * (values[q] - values[-1]))


def shed_ls(channel: Any = Constant(1), renewal: Any = Once(), rho: Any = Midpoint()) -> Shed:  # noqa: B008
    """Algorithm 1 (3 with periodic renewals)."""
    return Shed(renewal=renewal, channel=channel, line_search=FullStep(), rho=rho)


# --- problems --------------------------------------------------------------------------------------


@st.composite
def instances(
    draw: st.DrawFn,
    loss: str,
    *,
    n: tuple[int, int] = (2, 6),
    agents: tuple[int, int] = (2, 4),
    full_rank: bool = False,
    l2: tuple[float, ...] = (1e-3, 1e-2, 1e-1),
) -> Instance:
    """Sites of very unequal size and scale, some with fewer rows than columns unless `full_rank`."""
    dim = draw(st.integers(*n), label="n")
    smallest = dim + 3 if full_rank else 1
    rows = draw(
        st.lists(st.integers(smallest, 6 * dim), min_size=agents[0], max_size=agents[1]), label="rows"
    )
    decay = draw(st.sampled_from([1.0, 0.5, 0.2]), label="decay")
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    scales = decay ** np.linspace(0, 2, dim)
    truth = rng.standard_normal(dim)
    X = [rng.standard_normal((N_i, dim)) * scales * rng.uniform(0.5, 2) for N_i in rows]
    y = [X_i @ truth + 0.5 * rng.standard_normal(len(X_i)) for X_i in X]
    if loss == "logistic":
        y = [np.where(y_i > 0, 1.0, -1.0) for y_i in y]
        y[0][0], y[-1][-1] = 1.0, -1.0  # two classes, whatever was drawn
    sites = {f"site-{i}": pair for i, pair in enumerate(zip(X, y, strict=True))}
    return Instance(Federation.from_sites(sites), loss, draw(st.sampled_from(l2), label="l2"))


def starts(scale: float = 1.0) -> st.SearchStrategy[Callable[[Instance], Vector]]:
    """A start at a random place around 0."""

    def at(seed: int) -> Callable[[Instance], Vector]:
        return lambda instance: scale * np.random.default_rng(seed).standard_normal(instance.n)

    return st.integers(0, 2**32 - 1).map(at)


def unit(seed: int, n: int) -> Vector:
    direction = np.random.default_rng(seed).standard_normal(n)
    return direction / norm(direction)


def axes(
    eigenvalues: Any,
    copies: Any,
    *,
    theta: Any = None,
    loss: str = "least-squares",
    l2: float = 0.0,
) -> Instance:
    """Agents whose Hessians share their eigenvectors, the axes: bounds that are sums of norms are attained.

    Agent i holds 4 n copies_i rows, each on one axis; X_i'X_i/N_i = diag(eigenvalues_i), times 1/4 for the
    logistic loss at 0, whose labels are 3 : 1 on every axis.
    """
    values = np.atleast_2d(np.array(eigenvalues, dtype=float))
    n = values.shape[1]
    sites = {}
    for i, (lambdas, count) in enumerate(zip(values, copies, strict=True)):
        X = np.repeat(np.diag(np.sqrt(n * lambdas)), 4 * count, axis=0)
        y = X @ (np.zeros(n) if theta is None else np.asarray(theta, dtype=float))
        labels = np.tile([1.0, 1.0, 1.0, -1.0], n * count)
        sites[f"site-{i}"] = (X, y if loss == "least-squares" else labels)
    return Instance(Federation.from_sites(sites), loss, l2)


def digits(loss: str, agents: int = 5, l2: float = 1e-2) -> Instance:
    """Handwritten digits, two classes an agent, site i with 1/(i + 1) of its rows: unequal, n = 64."""
    tables = datasets.load("digits", agents=agents).tables
    sites = {
        site: (table.X[:: i + 1], table.y[:: i + 1]) for i, (site, table) in enumerate(sorted(tables.items()))
    }
    return Instance(Federation.from_sites(sites, name="digits"), loss, l2)
