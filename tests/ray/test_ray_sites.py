"""A Ray cluster on this machine: the same bits, workers and drivers that are killed, nobody left behind."""

from __future__ import annotations

import doctest
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedshed
from conftest import make_federation
from pages import blocks

pytestmark = pytest.mark.ray
FEDERATION = make_federation("logistic")
COUNTS = ("uplink_bytes", "downlink_bytes", "uplink_vectors", "exchanges", "hessians")


@pytest.fixture(scope="module")
def there():
    """Two workers that are kept from one run to the next, on a cluster with two CPUs more."""
    with fedshed.RaySites(workers=4), fedshed.RaySites(workers=2) as sites:
        yield sites


def fit(name="fib-shed", **options):
    return fedshed.optimize(FEDERATION, **{"algorithm": name, "l2": 1e-3, "tol": 1e-9, **options})


def assert_the_same(one, other):
    assert np.array_equal(one.theta, other.theta)
    assert [getattr(one.trace[-1], count) for count in COUNTS] == [
        getattr(other.trace[-1], count) for count in COUNTS
    ]


def until(done, seconds=30.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def parents():
    """The parent of each process that runs; one that only waits to be buried does not."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(path.parent.name)] = int(parent)
    return found


def descendants(pid):
    above, found = parents(), {pid}
    while more := {child for child, parent in above.items() if parent in found} - found:
        found |= more
    return found - {pid}


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


@pytest.mark.parametrize("name", ["newton", "lbfgs", "fib-shed", "qn-shed", "pen", "fednl"])
def test_the_same_bits_and_bytes_as_in_one_process(there, name):
    assert_the_same(fit(name, transport=there), fit(name))


def with_ray_kill(transport):
    import ray

    ray.kill(transport.pool.actors[0])


def with_sigkill(transport):
    workers = [pid for pid in descendants(os.getpid()) if command(pid).startswith("ray::Worker")]
    os.kill(workers[0], signal.SIGKILL)


@pytest.mark.parametrize("kill", [with_ray_kill, with_sigkill])
@pytest.mark.parametrize("name", ["fib-shed", "fednl"])
def test_a_worker_killed_in_the_middle_costs_no_bit(there, name, kill):
    made, struck = [], []

    def connect(sites):
        made.append(there(sites))
        return made[-1]

    def strike(progress):
        if progress.rows[-1].iteration == 3 and not struck:
            before = dict(made[0].pool.actors)
            kill(made[0])
            struck.append(before)

    result = fit(name, transport=connect, watch=strike)
    assert len(struck) == 1
    assert_the_same(result, fit(name))


def test_nothing_listens_beyond_this_machine(there):
    """Of all sockets of this process and of those that it has started."""
    fit("newton", transport=there)
    inodes = set()
    for pid in descendants(os.getpid()) | {os.getpid()}:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(link))
            except OSError:
                continue
    listening = []
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        listening += [
            row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
        ]
    assert listening
    assert all(address.endswith("0100007F") for address in listening)  # 127.0.0.1, in IPv6 too


def test_the_example_prints_what_it_shows(there):
    text = fedshed.RaySites.__doc__.replace("# doctest: +SKIP", "")
    example = doctest.DocTestParser().get_doctest(text, {}, "RaySites", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example) == doctest.TestResults(0, len(example.examples))


def test_the_page_computes_at_workers(there):
    page = Path(__file__).parents[2] / "docs/large.md"
    (code,) = (block for block in blocks(page) if "RaySites(workers=2)" in block)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["result"].converged


def test_workers_for_which_no_cpu_is_free_are_named_and_the_cluster_goes_on(there):
    with pytest.raises(fedshed.ProtocolError, match=r"workers \[.*\] did not start within 0.5 s"):
        fit(transport=fedshed.RaySites(workers=3, start_within=0.5))
    assert_the_same(fit("newton", transport=there), fit("newton"))


def test_another_address_than_that_of_the_cluster_in_use_is_refused(there):
    with pytest.raises(
        fedshed.ConfigError, match=r"'127.0.0.1:1': this process is connected to .*127\.0\.0\.1"
    ):
        fit(transport=fedshed.RaySites(workers=1, address="127.0.0.1:1"))


AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
DRIVER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background is started to ignore
from conftest import make_federation
import fedshed
print("here", flush=True)
result = fedshed.optimize(
    make_federation("logistic"), algorithm="fib-shed", l2=1e-3, tol=1e-9,
    transport=fedshed.RaySites(workers=1, address=sys.argv[1] or None),
    watch=lambda progress: (print("round", flush=True), time.sleep(float(sys.argv[2]))),
)
print(result.theta.tobytes().hex())
"""


def driver(address, pause):
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(pause)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_another_process_uses_a_cluster_by_its_address_and_leaves_it_running(there):
    import ray

    with driver(ray.get_runtime_context().gcs_address, 0) as process:
        said, trouble = process.communicate(timeout=60)
    assert process.returncode == 0, trouble
    assert bytes.fromhex(said.split()[-1]) == fit().theta.tobytes()
    assert_the_same(fit("newton", transport=there), fit("newton"))


@pytest.fixture(scope="module")
def drivers():
    """Two processes, each with a cluster of its own, in the middle of a run."""
    both = [driver("", 600), driver("", 600)]
    try:
        for process in both:
            assert process.stdout.readline() == "here\n"
            assert process.stdout.readline() == "round\n", process.stderr.read()
        yield both
    finally:
        for process in both:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("which", "how"), [(0, signal.SIGKILL), (1, signal.SIGINT)])
def test_workers_and_cluster_end_with_the_process_that_started_them(drivers, which, how):
    """After SIGKILL, two agents of Ray look for their parent now and then, and end by themselves."""
    process = drivers[which]
    started = {pid: command(pid) for pid in descendants(process.pid)}
    assert any(name.startswith("ray::Worker") for name in started.values())
    if how == signal.SIGKILL:
        started = {pid: name for pid, name in started.items() if not name.startswith(AGENTS)}
    process.send_signal(how)
    process.wait(timeout=30)
    until(lambda: not started.keys() & parents().keys())
