"""Random studies against formulas on the pooled rows: no wrong number without a word.

Each study draws a family, tables of very unequal sites, categories that some sites lack, weights, offsets and
columns in units from 1e-8 to 1e8; some are collinear or separated.  It must end with the pooled estimates to
1e-6 standard errors and the pooled errors to six digits, or with an error or a reason that names the cause.
In one process and over hosts alike: `python -m benchmarks.random_studies [studies] [first seed]`.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
from scipy.special import expit

import fedshed
from fedshed import Study
from fedshed.exchange import InProcess
from fedshed.fitting.conduct import conduct
from fedshed.fitting.process_sites import TableHost
from fedshed.fitting.sites import HostedTables
from fedshed.solve.goal import Goal

FAMILIES = ("linear", "logistic", "poisson", "gamma", "binomial", "quasi-poisson")
ALGORITHMS = ("auto", "newton", "fib-shed", "pen", "qn-shed", "fednl")
FAR, DIGITS = 1e-6, 1e-6  # standard errors, and share of a standard error
CAUSES = {
    "collinear": ("collinear", "same in every row", "one level", "standardise"),
    "separated": ("separated", "no finite optimum", "class", "no row"),
    "": (
        *("standardise", "degrees of freedom", "class", "one level", "units", "newton"),
        *("separated", "no finite optimum"),  # small tables may be
    ),
}


class Case:
    """One study: its tables, and the pooled design by our own hand."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.seed, self.family = seed, str(rng.choice(FAMILIES))
        self.algorithm = str(rng.choice(ALGORITHMS))
        self.trouble = str(rng.choice(["", "", "", "", "collinear", "separated"]))
        rows, width = int(rng.integers(30, 400)), int(rng.integers(1, 5))
        X = rng.normal(size=(rows, width)) + rng.normal(size=width) * rng.choice([0, 1, 30])
        levels = int(rng.integers(2, 6))
        category = rng.integers(0, levels, rows)
        self.site = self._split(rng, rows, category)
        z = 0.5 * rng.normal() + (X - X.mean(axis=0)) @ rng.uniform(-0.6, 0.6, width) / np.sqrt(width)
        z = z + 0.3 * rng.normal(size=levels)[category]
        offset = 0.3 * rng.normal(size=rows) if rng.random() < 0.3 else np.zeros(rows)
        self.trials = rng.integers(1, 9, rows).astype(float) if self.family == "binomial" else np.ones(rows)
        y = self._response(rng, z + offset)
        if self.trouble == "collinear" and width > 1:
            X[:, 0] = 2.0 * X[:, -1] + 1.0
        if self.trouble == "separated":
            y = self._separated(rng, category, y)
        self.scales = 10.0 ** rng.uniform(-8, 8, width) if rng.random() < 0.5 else np.ones(width)
        self.weights, self.kind = self._weights(rng, rows)
        self.standardize = bool(rng.random() < 0.4)
        self.offset = offset
        self.columns: dict[str, Any] = {f"x{j}": X[:, j] * self.scales[j] for j in range(width)}
        self.columns["c"] = np.array([f"level {k}" for k in category])
        self.y, self.given = y, y * self.trials if self.family == "binomial" else y
        present = sorted(set(self.columns["c"].tolist()))
        dummies = [(self.columns["c"] == level).astype(float) for level in present[1:]]
        plain = [self.columns[f"x{j}"] for j in range(width)]
        self.X = np.column_stack([*plain, *dummies, np.ones(rows)])

    def _split(self, rng: Any, rows: int, category: Any) -> Any:
        """From very unequal sites to a site for each level, which the others then lack."""
        count = int(rng.integers(1, 7))
        if rng.random() < 0.2:
            return category % count
        shares = rng.dirichlet(np.full(count, 0.4))
        return rng.choice(count, size=rows, p=shares)

    def _response(self, rng: Any, z: Any) -> Any:
        if self.family == "linear":
            return z + rng.normal(size=len(z)) * 10.0 ** rng.uniform(-3, 3)
        if self.family == "logistic":
            return (rng.random(len(z)) < expit(z)).astype(float)
        if self.family == "binomial":
            return rng.binomial(self.trials.astype(int), expit(z)) / self.trials
        if self.family == "gamma":
            return np.maximum(rng.gamma(2.0, np.exp(z) / 2), 1e-12)
        return rng.poisson(np.exp(np.minimum(z, 5))).astype(float)

    def _separated(self, rng: Any, category: Any, y: Any) -> Any:
        """One level has no event, or nothing but events where there are two classes."""
        if self.family in ("linear", "gamma"):
            return y
        return np.where(category == category[0], 0.0, y)

    def _weights(self, rng: Any, rows: int) -> tuple[Any, str]:
        draw = rng.random()
        if self.family == "binomial" or draw < 0.6:
            return None, "none"
        if draw < 0.8:
            return rng.integers(1, 5, rows).astype(float), "frequency"
        return rng.uniform(0.1, 3.0, rows), "precision"

    def tables(self) -> dict[str, dict[str, Any]]:
        """The table of each site."""
        every = {**self.columns, "y": self.given}
        if self.weights is not None:
            every["w"] = self.weights
        if self.offset.any():
            every["o"] = self.offset
        if self.family == "binomial":
            every["n"] = self.trials
        return {
            f"s{i}": {name: values[self.site == i] for name, values in every.items()}
            for i in np.unique(self.site).tolist()
        }

    def study(self) -> Study:
        """The model that is asked for."""
        more: dict[str, Any] = {"trials": "n"} if self.family == "binomial" else {}
        if self.weights is not None:
            more |= {"weight": "w", "weight_type": self.kind}
        if self.offset.any():
            more["offset"] = "o"
        return Study(family=self.family, target="y", standardize=self.standardize, **more)

    def disagreement(self, model: fedshed.Model) -> str | None:
        """How estimates and errors differ from what the pooled rows say, by formulas written out."""
        w = self.trials if self.family == "binomial" else np.ones(len(self.y))
        w = w if self.weights is None else self.weights
        scale = np.linalg.norm(self.X, axis=0) / np.sqrt(len(self.X))
        X, b = self.X / scale, model.inference.coef * scale
        z = X @ b + self.offset
        y = self.y
        slope, curvature, information, variance = {
            "linear": lambda: (z - y, np.ones_like(z), np.ones_like(z), np.ones_like(z)),
            "logistic": lambda: (expit(z) - y, *[expit(z) * expit(-z)] * 3),
            "binomial": lambda: (expit(z) - y, *[expit(z) * expit(-z)] * 3),
            "gamma": lambda: (1 - y * np.exp(-z), y * np.exp(-z), np.ones_like(z), np.ones_like(z)),
        }.get(self.family, lambda: (np.exp(z) - y, *[np.exp(z)] * 3))()
        H = X.T @ (X * (w * curvature)[:, None])
        fisher = X.T @ (X * (w * information)[:, None])
        observations = w.sum() if self.kind == "frequency" else len(y)
        phi = 1.0
        if self.family in ("linear", "gamma", "quasi-poisson"):
            pearson = w * slope**2 / variance
            phi = pearson.sum() / (observations - X.shape[1])
        errors = np.sqrt(phi * np.diag(np.linalg.inv(fisher)))
        step = np.linalg.solve(H, X.T @ (w * slope))
        far = float(np.abs(step / errors).max())
        ours = model.inference.std_err() * scale
        off = float(np.abs(ours / errors - 1).max())
        if not far <= FAR:
            return f"the estimates are {far:.1e} standard errors away"
        return f"the errors differ by {off:.1e}" if not off <= DIGITS else None


