"""The problems: four on which constants were chosen, and others that played no part in any choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import fedshed
from fedshed import Federation
from fedshed._utils.mathematics import tex
from fedshed.linalg.arrays import Vector
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives

GAP = 1e-11


@dataclass(frozen=True)
class Task:
    """A problem of the list: its data, how rows are dealt, and the partition seeds it is run with."""

    about: str
    dataset: str
    l2: float
    seeds: tuple[int, ...]
    loss: str = "logistic"
    intercept: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The problem in words, as a figure has it."""
        return rf"{self.about}, $\ell_2 = {tex(self.l2)}$"

    def federation(self, seed: int) -> Federation:
        """The rows of each site."""
        if self.dataset == "breast-cancer":
            return breast_cancer(seed)
        return fedshed.datasets.load(self.dataset, **self.options, **_dealt(self.options, seed))


def _dealt(options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The seed of a partition by chance; sites that are what they are have none."""
    return {} if options.get("partition") == "natural" else {"seed": seed}


_TWO = {"partition": "two-class"}
_NATURAL = {"partition": "natural"}
CHOSEN = {
    "F5": Task("Fashion-MNIST, two-class, 28 agents", "fashion-mnist", 1e-5, (0,), options=_TWO),
    "F6": Task("Fashion-MNIST, two-class, 28 agents", "fashion-mnist", 1e-6, (0,), options=_TWO),
    "F8": Task("Fashion-MNIST, two-class, 28 agents", "fashion-mnist", 1e-8, (0,), options=_TWO),
    "W5": Task("w8a, two-class, 62 agents", "w8a", 1e-5, (0,), options=_TWO),
}
_SEEDS, _OTHER_SEEDS = (0, 1, 2), (1, 2, 3)
HELD_OUT = {
    "F5'": Task("F5, other seeds", "fashion-mnist", 1e-5, _OTHER_SEEDS, options=_TWO),
    "F6'": Task("F6, other seeds", "fashion-mnist", 1e-6, _OTHER_SEEDS, options=_TWO),
    "F8'": Task("F8, other seeds", "fashion-mnist", 1e-8, _OTHER_SEEDS, options=_TWO),
    "W5'": Task("W5, other seeds", "w8a", 1e-5, _OTHER_SEEDS, options=_TWO),
    "WI6": Task(
        "w8a, i.i.d., 62 agents", "w8a", 1e-6, _SEEDS, options={"partition": "iid", "agents": 62}
    ),
    "A5": Task(
        "a9a, dirichlet, 40 agents", "a9a", 1e-5, _SEEDS, options={"partition": "dirichlet", "agents": 40}
    ),
    "M5": Task("MNIST, two-class, class 7", "mnist", 1e-5, _SEEDS, options={**_TWO, "target": 7}),
    "F5, class 3": Task(
        "Fashion-MNIST, two-class, class 3", "fashion-mnist", 1e-5, _SEEDS, options={**_TWO, "target": 3}
    ),
    "FI6": Task(
        "Fashion-MNIST, i.i.d., 28 agents", "fashion-mnist", 1e-6, _SEEDS,
        options={"partition": "iid", "agents": 28},
    ),
    "digits": Task("digits, two-class, 20 agents", "digits", 1e-4, _SEEDS, options=_TWO),
    "songs": Task("YearPredictionMSD, 20 agents", "msd", 1e-4, _SEEDS, loss="least-squares"),
    "claims": Task(
        "freMTPL2 claims, 22 regions", "fremtpl2", 1e-5, (0,), loss="poisson", intercept=True,
        options=_NATURAL,
    ),
    "cancer": Task("breast cancer, 5 agents", "breast-cancer", 1e-4, _SEEDS, intercept=True),
    "heart": Task("heart, raw columns", "heart", 0.0, (0,), intercept=True, options=_NATURAL),
}  # fmt: skip
TASKS = {**CHOSEN, **HELD_OUT}
DRAWN = ("F5", "F8", "W5", "WI6", "A5", "M5")
SMALL = ("digits", "songs", "claims", "cancer", "heart")


def breast_cancer(seed: int, agents: int = 5) -> Federation:
    """The breast cancer of scikit-learn with standardised columns, dealt to agents by lot."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(y)), agents)
    return Federation.from_sites({f"site {k}": (X[part], y[part]) for k, part in enumerate(parts)})


@cache
def posed(label: str, seed: int) -> tuple[Federation, Vector, float]:
    """A problem with its pooled optimum and the cost there."""
    task = TASKS[label]
    federation = task.federation(seed)
    theta, f_star = fedshed.optimum(federation, loss=task.loss, l2=task.l2, intercept=task.intercept)
    return federation, theta, f_star


def lower_bound(label: str, seed: int) -> float:
    """KB that the median agent must send whatever the algorithm: n log2(p_i R_i / sqrt(2 eps)) bits.

    Its gradient at the optimum, whitened by the pooled Hessian there, is somewhere in a ball of radius R_i.
    The sum must be known to sqrt(2 eps), so all gradients with one message are in a ball of radius
    sqrt(2 eps) / p_i, and (p_i R_i / sqrt(2 eps))^n such balls are needed to cover it.
    """
    task, (federation, theta, _) = TASKS[label], posed(label, seed)
    objectives = local_objectives(federation, task.loss, intercept=task.intercept)
    shares = {i: one.weight for i, one in sorted(objectives.items())}
    total = sum(shares.values())
    points = {i: objectives[i].at(theta) for i in shares}
    H = sum(shares[i] / total * gram(points[i].factor) for i in shares) + ridge(task, len(theta))
    L = np.linalg.cholesky(H)
    radii = [shares[i] / total * np.linalg.norm(np.linalg.solve(L, points[i].gradient)) for i in shares]
    bits = len(theta) * np.log2(np.maximum(np.array(radii) / np.sqrt(2 * GAP), 1.0))
    return float(np.median(bits)) / 8000


def ridge(task: Task, n: int) -> Any:
    """diag(l2), which leaves the intercept alone."""
    values = np.full(n, task.l2)
    if task.intercept:
        values[-1] = 0.0
    return np.diag(values)
