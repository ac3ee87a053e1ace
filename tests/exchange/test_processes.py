"""Sites as processes: the same bits, killed and stalled ones, strangers at the door, nobody left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

import fedshed
from conftest import make_federation
from embedded import embedded
from fedshed.exchange import InProcess, frames
from fedshed.exchange.hub import Hub
from fedshed.exchange.processes import Processes, ProcessGroup
from fedshed.exchange.site_files import read_site, write_site
from fedshed.exchange.sites import LocalSites
from fedshed.privacy.policy import Policy
from fedshed.solve.optimize import build_problem

L2 = 1e-3
FEDERATION = make_federation("logistic")


def fit(**options):
    return fedshed.optimize(FEDERATION, **{"algorithm": "fib-shed", "l2": L2, "tol": 1e-10, **options})


def started(made, **options):
    """A transport of processes that the test can lay hands on."""

    def connect(sites):
        made.append(Processes(sites, **options))
        return made[-1]

    return connect


def assert_at_the_optimum(result):
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, fedshed.optimum(FEDERATION, l2=L2)[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["fib-shed", "pen"])
def test_same_bits_and_bytes_as_in_one_process_and_nobody_is_left(name):
    made: list[Processes] = []
    there, here = fit(algorithm=name, transport=started(made)), fit(algorithm=name)
    assert np.array_equal(there.theta, here.theta)
    for count in ("uplink_bytes", "downlink_bytes", "exchanges", "hessians"):
        assert getattr(there.trace[-1], count) == getattr(here.trace[-1], count)
    assert all(process._process is None for process in made[0].processes.values())


def test_a_site_goes_through_its_folder_unchanged(tmp_path):
    """Dense, sparse or tall, the same rows answer; the file of a site holds no pickle, and is its owner's."""
    from scipy.sparse import csr_array

    from fedshed.algorithms import build
    from fedshed.exchange.site import Site
    from fedshed.linalg.tall import Tall
    from fedshed.objectives import Logistic

    X = np.where(np.random.default_rng(0).random((20, 4)) < 0.5, 0.0, 1.5)
    y = np.where(np.arange(20) % 2, 1.0, -1.0)
    for rows in (X, Tall(np.asfortranarray(X)), Tall(X)[:, [3, 0, 1, 2]], csr_array(X)):
        site = Site("a", Logistic(rows, y), build("fib-shed+"))
        write_site(tmp_path, site)
        again = read_site(tmp_path)
        assert (again.name, again.conversation) == ("a", site.conversation)
        for theta in np.eye(4):
            assert np.array_equal(site.objective.at(theta).gradient, again.objective.at(theta).gradient)
        assert type(again.objective.X) is type(rows)
        assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_site_killed_and_started_again_rejoins_without_its_state():
    made: list[Processes] = []

    def strike(progress):
        if progress.rows[-1].iteration == 3:
            made[0].processes["large"].kill()
            made[0].processes["large"].start()

    result = fit(transport=started(made), watch=strike)
    assert_at_the_optimum(result)
    assert result.sites["large"].silent == 0
    assert result.trace[-1].hessians > fit().trace[-1].hessians  # it had to rebuild one


def test_a_site_that_stalls_past_the_deadline_is_done_without_and_its_late_answer_dropped():
    made: list[Processes] = []
    absent: list[int] = []

    def strike(progress):
        site = made[0].processes["middle"]
        absent.append(progress.sites["middle"].silent)
        if progress.rows[-1].iteration == 2:
            os.kill(site.pid, signal.SIGSTOP)
        if progress.rows[-1].iteration == 4:
            os.kill(site.pid, signal.SIGCONT)

    result = fit(transport=started(made, deadline=0.3), watch=strike)
    assert_at_the_optimum(result)
    assert max(absent) > 0


def test_strangers_wrong_tokens_and_frames_too_large_are_shown_the_door(tmp_path):
    address = tmp_path / "address"
    with Hub({"a": b"secret"}, address, deadline=1.0, most_bytes=1000) as hub:
        host, port = address.read_text().split()

        def greet(name, token, then=b""):
            stranger = socket.create_connection((host, int(port)), timeout=5)
            hello = msgspec.msgpack.encode((name, token))
            stranger.sendall(frames.frame(0, hello) + then)
            return stranger

        huge = frames.HEAD.pack(2_000_000_000, 1)
        doors = [greet("a", b"wrong"), greet("b", b"secret"), greet("a", b""), greet("a", b"secret", huge)]
        assert hub.exchange({"a": b"question"}) == []
        for door in doors[:3]:
            with pytest.raises(ConnectionError):
                frames.receive(door)
        with greet("a", b"secret") as friend:
            with pytest.raises(fedshed.ProtocolError, match="'b'"):
                Hub._named(hub, msgspec.msgpack.encode(("b", b"secret")))
            friend.sendall(frames.frame(2, b"answer"))
            assert hub.exchange({"a": b"question"}) == [("a", b"answer")]
        for door in doors:
            door.close()


