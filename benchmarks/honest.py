"""Honest studies at sites that approve them: do they end as without rules, and where not, by which rule?

Each study of `benchmarks.rules` is conducted over nodes that have approved it under the default policy, and
over nodes that answer anything.  `python -m benchmarks honest` prints whether both end at the same bits, or
the rule by which the study was refused, the share of the budget that was used at the smallest site, and the
CPU time with all rules as a multiple of that without.  Real tables need FEDSHED_DATA (docs/data.md).
"""

from __future__ import annotations

import logging
import re
import statistics
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.rules import Honest, admitted, embedded, real
from fedshed._utils.errors import Error
from fedshed.deployment.approval import new_approval
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.privacy.audit import Audit
from fedshed.privacy.policy import Policy

ALGORITHMS = ("auto", "newton", "lbfgs")
REPEATS = 5
ANYTHING = Policy(
    min_rows=1, min_rows_per_class=1, min_rows_per_level=1, max_parameters_per_row=1e9, effective_rows=1,
    max_deviance=1e300, max_scalars=10**12, max_curvature=1e300, max_numbers=1e300, max_refusals=10**9,
)  # fmt: skip


def named(site: str) -> str:
    """A site's name as a deployment takes it."""
    return re.sub(r"\W", "-", site) if site[0].isalnum() else f"s{site}"


class Ungated(Node):
    """A site without a gate: no rules, no record."""

    def gate(self, run: bytes, stage: Any, rows: int) -> None:  # type: ignore[override]
        """All that is asked for leaves."""


def conducted(
    honest: Honest, algorithm: str, policy: Policy | None, kind: type[Node] = Node
) -> tuple[Any, float, float]:
    """How a study ended, the share of the budget it took at the smallest site, and its CPU time."""
    tables = {named(site): table for site, table in honest.tables.items()}
    file = StudyFile(honest.study, tuple(tables), algorithm)
    with TemporaryDirectory() as folder:
        place, nodes = Path(folder), {}
        for site, table in tables.items():
            pd.DataFrame(table).to_parquet(place / f"{site}.parquet")
            nodes[site] = kind(_site(site, file, policy), place)
        start = time.process_time()
        try:
            model, _ = conduct_study(file, InProcess(nodes))
            outcome: Any = model.inference.coef.tobytes()
        except Error as error:
            outcome = str(error)
        took = time.process_time() - start
        smallest = min(tables, key=lambda site: len(next(iter(tables[site].values()))))
        return outcome, _used(place, smallest, len(next(iter(tables[smallest].values())))), took


def _site(site: str, file: StudyFile, policy: Policy | None) -> SiteFile:
    approved = (new_approval(file.terms.digest.hex(), file.terms.in_words()),)
    source = Source(parquet=f"{site}.parquet")
    names = {"state": f"{site}-state", "audit": f"{site}.jsonl"}
    if policy is None:
        return SiteFile(site, source, studies=approved, **names)
    return SiteFile(site, source, disclosure=policy, any_study=True, **names)


def _used(place: Path, site: str, rows: int) -> float:
    """Numbers released per row and column."""
    tables = [each for each in Audit(place / f"{site}.jsonl").ledger.tables.values() if each.columns]
    return max((each.numbers / rows / len(each.columns) for each in tables), default=0.0)


def verdict(outcome: Any, anything: Any) -> str:
    """Whether two endings are the same, or the rule behind a refusal."""
    if isinstance(outcome, bytes):
        return "the same bits" if outcome == anything else "OTHER BITS"
    found = re.search(r"\((\w+)\)", outcome)
    return f"refused: {found[1] if found else outcome[:80]}"


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("fedshed").setLevel(logging.CRITICAL)
    studies = [*embedded()]
    try:
        studies += [*real()]
    except Error as error:
        print(f"without the real tables: {error}")
    ratios = []
    with threadpool_limits(1):
        for honest in map(admitted, studies):
            rows = sorted(len(next(iter(table.values()))) for table in honest.tables.values())
            print(f"{honest.name}: {len(rows)} sites of {rows[0]} to {rows[-1]} rows")
            for algorithm in ALGORITHMS:
                outcome, used, _ = conducted(honest, algorithm, None)
                anything, _, _ = conducted(honest, "lbfgs" if algorithm == "auto" else algorithm, ANYTHING)
                print(f"  {algorithm:7} {used:5.2f} of the budget  {verdict(outcome, anything)}", flush=True)
                if outcome == anything and algorithm != "auto":
                    ratios.append(_ratio(honest, algorithm))
                    print(f"          CPU {ratios[-1]:.2f} times that of sites without a gate", flush=True)
    print(f"CPU, median of these studies: {statistics.median(ratios):.3f} times")


def _ratio(honest: Honest, algorithm: str) -> float:
    """CPU time with gate, rules and record over that without, in turn; the median."""
    gated = (None, Node), (ANYTHING, Ungated)
    pairs = [[conducted(honest, algorithm, *each)[2] for each in gated] for _ in range(REPEATS)]
    return statistics.median(rules / without for rules, without in pairs)


if __name__ == "__main__":
    main()
