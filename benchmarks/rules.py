"""The rules at points on honest studies: how often they hold an answer back, and what they cost.

Each study is fitted with sites behind their gates, with the rules at points and without them: it must end at
the same bits.  `python -m benchmarks rules` prints, for each study, how many points were asked about, how
many were held back, the largest leverage, and the CPU time with the rules as a multiple of that without.
Real tables need FEDSHED_DATA (docs/data.md); the others come with scikit-learn and the package.
"""

from __future__ import annotations

import logging
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from threadpoolctl import threadpool_limits

import fedshed
from fedshed import Study
from fedshed._utils.errors import DisclosureError, Error
from fedshed.datasets import multi_site
from fedshed.datasets.examples import EXAMPLES
from fedshed.datasets.records import Content
from fedshed.exchange import InProcess
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.privacy.audit import Audit
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy

ALGORITHMS = ("newton", "lbfgs", "fib-shed", "qn-shed", "pen", "agd", "giant", "fednl")
REPEATS = 16
OPEN = Policy(max_scalars=10**12)


class Honest(Struct, frozen=True):
    """A study: its tables, by site, and what is asked of them."""

    name: str
    tables: dict[str, dict[str, Any]]
    study: Study


class Unwatched(Guarded):
    """A site behind its gate without the rules at points, as a yardstick."""

    watches = False


class Gates:
    """What makes a transport of guarded sites; it keeps them, to be asked how they fared."""

    def __init__(self, kind: type[Guarded], folder: Path) -> None:
        self._kind, self._folder, self.sites = kind, folder, list[Guarded]()

    def __call__(self, sites: Mapping[str, Any]) -> InProcess:
        """The transport."""
        return InProcess({name: self._behind(name, site) for name, site in sites.items()})

    def _behind(self, name: str, site: Any) -> Any:
        if not isinstance(site, Site):
            return site  # in the preparation
        gate = Gate(OPEN, Audit(self._folder / f"{name}.jsonl"), "study")
        self.sites.append(self._kind(site, gate))
        return self.sites[-1]


def by_site(content: Content) -> dict[str, dict[str, Any]]:
    """The table of each site of a data set."""
    X = np.asarray(content.X.todense() if hasattr(content.X, "todense") else content.X)
    columns = {re.sub(r"\W", "_", name): X[:, j] for j, name in enumerate(content.columns)} | {"y": content.y}
    assert content.sites is not None
    return {
        site: {name: values[content.sites == site] for name, values in columns.items()}
        for site in np.unique(content.sites).tolist()
    }


def dealt(X: Any, y: Any, sites: int, seed: int | None = None) -> dict[str, dict[str, Any]]:
    """Rows in so many equal parts, in their order or at random."""
    order = np.arange(len(y)) if seed is None else np.random.default_rng(seed).permutation(len(y))
    parts = np.array_split(order, sites)
    return {
        f"site-{k}": {**{f"x{j}": X[part, j] for j in range(X.shape[1])}, "y": y[part]}
        for k, part in enumerate(parts)
    }


def example(name: str, column: str | None = None) -> dict[str, dict[str, Any]]:
    """The tables of an example of the package; one table is cut by a column."""
    found: dict[str, dict[str, Any]] = {}
    for file, (header, *rows) in EXAMPLES[name].tables().items():
        for row in rows:
            cells = dict(zip(header, row, strict=True))
            table = found.setdefault(cells.pop(column) if column else Path(file).stem, {})
            for key, value in cells.items():
                table.setdefault(key, []).append(value)
    return {site: {key: np.array(values) for key, values in table.items()} for site, table in found.items()}


def embedded() -> Iterator[Honest]:
    """Studies of tables that come with the package or scikit-learn."""
    cancer, wine, diabetes = load_breast_cancer(), load_wine(), load_diabetes()
    logistic = Study(family="logistic", target="y", standardize=True)
    yield Honest("hospitals", example("hospitals"), Study(family="logistic", target="malignant"))
    yield Honest("breast cancer, 10 columns", dealt(cancer.data[:, :10], cancer.target, 3), logistic)
    for l2 in (1e-3, 1e-5):
        study = Study(family="logistic", target="y", standardize=True, l2=l2)
        yield Honest(f"breast cancer, 30, l2 {l2:g}", dealt(cancer.data, cancer.target, 3), study)
    claims = Study(family="poisson", target="claims", exposure="years")
    yield Honest("claims", example("claims", "region"), claims)
    multinomial = Study(family="multinomial", target="y", standardize=True, l2=1e-2)
    yield Honest("wine, multinomial", dealt(wine.data[:, :6], wine.target, 2, seed=0), multinomial)
    gamma = Study(family="gamma", target="y", standardize=True)
    yield Honest("diabetes, gamma", dealt(diabetes.data, diabetes.target, 3), gamma)


