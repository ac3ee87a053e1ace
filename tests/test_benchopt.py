"""The community benchmark runs under benchopt, and its numbers are those of fedshed's own counts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedshed

FOLDER = Path(__file__).parent.parent / "benchmarks/benchopt"
pytestmark = pytest.mark.benchopt


def test_a_solver_of_ours_and_one_of_another_stand_beside_each_other(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("benchopt", reason="pip install 'fedshed[benchopt]'")
    home = tmp_path / "bench"
    shutil.copytree(FOLDER, home, ignore=shutil.ignore_patterns("outputs", "__cache__", "__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "benchopt", "run", home, "-d", "digits[partition=two-class]",
         "-s", "fedshed[algorithm=[newton]]", "-s", "gradient-descent",
         "--max-runs", "12", "--n-repetitions", "1", "--no-display", "--output", "out"],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    found = pandas.read_parquet(home / "outputs/out.parquet")
    found = found.rename(columns=lambda name: name.removeprefix("objective_"))
    ours, theirs = (found[found["solver_name"].str.startswith(name)] for name in ("fedshed", "gradient"))
    newton_agrees(ours)
    steps = theirs["rounds"].to_numpy()
    assert (theirs["bits_up"] == 64 * 64 * 20 * steps).all()
    assert theirs["value"].is_monotonic_decreasing
    assert theirs["value"].iloc[-1] > ours["value"].iloc[-1]


def newton_agrees(ours):
    """The points are iterates of a plain run, with their gap and their bits."""
    federation = fedshed.datasets.load("digits", partition="two-class")
    _, f_star = fedshed.optimum(federation, l2=1e-5)
    seen = {}
    result = fedshed.optimize(
        federation, l2=1e-5, algorithm="newton", f_star=f_star,
        watch=lambda progress: seen.update({progress.rounds: progress.traffic}),
    )  # fmt: skip
    gaps = {row.rounds: row.gap for row in result.trace}
    common = [row for _, row in ours.iterrows() if row["rounds"] in seen]
    assert len(common) >= 4
    for row in common:
        assert row["bits_up"] == 8 * seen[row["rounds"]].uplink_bytes
        assert row["value"] == pytest.approx(gaps[row["rounds"]], rel=1e-9, abs=1e-14)
    assert ours["grad_norm"].iloc[-1] < 1e-9
