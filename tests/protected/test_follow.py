"""Sites compute what must be asked next, and answer nothing else."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from tests.protected.plain_sums import played, rows_of
from threadpoolctl import threadpool_info

import fedshed
from fedshed._utils.errors import Error, ProtocolError
from fedshed.algorithms import linesearch
from fedshed.protected.comparing import check_request
from fedshed.protected.follow import Follower, same_point
from fedshed.protocol.conversation import LEAD
from fedshed.protocol.messages import Search, Update
from fedshed.protocol.replies import Request
from fedshed.solve.stages import INSPECT


def moved(exchange, by, field="theta", units=1.0):
    """A Master that moves a field of the first part of one exchange."""

    def deviate(number, request):
        part = request.parts[0]
        if number != exchange or getattr(part, field, None) is None:
            return None
        return [replace(part, **{field: getattr(part, field) + by * np.asarray(units)}), *request.parts[1:]]

    return deviate


@pytest.mark.parametrize("algorithm", ["newton", "lbfgs"])
def test_a_study_of_sums_is_the_plain_study(algorithm):
    federation = rows_of()
    plain = fedshed.optimize(federation, l2=1e-3, algorithm=algorithm, intercept=True)
    with played(federation, algorithm) as play:
        fitted, _ = play()
    errors = np.sqrt(np.diag(fitted.inference.covariance()))
    assert np.abs((fitted.result.theta - plain.theta) / errors).max() < 1e-6
    assert fitted.result.converged


@pytest.mark.parametrize("exchange", [2, 3, 5])
@pytest.mark.parametrize("by", [1e-8, 1e-3, 1e9, np.nan])
def test_a_point_that_does_not_follow_from_the_sums_is_refused(exchange, by):
    deviating = played(rows_of(units=(1.0, 1.0, 1.0)), deviate=moved(exchange, by))
    with deviating as play, pytest.raises(Error, match=r"follow from the sums|NaN"):
        play()


def test_rounding_of_another_processor_is_no_deviation():
    with played(rows_of(units=(1.0, 1.0, 1.0)), deviate=moved(3, 1e-13)) as play:
        assert play()[0].result.converged


def test_a_point_is_compared_in_the_units_of_the_columns():
    # of a column of size 10^9 a coefficient that moves by 10^-9 moves every row by 1
    federation, small = rows_of(units=(1.0, 1.0, 1e9)), (0.0, 0.0, 1.0, 0.0)
    deviating = played(federation, deviate=moved(3, 1e-9, units=small))
    with deviating as play, pytest.raises(ProtocolError, match="another theta does"):
        play()
    with played(rows_of(units=(1.0, 1.0, 1.0)), deviate=moved(3, 1e-10, units=small)) as play:
        assert play()[0].result.converged


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda part: replace(part, etas=part.etas * 1e6), "step size"),
        # the same points, but an Update without theta is asked for at the full step
        (lambda part: replace(part, direction=part.direction * 1e9, etas=part.etas / 1e9), "step size"),
        (lambda part: replace(part, direction=part.direction / 1e9, etas=part.etas * 1e9), "step size"),
        (lambda part: replace(part, etas=part.etas * 2, direction=part.direction / 2), "step size"),
        (lambda part: replace(part, etas=part.etas[:1]), "search"),
        (lambda part: replace(part, direction=part.direction + 1e-6), "direction"),
        (lambda part: replace(part, slopes=not part.slopes), "search"),
    ],
)
def test_another_search_is_refused(change, why):
    def deviate(number, request):
        part = request.parts[0]
        return [change(part), *request.parts[1:]] if isinstance(part, Search) else None

    with played(rows_of(), deviate=deviate) as play, pytest.raises(ProtocolError, match=why):
        play()


def test_the_full_step_of_a_search_is_a_point_that_must_follow():
    # the part after a search asks about theta + direction, whatever the step sizes of the search are
    search = Search(np.zeros(2), np.ones(2), np.array([0.5]))
    own = Request(b"", 1, [search, Update(1, None)], None)
    check_request(own, own)
    stretched = replace(search, direction=search.direction * (1 + 5e-7), etas=search.etas / (1 + 5e-7))
    with pytest.raises(ProtocolError, match="direction"):
        check_request(own, Request(b"", 1, [stretched, Update(1, None)], None))


@pytest.mark.parametrize("settings", [{"errors": "HC3"}, {"count": 5}])
def test_the_master_cannot_choose_a_matrix_by_which_rows_are_weighed(settings):
    # one column is 10^4 times larger than the others, so the variance of its coefficient is far smaller: 1e-6
    # of the largest entry of the inverse is more than that whole variance
    federation, last = rows_of(units=(1e4, 1.0, 1.0)), []

    def deviate(number, request):
        part = request.parts[0]
        if getattr(part, "inverse", None) is None:
            return None
        inverse = np.array(part.inverse)
        inverse[0] += 9e-7 * np.abs(inverse).max()
        last.append((part.inverse[0], inverse[0]))
        return [replace(part, inverse=inverse)]

    with played(federation, **settings) as play:
        honest = play()[1].log
    with played(federation, deviate=deviate, **settings) as play:
        log = play()[1].log
    assert last[0][1] > 2 * last[0][0]
    for one, other in zip(honest, log, strict=True):
        assert np.array_equal(one[3].wide, other[3].wide)
        assert np.array_equal(one[3].slim, other[3].slim)


def test_more_or_fewer_parts_are_refused():
    for change in (lambda parts: [*parts, parts[0]], lambda parts: parts[:0]):
        deviating = played(rows_of(), deviate=lambda number, request, change=change: change(request.parts))
        with deviating as play, pytest.raises(ProtocolError, match="something else"):
            play()


def test_nothing_is_answered_after_the_end():
    with played(rows_of()) as play:
        fitted, sums = play()
        step = next(iter(sums.steps.values()))
        last = step._follower.asked  # whose sums the site has, and from which the end follows
        with pytest.raises(ProtocolError, match="the study has ended"):
            step.check(last.label, last.payload)
    assert fitted.result.converged


def test_nothing_is_answered_in_another_conversation_than_follows():
    with played(rows_of()) as play:
        _, sums = play()
        payload = next(iter(sums.steps.values()))._follower.asked.payload
    with played(rows_of()) as play:
        step = next(iter(play.sums.steps.values()))
        with pytest.raises(ProtocolError, match="but the sums demand conversation"):
            step.check(INSPECT.number, payload)


def test_replays_leave_no_thread_and_give_the_libraries_their_threads_back():
    before, limits = threading.active_count(), [lib["num_threads"] for lib in threadpool_info()]
    with played(rows_of()) as play:
        play()
        assert threading.active_count() == before + 3
    assert threading.active_count() == before
    assert [lib["num_threads"] for lib in threadpool_info()] == limits


@pytest.mark.parametrize("error", [ProtocolError, MemoryError, SystemExit, KeyboardInterrupt])
def test_an_error_of_the_procedure_is_the_end_of_the_replay(error):
    def procedure(exchange):
        exchange(1, b"first")
        raise error("collinear columns")

    follower = Follower(procedure)
    assert follower.asked.payload == b"first"
    follower.answer(b"reply")
    assert follower.asked is None
    assert str(follower.failed) == "collinear columns"


def test_the_masters_choice_settles_a_tie_and_nothing_else():
    # a cost that misses the bound by 1e-14 is a tie; by 1e-6 it is none, whatever the Master says
    search = Search(np.zeros(2), np.ones(2), np.array([1.0, 0.5]))
    state = fedshed.algorithms.base.State(1, np.zeros(2), {})
    problem = fedshed.protocol.conversation.Problem(np.zeros(2), {"all": 1.0}, "logistic")

    def accepted(missed, says):
        token = LEAD.set(SimpleNamespace(agrees=lambda theta: says))
        try:
            return linesearch._is_accepted([missed], problem, state, search, 1.0, (1.0, -1.0))
        finally:
            LEAD.reset(token)

    for says in (True, False):
        assert accepted(1e-14, says) is says
        assert accepted(-1e-14, says) is says
        assert accepted(1e-6, says) is False
        assert accepted(-1e-6, says) is True
    assert linesearch._is_accepted([1e-14], problem, state, search, 1.0, (1.0, -1.0)) is False


def test_points_of_other_lengths_are_other_points():
    assert same_point(np.ones(2), np.ones(2) + 1e-12)
    assert not same_point(np.ones(2), np.ones(3))
    assert not same_point(np.ones(2), np.array([1.0, np.inf]))
    assert not same_point(np.array([1.0, np.inf]), np.ones(2))


def elsewhere(kernels, *arguments):
    """Play or replay studies with the kernels of another processor; the kernels that were used."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.protected.elsewhere", *map(str, arguments)],
        env={**os.environ, "OPENBLAS_CORETYPE": kernels}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels named here are those of x86-64")
def test_a_study_of_another_processor_is_replayed(tmp_path):
    old = elsewhere("Prescott", tmp_path / "sums", "--record")
    new = elsewhere("Haswell", tmp_path / "sums")
    if old == new:
        pytest.skip("this machine has one kind of kernels only")