def over_hosts(case: Case) -> fedshed.Model:
    """The study with each site behind a host, as in a deployment."""
    hosts = {name: TableHost(name, table) for name, table in case.tables().items()}
    tables = HostedTables(InProcess(hosts), tuple(hosts))
    return conduct(case.study(), tables, Goal(1e-9, 500), algorithm=case.algorithm).model


def here(case: Case) -> fedshed.Model:
    """The study with all sites in this process."""
    return fedshed.fit(case.tables(), case.study(), algorithm=case.algorithm)


def outcome(case: Case, hosted: bool) -> tuple[str, str]:
    """agreed, said (an error or a reason that names the cause), or WRONG, with the words."""
    try:
        model = over_hosts(case) if hosted else here(case)
    except fedshed.Error as error:
        words = str(error)
    else:
        words = "" if model.converged else model.run.reason
        if not words:
            if np.isnan(model.inference.std_err()).any():
                notes = " ".join(model.inference.notes)
                return ("said", notes) if notes else ("WRONG", "no errors and no word")
            wrong = case.disagreement(model)
            doubt = " ".join(model.inference.notes)
            if wrong and "nearly collinear" in doubt:
                return "said", doubt
            return ("WRONG", wrong) if wrong else ("agreed", "")
    named = any(cause in words for cause in CAUSES[case.trouble] + CAUSES[""])
    return ("said" if named else "UNCLEAR"), words


def main() -> None:
    given = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    count, first = (given + [2000, 0][len(given) :])[:2]
    warnings.simplefilter("ignore")
    logging.getLogger("fedshed").setLevel(logging.ERROR)  # notes on tables are not what is looked at
    tally: Counter[str] = Counter()
    for seed in range(first, first + count):
        for hosted in (False, True):
            case = Case(seed)
            kind, words = outcome(case, hosted)
            tally[f"{'hosts' if hosted else 'one process'}, {case.trouble or 'plain'}: {kind}"] += 1
            if kind in ("WRONG", "UNCLEAR"):
                what = f"{seed} {case.family} {case.trouble} {case.algorithm} hosted={hosted}"
                print(f"{what} {kind}: {words[:300]}", flush=True)
    for name, number in sorted(tally.items()):
        print(f"{number:6} {name}")


if __name__ == "__main__":
    main()
