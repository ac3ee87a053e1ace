"""The federations of the experiments: the library's data sets, and small embedded ones for the quick form."""

from __future__ import annotations

import numpy as np

from fedshed.datasets import load as load_dataset
from fedshed.experiments.plan import Problem
from fedshed.tables import Federation


def load(problem: Problem) -> Federation:
    """The rows of a problem, dealt to its agents."""
    if problem.dataset == "digits-least-squares":
        return _digits_least_squares(problem)
    return load_dataset(
        problem.dataset,
        agents=problem.agents,
        partition=problem.partition,
        seed=problem.seed,
        target=problem.target,
        preprocessing=problem.preprocessing,
    )


def _digits_least_squares(problem: Problem) -> Federation:
    """The digit itself, rescaled to [0, 1], as a regression target; one digit an agent if not i.i.d."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    agents = np.random.default_rng(problem.seed).permutation(len(y)) % 10
    sites = agents if problem.partition == "iid" else y
    return Federation.from_arrays(X / 16.0, y / 9.0, sites=[f"agent-{i}" for i in sites], name="digits")
