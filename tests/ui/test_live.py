"""A simulation that can be paused and stopped, and a log that is followed while it grows."""

from __future__ import annotations

import json
import sys
import time

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import fedshed
from fedshed._utils.errors import ConfigError, DataError
from fedshed.cli import app
from fedshed.experiments import ComparisonSpec
from fedshed.report import page
from fedshed.ui.live import DONE, FAILED, PAUSED, READY, RUNNING, STOPPED
from fedshed.ui.log import Log
from live_runs import SMALL, wait

LONG = ComparisonSpec(agents=4, l2=1e-6, algorithms=("agd",), tol=0.0, max_iterations=1_000_000)


# Simulations


def test_a_simulation_is_the_comparison_row_by_row(simulation):
    simulation.start(SMALL)
    simulation.join(60)
    assert simulation.status().state == DONE
    expected = [(name, row) for name, result in SMALL.run().results.items() for row in result.trace]

    def without_seconds(pairs):
        return [(name, msgspec.structs.replace(row, seconds=0.0)) for name, row in pairs]

    assert without_seconds(simulation.rows) == without_seconds(expected)
    (problem,) = simulation.report().problems
    assert [run.name for run in problem.runs] == ["fib-shed", "newton"]
    assert all(run.converged for run in problem.runs)
    assert len(problem.agents) == 4


def test_a_pause_is_a_pause_and_its_time_is_not_the_algorithms(simulation):
    simulation.start(LONG)
    wait(lambda: len(simulation.rows) > 5)
    assert simulation.command("pause").state == PAUSED
    time.sleep(0.1)
    count = len(simulation.rows)
    time.sleep(1.0)
    assert len(simulation.rows) == count
    assert simulation.command("resume").state == RUNNING
    wait(lambda: len(simulation.rows) > count + 5)
    seconds = [row.seconds for _, row in list(simulation.rows)]
    assert seconds[count + 3] - seconds[count - 1] < 0.9
    assert seconds == sorted(seconds)


def test_a_stopped_run_keeps_what_it_had_and_another_has_another_token(simulation):
    first = simulation.start(LONG)
    with pytest.raises(ConfigError, match="a run is in progress"):
        simulation.start(SMALL)
    wait(lambda: len(simulation.rows) > 3)
    simulation.command("pause")
    simulation.command("stop")  # a paused run can be stopped, too
    simulation.join(30)
    assert simulation.status().state == STOPPED
    assert simulation.report().problems[0].runs[0].ended == "stopped by hand"
    second = simulation.start(SMALL)
    assert second.generation == first.generation + 1
    assert second.token != first.token


def test_a_server_that_ends_stops_the_run_and_leaves_what_there_is(simulation):
    simulation.start(LONG)
    wait(lambda: len(simulation.rows) > 3)
    simulation.command("pause")
    simulation.close(30)
    assert (simulation.status().state, simulation.status().message) == (
        STOPPED, "stopped, because the server ended"
    )  # fmt: skip
    count = len(simulation.rows)
    (run,) = simulation.report().problems[0].runs
    assert len(run.rows) == count > 3
    time.sleep(0.2)
    assert len(simulation.rows) == count


def test_a_report_never_mixes_two_runs(simulation):
    """While one run follows another, every report is of one of them."""
    found = set()
    simulation.start(LONG)
    wait(lambda: len(simulation.rows) > 3)
    for _ in range(3):
        simulation.command("stop")
        simulation.join(30)
        simulation.start(SMALL)
        while simulation.status().state == RUNNING:
            made = simulation.report()
            found.add((made.rerun.command, *(run.name for run in made.problems[0].runs)))
        simulation.start(LONG)
        wait(lambda: len(simulation.rows) > 3)
    command = SMALL.resolved().command()
    assert found <= {(command, *names) for names in [(), ("fib-shed",), ("fib-shed", "newton")]}


def test_what_cannot_run_is_refused_at_once_or_said_when_it_is_known(simulation, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'fib-shed'"):
        simulation.start(ComparisonSpec(algorithms=("fib-shd",)))
    with pytest.raises(ConfigError, match="rayleigh"):
        simulation.start(ComparisonSpec(budget="raleigh"))
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="FEDSHED_DATA"):
        simulation.start(ComparisonSpec(dataset="w8a"))
    assert simulation.status().state == READY
    simulation.start(ComparisonSpec(agents=1000))  # more than a class has rows
    simulation.join(30)
    assert simulation.status().state == FAILED
    assert "use fewer agents" in simulation.status().message


def test_before_anything_ran_there_is_a_page(simulation):
    assert "fedshed compare" in page(simulation.report())


