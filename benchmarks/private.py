"""Private fits on simulated studies: how far they are from the pooled fit, and whether intervals cover.

`python -m benchmarks private [--json]` prints, for each setting, the median of |private - pooled| over
coefficients and studies in standard errors of the pooled fit, its root mean square and what `predict` said of
it, the coverage of 95 % intervals of the true coefficients, and the mean bias in standard errors, which
clipping brings where it binds.  The constants of the method were chosen on other rows, sizes and effects.
The noise is drawn exactly, as at a site, and the sums are those of the same integers that are masked in
protected mode.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from math import ldexp
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from scipy.special import expit

from fedshed.linalg.arrays import Vector
from fedshed.linalg.rows import gram
from fedshed.objectives.logistic import Logistic
from fedshed.privacy.discrete_gaussian import FRACTION, Bits, noise
from fedshed.privacy.private import Privacy
from fedshed.protocol.conversation import Agent
from fedshed.protocol.messages import Message
from fedshed.solve.private_fit import PrivateFit, private_fit
from fedshed.solve.private_plan import PrivatePlan, predict

DELTA, SITES = 1e-6, 10


class Setting(Struct, frozen=True):
    """A kind of study: its size, its promise, and its rows."""

    name: str
    rows: int
    columns: int
    epsilon: float
    clip: float
    studies: int
    kind: str = "mixed"  # columns: mixed (binary and normal, cut off), normal
    effect: float = 1.0  # standard deviation of the margin


SETTINGS = (
    Setting("the target", 10_000, 10, 4.0, 4.2, 200),
    Setting("clipping binds on half of the rows", 10_000, 10, 4.0, 3.1, 40, "normal"),
    Setting("strong effects", 10_000, 10, 4.0, 4.2, 40, effect=2.0),
    Setting("fewer rows", 3_000, 4, 4.0, 2.8, 60),
    Setting("a smaller epsilon", 30_000, 10, 1.0, 4.2, 20),
    Setting("more columns", 20_000, 25, 4.0, 6.4, 20),
    Setting("more rows", 100_000, 30, 4.0, 7.0, 8),
)


def columns_of(rng: np.random.Generator, setting: Setting) -> np.ndarray:
    """Columns with mean 0 and variance 1: half binary, half normal and cut off at 2; or all normal."""
    U = rng.normal(size=(setting.rows, setting.columns))
    if setting.kind == "normal":
        return U
    half = setting.columns // 2
    U[:, half:] = np.clip(U[:, half:], -2, 2) / 0.959
    U[:, :half] = np.where(U[:, :half] > 0, 1.0, -1.0)
    return U


def simulated(
    fit: PrivateFit, sites: dict[str, Agent], bits: Bits
) -> Callable[[Sequence[Message]], Sequence[Message]]:
    """What "all" answers: the sum of all sites' totals and noise, in whole multiples of 2^-64."""

    def whole(values: Vector) -> list[int]:
        return [round(ldexp(value, FRACTION)) for value in values]

    def ask(parts: Sequence[Message]) -> Sequence[Message]:
        answers = []
        for part in parts:
            total: list[int] = []
            for _, agent in sorted(sites.items()):
                _, answer = fit.respond(agent, None, part, None)
                drawn = noise(fit.noise_of(part).tolist(), bits)
                mine = [a + b for a, b in zip(whole(answer.total), drawn, strict=True)]
                total = [a + b for a, b in zip(total, mine, strict=True)] if total else mine
            answers.append(type(answer)(np.array([value / 2**FRACTION for value in total])))
        return answers

    return ask


def pooled(X: np.ndarray, y: np.ndarray, theta: Vector) -> tuple[Vector, Vector]:
    """The pooled fit by Newton's method from the true coefficients, and its standard errors."""
    model = Logistic(X, y)
    for _ in range(50):
        point = model.at(theta)
        H = gram(point.factor)
        step = np.linalg.solve(H, point.gradient)
        theta = theta - step
        if np.abs(step).max() < 1e-12:
            break
    return theta, np.sqrt(np.diag(np.linalg.inv(H)) / model.weight)


def study(setting: Setting, seed: int, sites: int = SITES) -> dict[str, np.ndarray]:
    """One simulated study: deviations from the pooled fit in its standard errors, and what was covered."""
    rng = np.random.default_rng((seed, setting.rows, setting.columns))
    X = np.c_[columns_of(rng, setting), np.ones(setting.rows)]
    slopes = rng.normal(size=setting.columns)
    truth = np.r_[slopes * setting.effect / np.linalg.norm(slopes), -0.5]
    y = np.where(rng.random(setting.rows) < expit(X @ truth), 1.0, -1.0)
    privacy = Privacy(setting.epsilon, DELTA, setting.clip)
    plan = PrivatePlan(rows=setting.rows, columns=setting.columns, sites=sites, privacy=privacy)
    parts = np.array_split(np.arange(setting.rows), sites)
    agents = {f"site {k}": Agent(f"site {k}", Logistic(X[of], y[of])) for k, of in enumerate(parts)}
    found = private_fit(plan, simulated(PrivateFit(plan=plan), agents, random.Random(seed).getrandbits))
    best, errors = pooled(X, y, truth)
    norms = np.linalg.norm(X[:, :-1], axis=1)
    return {
        "deviation": (found.theta - best) / errors,
        "outwards": np.sign(best) * (found.theta - best) / errors,
        "covered": np.abs(found.theta - truth) <= 1.959964 * found.errors,
        "claimed": found.noise_errors / errors,
        "clipped": np.array([np.mean(norms > setting.clip)]),
    }


def judged(setting: Setting, seed: int = 1) -> dict[str, Any]:
    """The figures of one setting."""
    runs = [study(setting, seed * 10_000 + k) for k in range(setting.studies)]
    all_of = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    expected = predict(setting.rows, setting.columns, setting.epsilon, DELTA, setting.clip, SITES)
    return asdict(setting) | {
        "median": float(np.median(np.abs(all_of["deviation"]))),
        "rms": float(np.sqrt(np.mean(all_of["deviation"] ** 2))),
        "claimed": float(np.sqrt(np.mean(all_of["claimed"] ** 2))),
        "predicted": expected.deviation,
        "coverage": float(all_of["covered"].mean()),
        "bias": float(all_of["outwards"].mean()),
        "clipped": float(all_of["clipped"].mean()),
    }


def main() -> None:
    found = [judged(setting) for setting in SETTINGS]
    if "--json" in sys.argv:
        print(json.dumps(found, indent=2))
        return
    print(f"private fits, delta = {DELTA:g}, {SITES} sites; |private - pooled| in standard errors")
    head = (
        "N",
        "n",
        "epsilon",
        "studies",
        "median",
        "rms",
        "predicted",
        "claimed",
        "cover",
        "bias",
        "clipped",
    )
    print(" ".join(f"{word:>9}" for word in head))
    for one in found:
        figures = (one["rows"], one["columns"], one["epsilon"], one["studies"])
        shares = (one["median"], one["rms"], one["predicted"], one["claimed"])
        print(
            " ".join(f"{x:>9}" for x in figures),
            " ".join(f"{x:9.3f}" for x in shares),
            f"{one['coverage']:9.1%} {one['bias']:9.3f} {one['clipped']:9.2%}  {one['name']}",
        )


if __name__ == "__main__":
    main()