def real() -> Iterator[Honest]:
    """Studies of tables in FEDSHED_DATA."""
    plain = {"target": "y"}
    yield Honest("heart", by_site(multi_site.read_heart()), Study(family="logistic", **plain))
    standardised = Study(family="logistic", standardize=True, **plain)
    yield Honest("heart, standardised", by_site(multi_site.read_heart()), standardised)
    yield Honest("contraception", by_site(multi_site.read_contraception()), Study(family="logistic", **plain))
    medpar = by_site(multi_site.read_medpar())
    for family in ("poisson", "gamma"):
        yield Honest(f"medpar, {family}", medpar, Study(family=family, columns=("hmo", "white"), **plain))


def admitted(honest: Honest) -> Honest:
    """The study with the sites whose tables the policy admits."""
    tables = dict(honest.tables)
    while tables:
        with tempfile.TemporaryDirectory() as folder:
            try:
                fitted(Honest(honest.name, tables, honest.study), "newton", Gates(Unwatched, Path(folder)), 1)
            except DisclosureError as error:
                found = re.search(r"site '([^']*)'", str(error))
                assert found is not None
                del tables[found[1]]
            except Error:
                break
            else:
                break
    return Honest(honest.name, tables, honest.study)


def fitted(honest: Honest, algorithm: str, over: Any, most: int = 200) -> Any:
    """The model."""
    return fedshed.fit(honest.tables, honest.study, algorithm=algorithm, over=over, max_iterations=most)


def ended(honest: Honest, algorithm: str, over: Any) -> Any:
    """The bits at which a study ends, or the words with which it does."""
    try:
        return fitted(honest, algorithm, over).inference.coef.tobytes()
    except Error as error:
        return str(error)


def compared(honest: Honest, algorithm: str) -> str:
    """A line on one study and one algorithm."""
    with tempfile.TemporaryDirectory() as folder:
        plain = ended(honest, algorithm, InProcess)
        gates = Gates(Guarded, Path(folder))
        watched = ended(honest, algorithm, gates)
    held = [site.withheld for site in gates.sites]
    verdict = "same" if plain == watched else f"NOT THE SAME: {watched if isinstance(watched, str) else ''}"
    largest = max((site.leverage or 0.0 for site in gates.sites), default=0.0)
    return f"{algorithm:9} {sum(held):5} held back {largest:8.2f} {verdict}"


def seconds(honest: Honest, algorithm: str, kind: type[Guarded]) -> float:
    """CPU time of a study."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        ended(honest, algorithm, Gates(kind, Path(folder)))
        return time.process_time() - start


def ratio(honest: Honest, algorithm: str) -> float:
    """CPU time with the rules over that without, one after the other in turn; the median."""
    found = []
    for turn in range(REPEATS):
        kinds = [Guarded, Unwatched][:: 1 if turn % 2 else -1]
        spent = {kind: seconds(honest, algorithm, kind) for kind in kinds}
        found.append(spent[Guarded] / spent[Unwatched])
    return statistics.median(found)


def simulated(rows: int, columns: int) -> Honest:
    """A large site and a small one, for the time that the rules take."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = (rng.logistic(size=rows) < X[:, 0] - X[:, 1] / 2).astype(int)
    return Honest(f"simulated {rows} x {columns}", dealt(X, y, 2), Study(family="logistic", target="y"))


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("fedshed").setLevel(logging.ERROR)
    studies = [*embedded()]
    try:
        studies += [*real()]
    except Error as error:
        print(f"without the real tables: {error}")
    with threadpool_limits(1):
        for honest in map(admitted, studies):
            rows = sorted(len(next(iter(table.values()))) for table in honest.tables.values())
            print(f"{honest.name}: {len(rows)} of the sites are admitted, of {rows[0]} to {rows[-1]} rows")
            for algorithm in ALGORITHMS:
                print(f"  {compared(honest, algorithm)}", flush=True)
        timed = [simulated(20_000, 12), simulated(20_000, 100), *map(admitted, studies[:1])]
        for honest in timed:
            for algorithm in ("newton", "lbfgs", "fib-shed"):
                print(f"CPU {honest.name} {algorithm}: {ratio(honest, algorithm):.3f} times", flush=True)


if __name__ == "__main__":
    main()