# Logs


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run with a log: its result, and the lines."""
    folder = tmp_path_factory.mktemp("run")
    federation = SMALL.resolved().data()
    result = fedshed.optimize(federation, l2=1e-2, algorithm="fib-shed", watch=fedshed.RunLog(folder))
    return result, (folder / "run.jsonl").read_bytes().splitlines(keepends=True)


def test_a_log_is_followed_while_it_grows(logged, tmp_path):
    result, lines = logged
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(lines[:4]) + lines[4][:-20])  # the last line is being written
    log = Log(tmp_path)
    assert log.status().state == "following"
    assert [row.iteration for _, row in log.rows] == [0, 1, 2]
    path.write_bytes(b"".join(lines))
    assert log.status().state == DONE
    found = [(row.iteration, row.grad_norm) for _, row in log.rows]
    assert found == [(row.iteration, row.grad_norm) for row in result.trace]
    assert log.rows[-1][1].exchanges == result.trace[-1].exchanges
    (problem,) = log.report().problems
    (run,) = problem.runs
    assert (run.converged, run.ended, problem.count) == (True, result.reason, 4)


def test_pairs_and_renewals_in_a_log_agree_with_the_trace(logged, tmp_path):
    result, lines = logged
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines))
    log = Log(tmp_path / "run.jsonl")
    held = log.report().problems[0].runs[0].pairs
    assert np.max(held.values, axis=0).tolist() == [result.trace[t].q_max for t in held.iterations]
    renewals = {row.iteration - 1 for row in result.trace if row.renewed and row.iteration > 1}
    seen = {row.iteration for _, row in log.rows if row.renewed}
    assert seen
    assert seen <= renewals


def test_a_log_has_the_hessians_vectors_and_bytes_of_the_run_and_a_bound_of_its_gap(logged, tmp_path):
    result, lines = logged
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines))
    log = Log(tmp_path)
    assert log.status().state == DONE
    rows, trace = [row for _, row in log.rows], result.trace
    for row, after in zip(rows[:-2], trace[1:-1], strict=True):  # the line of a round counts that round
        counts = ("exchanges", "hessians", "uplink_vectors", "uplink_bytes", "downlink_bytes")
        assert [getattr(row, name) for name in counts] == [getattr(after, name) for name in counts]
    assert rows[-1].hessians == trace[-1].hessians
    assert (rows[-1].uplink_bytes, rows[-1].f) == (trace[-1].uplink_bytes, trace[-1].f)
    (problem,) = log.report().problems
    assert problem.gap.name == "gap at most"
    optimum = trace[-1].f
    assert all(row.gap >= row.f - optimum for row in rows)
    (run,) = problem.runs
    assert sum(site.uplink_bytes for site in run.traffic) == rows[-2].uplink_bytes
    assert len(run.traffic) == 4


def test_a_log_of_an_earlier_version_is_read_without_what_it_does_not_say(logged, tmp_path):
    _, lines = logged
    new = ("hessians", "vectors", "f", "uplink_bytes", "downlink_bytes")
    kept = [json.loads(line) for line in lines]
    kept[1].pop("hessians"), kept[1].pop("vectors")
    for name in new:
        kept[-1].pop(name)
    (tmp_path / "run.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    log = Log(tmp_path)
    assert log.status().state == DONE
    first, last = log.rows[0][1], log.rows[-1][1]
    assert np.isnan([first.hessians, first.uplink_vectors, last.hessians, last.f]).all()
    assert last.uplink_bytes == log.rows[-2][1].uplink_bytes


def test_a_resumed_run_goes_on_where_its_checkpoint_was(logged, tmp_path):
    _, lines = logged
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(lines[:6]))
    log = Log(path)
    before = log.status().generation
    path.write_bytes(b"".join([*lines[:6], lines[0], *lines[4:7]]))
    assert log.status().generation > before
    assert [row.iteration for _, row in log.rows] == list(range(6))


def test_a_log_that_is_begun_anew_is_read_anew(logged, tmp_path):
    _, lines = logged
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(lines[:6]))
    log = Log(path)
    before = log.status().generation
    path.write_bytes(b"".join(lines[:2]))
    assert log.status().generation > before
    assert len(log.rows) == 1


def test_a_file_that_is_no_log_or_not_there_is_said(tmp_path):
    (tmp_path / "run.jsonl").write_text("{}\n")
    assert "is not the log of a run" in Log(tmp_path).status().message
    with pytest.raises(DataError, match=r"no log .*no\.jsonl"):
        Log(tmp_path / "no.jsonl")


def test_without_its_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["ui"])
    assert result.exit_code == 2
    assert "pip install 'fedshed[ui]'" in result.stderr