def test_an_answer_to_an_earlier_exchange_does_not_count_as_one_to_this(tmp_path):
    with Hub({"a": b"secret"}, tmp_path / "address", deadline=0.3) as hub:
        host, port = (tmp_path / "address").read_text().split()
        with socket.create_connection((host, int(port)), timeout=5) as site:
            site.sendall(frames.frame(0, msgspec.msgpack.encode(("a", b"secret"))))
            assert hub.exchange({"a": b"first"}) == []
            site.sendall(frames.frame(1, b"late"))
            began = time.monotonic()
            assert hub.exchange({"a": b"second"}) == [("a", b"late")]
            assert time.monotonic() - began >= 0.25  # it waited for the answer to the second


def test_sites_that_cannot_start_are_named_with_what_they_wrote():
    def write(name, folder):
        (folder / "card").write_bytes(b"no card")

    with pytest.raises(fedshed.ProtocolError, match=r"large.*they wrote.*ValidationError"):
        ProcessGroup(("large", "small"), write, "fedshed.exchange.agent", start_within=5.0)


def test_an_algorithm_of_the_users_own_is_refused_before_a_process_starts():
    from fedshed.algorithms import Shed

    class Mine(Shed, frozen=True, tag="mine"):
        pass

    with pytest.raises(fedshed.ConfigError, match="own algorithms, not test_processes"):
        fit(algorithm=Mine(), transport=Processes)


def test_a_site_declines_by_its_policy_over_the_connection():
    with pytest.raises(fedshed.ProtocolError, match=r"'small'.*min_rows"):
        fit(transport=partial(Processes, policy=Policy(max_parameters_per_row=5)))


MASTER = """
import sys, time
from conftest import make_federation
import fedshed
from fedshed.exchange.processes import ProcessGroup, Processes
def connect(sites):
    transport = Processes(sites)
    print(*(p.pid for p in transport.processes.values()), flush=True)
    return transport
fedshed.optimize(make_federation("logistic"), algorithm="fib-shed", l2=1e-3, tol=1e-10,
                 checkpoint=sys.argv[1], watch=lambda progress: time.sleep(0.02),
                 **({"transport": connect} if sys.argv[2:] else {}))
"""


def master(*arguments):
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", MASTER, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
    )


def until(done, seconds=20.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("delay", [0.0, 0.11, 0.23])
def test_a_master_killed_at_any_point_resumes_to_the_same_bits(tmp_path, delay):
    path = tmp_path / "run"
    with master(path) as process:
        until(path.exists)
        time.sleep(delay)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert np.array_equal(fedshed.resume(path, FEDERATION).theta, fit().theta)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_sites_end_with_the_master_that_started_them(tmp_path):
    with master(tmp_path / "run", "processes") as process:
        pids = list(map(int, process.stdout.readline().split()))
        assert len(pids) == 3
        assert all(map(alive, pids))
        process.kill()
    until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda: embedded("hospitals"), id="hospitals"),
        pytest.param(lambda: fedshed.datasets.load("heart"), id="heart", marks=pytest.mark.data("heart")),
    ],
)
def test_hospitals_give_the_summary_of_the_pooled_table(load):
    """A process per site, for the fit and for its standard errors, against one table of all rows."""
    from fedshed.inference import infer

    apart = load()
    rows = apart.pooled()
    together = fedshed.Federation.from_arrays(rows.X, rows.y, columns=apart.columns)
    found = []
    for federation, connect in ((apart, Processes), (together, InProcess)):
        options = {"loss": "logistic", "l2": 0.0, "intercept": True}
        result = fedshed.optimize(
            federation, **options, algorithm="newton", theta0="null", tol=1e-10, transport=connect
        )
        assert result.converged, result.reason
        objectives, problem = build_problem(federation, **options)
        found.append(infer(LocalSites(objectives, connect), problem, result.theta))
    one, other = found
    np.testing.assert_allclose(one.table(), other.table(), rtol=1e-6, atol=1e-12)  # to the last column of it
    for name in ("rows", "deviance", "null_deviance", "log_likelihood", "df_model"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9)
