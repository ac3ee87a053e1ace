"""What `qn-shed` takes for each agent: 10,000 of them, their tables included, fit into 2 GB."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EACH = 140_000  # bytes: 40,000 of them are the agent's rows, once more, in the stack
RUN = """
import resource, sys
import numpy as np
import fedshed

agents, n, rows = 200, 50, 100
rng = np.random.default_rng(0)
truth, sites = rng.normal(size=n), {}
for i in range(agents):
    X = rng.normal(size=(rows, n)) * np.geomspace(1, 0.05, n)
    sites[f"s{i:03}"] = X, X @ truth + rng.logistic(size=rows) > 0

def solved(names):
    federation = fedshed.Federation.from_sites({name: sites[name] for name in names})
    return fedshed.optimize(federation, algorithm="qn-shed", l2=1e-3, max_iterations=6, tol=1e-14)

solved(list(sites)[:3])  # everything is imported
with open("/proc/self/status") as status:
    used = next(int(line.split()[1]) for line in status if line.startswith("VmData")) * 1024
most = used + agents * int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
print(solved(sites).trace[-1].iteration)
"""


def run(each):
    """A run of a process that may allocate so many bytes an agent."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    one = {**os.environ, **threads, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", RUN, str(each)], capture_output=True, text=True, env=one)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what is used")
def test_an_agent_of_qn_shed_costs_no_more_than_its_rows_and_its_pairs():
    done = run(EACH)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 6
    assert "MemoryError" in run(EACH // 4).stderr  # the limit is one
