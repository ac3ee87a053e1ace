"""A simulation that can be paused and stopped, and a log that is followed while it grows."""

from __future__ import annotations

import sys
import time

import msgspec
import pytest
from typer.testing import CliRunner

from fedshed.cli import app
from fedshed.errors import ConfigError, DataError
from fedshed.experiments import Study
from fedshed.report import page
from fedshed.ui.live import DONE, FAILED, PAUSED, RUNNING, STOPPED, Simulation
from fedshed.ui.log import Log
from reports import bumpy, rows

SMALL = Study(agents=4, l2=1e-2, algorithms=("fib-shed", "newton"), max_iterations=200)
LONG = Study(agents=4, l2=1e-6, algorithms=("agd",), tol=0.0, max_iterations=1_000_000)


def wait(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def simulation():
    made = Simulation()
    yield made
    made.command("stop")
    made.join(30)


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
    with pytest.raises(ConfigError, match="a run is going on"):
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


def test_what_cannot_run_is_refused_at_once_or_said_when_it_is_known(simulation, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'fib-shed'"):
        simulation.start(Study(algorithms=("fib-shd",)))
    with pytest.raises(ConfigError, match="rayleigh"):
        simulation.start(Study(budget="raleigh"))
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    simulation.start(Study(dataset="w8a"))
    simulation.join(30)
    assert simulation.status().state == FAILED
    assert "FEDSHED_DATA" in simulation.status().message


def test_before_anything_ran_there_is_a_page(simulation):
    assert "fedshed compare" in page(simulation.report())


# Logs


def line(row, **more) -> bytes:
    return msgspec.json.encode({"row": row, **more}) + b"\n"


def test_a_log_is_followed_while_it_grows(tmp_path):
    path, trace = tmp_path / "run.jsonl", rows(bumpy(4))
    whole = line(trace[0], run="fib-shed", agents=3) + b'{"event": "site north came back"}\n'
    path.write_bytes(whole + line(trace[1], run="fib-shed")[:-20])
    log = Log(path)
    assert log.status().message == "run.jsonl: 1 rows, 1 lines of another kind"
    path.write_bytes(whole + line(trace[1], run="fib-shed") + line(trace[2], run="pen"))
    log.status()
    assert log.rows == [("fib-shed", trace[0]), ("fib-shed", trace[1]), ("pen", trace[2])]
    assert log.report().problems[0].count == 3


def test_pairs_in_a_log_are_a_map_with_holes_where_an_agent_was_silent(tmp_path):
    path, trace = tmp_path / "run.jsonl", rows(bumpy(3))
    path.write_bytes(line(trace[1], pairs={"a": 1, "b": 2}) + line(trace[2], pairs={"b": 4}))
    (run,) = Log(path).report().problems[0].runs
    assert (run.pairs.agents, run.pairs.iterations) == (("a", "b"), (1, 2))
    assert run.pairs.values == ((1, None), (2, 4))


def test_a_row_may_leave_out_what_a_deployment_does_not_know(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"run": "x", "row": {"iteration": 0, "grad_norm": 0.5, "gap": null}}\n')
    assert '"gap":[null]' in page(Log(path).report())


def test_a_log_that_is_begun_anew_is_read_anew(tmp_path):
    path, trace = tmp_path / "run.jsonl", rows(bumpy(3))
    path.write_bytes(line(trace[0]) + line(trace[1]))
    log = Log(path)
    before = log.status().generation
    path.write_bytes(line(trace[0]))
    assert log.status().generation == before + 1
    assert len(log.rows) == 1


def test_a_log_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no\.jsonl is not there"):
        Log(tmp_path / "no.jsonl")


def test_without_its_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["ui"])
    assert result.exit_code == 2
    assert "pip install 'fedshed[ui]'" in result.stderr
