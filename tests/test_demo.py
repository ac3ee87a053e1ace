"""`make demo`: the main job first, then the comparison, then three lines that say what to type next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_fits_then_compares_and_says_what_to_type_next(tmp_path):
    planned = subprocess.run(
        ["make", "-n", "-o", ".venv/.user", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    fedshed = f"{sys.executable} -m fedshed"
    recipe = planned.replace(".venv/bin/fedshed", fedshed)
    for _ in range(2):  # a second call writes the same files again
        done = subprocess.run(
            ["sh", "-ec", recipe], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
        )
    said = done.stdout
    fit, compared = said.index("odds ratio"), said.index("Fastest by latency and rate")
    assert fit < compared
    *_, made, following, own = said.splitlines()
    assert max(map(len, (made, following, own))) <= 80
    for path in ("results/demo/fit/report.html", "results/demo/compare/report.html"):
        assert path in made
        assert (tmp_path / path).is_file()
    assert following.endswith("activate; cd results/demo/hospitals")
    assert "fedshed fit *.csv --target malignant --exp" in own
    assert len(list((tmp_path / "results/demo/hospitals").glob("*.csv"))) == 3
