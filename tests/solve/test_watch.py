"""Watching a run: the log says what happened, the view shows it, and other trackers get the same numbers."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import fedshed
from conftest import make_federation
from fedshed.cli import app
from fedshed.cli.watch import RunLogView
from fedshed.exchange import Faulty, InProcess
from fedshed.solve.watching import Begin, End, Line, ObserverGroup, Round, RunLog, lines, seconds_left

L2 = 1e-3


def noisy(sites):
    return Faulty(InProcess(sites), lose=0.3, repeat=0.2, seed=5)


@pytest.fixture
def logged(tmp_path):
    """A disturbed run and the lines of its log."""
    federation, log = make_federation("logistic"), RunLog(tmp_path)
    result = fedshed.optimize(
        federation, algorithm="fib-shed", l2=L2, transport=noisy, watch=log, checkpoint=tmp_path / "ckpt"
    )
    return result, read(tmp_path)


def read(folder):
    with (folder / "run.jsonl").open("rb") as stream:
        return list(lines(stream))


def test_the_log_is_the_trace_with_its_sites(logged):
    result, (study, *rounds, end) = logged
    assert isinstance(study, Begin)
    assert sum(study.sites.values()) == pytest.approx(1)
    assert isinstance(end, End)
    assert (end.converged, end.reason) == (result.converged, result.reason)
    assert [one.iteration for one in rounds] == [row.iteration for row in result.trace[:-1]]
    assert [one.f for one in rounds] == [row.f for row in result.trace[:-1]]
    for one in rounds:
        assert sum(site.uplink_bytes for site in one.sites.values()) == one.uplink_bytes
        assert sum(site.downlink_bytes for site in one.sites.values()) == one.downlink_bytes
        for site in one.sites.values():
            assert (site.status == "answered") == (site.silent == 0) == (site.last == one.exchanges)
            assert 0 <= site.pairs <= study.n - 1
    assert {site.status for one in rounds for site in one.sites.values()} == {"answered", "absent"}


def test_a_bound_is_given_only_where_everyone_answered(logged):
    """Where it is given, it bounds the gap; with sites absent the gradient is a model's."""
    _, (_, *rounds, _) = logged
    _, f_star = fedshed.optimum(make_federation("logistic"), l2=L2)
    bounded = [one for one in rounds if one.bound is not None]
    assert 0 < len(bounded) < len(rounds)
    assert all(one.f - f_star <= one.bound + 1e-14 for one in bounded)


