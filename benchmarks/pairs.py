"""Exchanges of QN-SHED with approximate eigenpairs and with exact ones (docs/performance.md)."""

from __future__ import annotations

import fedshed
from fedshed import Federation
from fedshed.algorithms.qn_shed import QnShed
from fedshed.linalg import Automatic

KINDS = {"approximate": QnShed(), "exact": QnShed(kernel=Automatic())}


def w8a(l2: float) -> dict[str, int]:
    """Problem W, to a gradient norm of 1e-9."""
    data = fedshed.datasets.load("w8a", agents=142, partition="iid")
    return {kind: _exchanges(data, algorithm, l2, tol=1e-9) for kind, algorithm in KINDS.items()}


def fashion_mnist(l2: float, seeds: int = 4) -> dict[str, int]:
    """Fashion-MNIST on 28 sites, to a gap of 1e-11: the sum over partition seeds."""
    total = dict.fromkeys(KINDS, 0)
    for seed in range(seeds):
        data = fedshed.datasets.load("fashion-mnist", agents=28, partition="iid", seed=seed)
        goal = {"tol": 0.0, "f_star": fedshed.optimum(data, l2=l2)[1], "gap_tol": 1e-11}
        for kind, algorithm in KINDS.items():
            total[kind] += _exchanges(data, algorithm, l2, **goal)
    return total


def _exchanges(data: Federation, algorithm: QnShed, l2: float, **goal: float) -> int:
    intercept = "gap_tol" not in goal
    result = fedshed.optimize(data, algorithm=algorithm, l2=l2, intercept=intercept, **goal)
    assert result.converged, result.reason
    return int(result.trace[-1].exchanges)


def main() -> None:
    print("| exchanges of `qn-shed` | approximate pairs | exact pairs |\n|---|---|---|")
    rows = {
        "w8a, 142 sites, l2 = 1e-3": w8a(1e-3),
        "w8a, 142 sites, l2 = 1e-5": w8a(1e-5),
        "Fashion-MNIST, 28 sites, l2 = 1e-8, four seeds together": fashion_mnist(1e-8),
    }
    for name, row in rows.items():
        print(f"| {name} | {row['approximate']} | {row['exact']} |", flush=True)


if __name__ == "__main__":
    main()