def test_a_refusal_is_in_the_log_with_its_reason(tmp_path):
    class Garbles(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            return [
                (i, b"?" if i == "small" and self.count == 3 else d) for i, d in super().exchange(payloads)
            ]

    log = RunLog(tmp_path)
    search = fedshed.Fused()
    fedshed.optimize(
        make_federation("logistic"),
        algorithm="fib-shed",
        l2=L2,
        transport=Garbles,
        watch=log,
        line_search=search,
    )
    refused = [one.sites["small"] for one in read(tmp_path)[1:-1] if one.sites["small"].status == "refused"]
    assert len(refused) == 1
    assert "not a valid message" in refused[0].why


def test_a_resumed_run_goes_on_in_the_same_log(logged, tmp_path):
    fedshed.resume(tmp_path / "ckpt", make_federation("logistic"), tol=1e-12, watch=RunLog(tmp_path))
    with (tmp_path / "run.jsonl").open("rb") as stream:
        told = RunLogView(stream)
    iterations = [one.iteration for one in told.rounds]
    assert iterations == sorted(set(iterations))  # rounds that were played again are shown once
    assert told.end is not None
    assert told.study.tol == 1e-12


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_line_that_is_being_written_is_waited_for(logged, tmp_path, cut):
    whole = (tmp_path / "run.jsonl").read_bytes()
    stream = io.BytesIO(whole[:-cut])
    first = list(lines(stream))
    stream.write(whole[stream.tell() :])
    stream.seek(sum(len(msgspec.json.encode(line)) + 1 for line in first))
    assert first + list(lines(stream)) == logged[1]


# --- the command ------------------------------------------------------------------------------------------


def shown(*arguments):
    result = CliRunner().invoke(app, ["watch", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_finished_run_is_shown_plainly_in_a_pipe(logged, tmp_path):
    code, text = shown(tmp_path)
    assert code == 0
    assert "\x1b" not in text
    for word in ("small", "middle", "large", "converged after", "grad. norm", "gap at most", "pairs"):
        assert word in text


def test_a_run_that_is_going_on_is_shown_with_the_time_left(logged, tmp_path):
    whole = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.jsonl").write_bytes(b"".join(whole[:-3]))
    code, text = shown(tmp_path)
    assert code == 0
    assert "running; time left: " in text
    (tmp_path / "run.jsonl").write_bytes(whole[0])
    assert "no round is complete yet" in shown(tmp_path)[1]


def test_the_live_view_ends_with_the_run(logged, tmp_path, monkeypatch):
    """It follows a log that grows, and returns once the last line is there."""
    from fedshed.cli import watch

    whole = (tmp_path / "run.jsonl").read_bytes()
    (tmp_path / "run.jsonl").write_bytes(whole[: len(whole) // 2])
    naps = []

    def nap(seconds):
        naps.append(seconds)
        (tmp_path / "run.jsonl").write_bytes(whole if len(naps) > 2 else whole[: len(whole) * 3 // 4])

    monkeypatch.setattr(watch.time, "sleep", nap)
    with (tmp_path / "run.jsonl").open("rb") as stream:
        told = RunLogView(stream)
        watch._follow(told)
    assert len(naps) == 3
    assert told.end is not None


def test_json_has_the_last_of_everything(logged, tmp_path):
    code, text = shown(tmp_path, "--json")
    assert code == 0
    last = msgspec.json.decode(text)
    assert last["end"]["converged"] is True
    assert last["round"]["iteration"] == logged[1][-2].iteration


def test_before_the_first_exchange_it_waits(logged, tmp_path, monkeypatch):
    """It ended with an error until the run had written its first line."""
    from fedshed.cli import watch

    whole = (tmp_path / "run.jsonl").read_bytes()
    folder, naps = tmp_path / "later", []

    def nap(seconds):
        naps.append(seconds)
        folder.mkdir(exist_ok=True)
        (folder / "run.jsonl").write_bytes(whole if len(naps) > 1 else b"")

    monkeypatch.setattr(watch.time, "sleep", nap)
    code, text = shown(folder)
    assert code == 0
    assert len(naps) == 2
    assert "waiting for a run" in text
    assert "converged after" in text


def test_a_folder_without_a_log_and_a_file_that_is_none_are_told_in_one_line(tmp_path):
    code, text = shown(tmp_path, "--once")
    assert code == 2
    assert "RunLog" in text
    (tmp_path / "run.jsonl").write_text("nonsense\n")
    code, text = shown(tmp_path)
    assert code == 1
    assert "not the log of a run" in text


def test_the_time_left_is_exact_where_the_norm_falls_steadily():
    blank = {
        "exchanges": 0,
        "uplink_bytes": 0,
        "downlink_bytes": 0,
        "f": 0.0,
        "bound": None,
        "eta": 1.0,
        "sites": {},
    }
    rounds = [Round(time=0.0, iteration=k, seconds=2.0 * k, grad_norm=10.0**-k, **blank) for k in range(6)]
    assert seconds_left(rounds, 1e-9) == pytest.approx(8.0)  # four more decades, two seconds each
    assert seconds_left(rounds[:2], 1e-9) is None
    assert seconds_left(rounds[::-1], 1e-9) is None or seconds_left(rounds[::-1], 1e-9) >= 0
    assert seconds_left(rounds, 0.0) is None


# --- other trackers ---------------------------------------------------------------------------------------


@pytest.fixture
def trackers(monkeypatch):
    """Stand-ins for the two packages, which record what they are told."""
    told = SimpleNamespace(scalars={}, metrics=[], params={}, tags={}, active=None)

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_text(self, name, text):
            told.tags[name] = text

        def add_scalar(self, name, value, step):
            told.scalars.setdefault(name, {})[step] = value

        def flush(self):
            pass

        def close(self):
            told.closed = True

    board, mlflow = ModuleType("tensorboardX"), ModuleType("mlflow")
    board.SummaryWriter = SummaryWriter
    mlflow.active_run = lambda: told.active
    mlflow.start_run = lambda: setattr(told, "active", True)
    mlflow.end_run = lambda: setattr(told, "active", None)
    mlflow.log_params = told.params.update
    mlflow.set_tags = told.tags.update
    mlflow.log_metrics = lambda metrics, step: told.metrics.append((step, metrics))
    monkeypatch.setitem(sys.modules, "tensorboardX", board)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return told


def test_tensorboard_and_mlflow_get_the_numbers_of_the_log(tmp_path, trackers):
    from fedshed.solve.tracking import MLflow, TensorBoard

    result = fedshed.optimize(
        make_federation("logistic"), algorithm="fib-shed", l2=L2,
        watch=ObserverGroup(RunLog(tmp_path), TensorBoard(tmp_path), MLflow()),
    )  # fmt: skip
    rounds: list[Line] = read(tmp_path)[1:-1]
    for k, one in enumerate(rounds):
        step, metrics = trackers.metrics[k]
        assert step == one.iteration
        assert metrics["grad_norm"] == one.grad_norm == trackers.scalars["grad_norm"][step]
        assert metrics["sites/large/uplink_bytes"] == one.sites["large"].uplink_bytes
    assert trackers.tags["reason"] == trackers.tags["end"] == result.reason
    assert trackers.params["n"] == 6
    assert trackers.active is None


@pytest.mark.parametrize(("package", "made"), [("tensorboardX", "TensorBoard"), ("mlflow", "MLflow")])
def test_without_the_package_the_extra_is_named(monkeypatch, tmp_path, package, made):
    from fedshed.solve import tracking

    monkeypatch.setitem(sys.modules, package, None)
    arguments = (tmp_path,) if made == "TensorBoard" else ()
    with pytest.raises(ImportError, match=r"pip install 'fedshed\["):
        getattr(tracking, made)(*arguments)


def test_watching_moves_no_bit(logged):
    plain = fedshed.optimize(make_federation("logistic"), algorithm="fib-shed", l2=L2, transport=noisy)
    assert np.array_equal(plain.theta, logged[0].theta)
