"""Coded links: both ends hold the same bits whatever was lost, directions descend, units cancel."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed import CodecError, ConfigError, Differences, Federation, Fused, TwoExchange
from fedshed.algorithms import Lbfgs, QnShed, build
from fedshed.algorithms.lbfgs import LbfgsState, bfgs_product, two_loop
from fedshed.algorithms.linked import FINER, LEAST_ACCURACY_FACTOR, coarsest_step, next_accuracy_factor
from fedshed.algorithms.linked_agents import _complete_search, _recall_cache
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.objectives import local_objectives
from fedshed.privacy.audit import Audit, digests, entries
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed.protocol import links
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Problem
from fedshed.protocol.links import (
    AgentLink,
    AlongDirection,
    AtCurrentPoint,
    FirstExchange,
    FirstReply,
    FullState,
)
from fedshed.protocol.messages import Search, Update
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal

L2 = 1e-3
NAMES = ("qn-shed", "lbfgs-coded")
QUICK = settings(deadline=None, max_examples=40)


def states(name, federation, transport_of=InProcess, iterations=40, theta0=None, tol=1e-10):
    """Every state of a run, with the transport it ran over."""
    objectives, algorithm, n = local_objectives(federation, "logistic"), build(name), federation.dim
    problem = Problem(np.full(n, L2), {i: o.weight for i, o in objectives.items()}, "logistic")
    transport = transport_of({i: Site(i, o, algorithm) for i, o in objectives.items()})
    start = Progress(algorithm.start(problem, np.zeros(n) if theta0 is None else theta0), rows=[])
    run = iterate(algorithm, problem, transport, start, Goal(tol=tol, max_iterations=iterations))
    return objectives, transport, [progress.state for progress in run]


def secants_of(seed, count=5, n=6):
    """A positive definite matrix with secants of it and of noise, all with curvature."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n)) * np.geomspace(1, 0.1, n)
    H = A.T @ A + 0.01 * np.eye(n)
    s = rng.normal(size=(count, n))
    y = s @ H + 0.01 * rng.normal(size=(count, n))
    curved = np.sum(s * y, axis=1) > 1e-3
    return H, s[curved], y[curved], rng


# --- directions -----------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 8))
@QUICK
def test_the_direct_product_is_the_inverse_of_the_two_loop_product(seed, count):
    """Also where there are more secants than columns."""
    H, s, y, rng = secants_of(seed, count)
    v, d = rng.normal(size=6), np.diag(H)
    direct = bfgs_product(s, y, lambda x: d * x)
    np.testing.assert_allclose(direct(two_loop(v, s, y, lambda x: x / d)), v, rtol=1e-6, atol=1e-7)


@given(st.integers(0, 10**6), st.floats(0.01, 0.9), st.floats(-3, 3))
@QUICK
def test_a_coded_direction_keeps_all_but_tau_of_the_descent(seed, tau, log_scale):
    """e'He <= tau^2 |g'd| and d = -H^-1 g, so |g'e| <= tau |g'd|."""
    H, s, y, rng = secants_of(seed)
    g, scale = rng.normal(size=6) * 10**log_scale, np.diag(H)
    d = -two_loop(g, s, y, lambda x: x / scale)
    product = bfgs_product(s, y, lambda x: x * scale)
    algorithm = Lbfgs(precision=Differences(direction=tau))
    state = LbfgsState(1, np.zeros(6), {}, frame=links.encode_diagonal(scale))
    state, rounded = algorithm.round_direction(Problem(np.zeros(6), {}, "logistic"), state, g, d, product)
    e = rounded - d
    assert e @ product(e) <= tau**2 * abs(g @ d) * (1 + 1e-6)
    assert g @ rounded <= (1 - tau) * (g @ d) * (1 - 1e-6)
    assert np.array_equal(rounded, links.decode_direction(state.move, state.frame, 6))


@given(st.integers(0, 10**6), st.floats(-3, 0))
@QUICK
def test_the_step_of_a_direction_is_the_coarsest_that_is_within(seed, log_bound):
    x = np.random.default_rng(seed).normal(size=30)

    def within(e):
        return float(e @ e) <= 10**log_bound * float(x @ x)

    step = coarsest_step(x, within)
    assert within(np.rint(x / step) * step - x)
    coarser = float(np.float32(step / FINER))
    first = step > 1.9 * np.sqrt(np.mean(x * x))
    assert first or not within(np.rint(x / coarser) * coarser - x)


@pytest.mark.parametrize("name", NAMES)
def test_costs_fall_and_neither_theta_nor_a_direction_travels_in_full(name):
    federation = make_federation("logistic", n=60, sizes={"a": 200, "b": 300})
    result = fedshed.optimize(federation, algorithm=name, l2=L2, tol=1e-9)
    f, last = result.trace.column("f"), result.trace[-1]
    assert result.converged
    assert (np.diff(f) <= 1e-15).all()
    assert last.downlink_bytes / last.exchanges / 2 < 8 * 60 / 2


@pytest.mark.parametrize("name", NAMES)
def test_where_the_curvature_of_one_column_vanishes_rounded_gradients_do_not_stall_the_run(name):
    """A rare level of one class, no penalty: only gradients that become more accurate get to tol."""
    rng = np.random.default_rng(0)
    y, level = rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    level[np.flatnonzero(y)[:2]] = 2
    X = np.column_stack([rng.normal(size=200), level == 1, level == 2, np.ones(200)]).astype(float)
    classes = np.where(y == 1, "yes", "no")
    federation = Federation.from_sites({str(i): (X[i::3], classes[i::3]) for i in range(3)})
    result = fedshed.optimize(federation, algorithm=name, l2=0.0, tol=1e-8, max_iterations=300)
    assert result.trace[-1].grad_norm <= 1e-8


@given(st.lists(st.integers(0, 40), max_size=12))
@QUICK
def test_care_falls_with_short_steps_and_full_steps_bring_it_back(powers):
    accuracy_factor = 1.0
    for j in powers:
        after = next_accuracy_factor(accuracy_factor, 0.5**j)
        assert 0 < after <= 1
        assert (after < accuracy_factor) == (j > 2 and accuracy_factor > LEAST_ACCURACY_FACTOR)
        accuracy_factor = after
    for _ in range(20):
        accuracy_factor = next_accuracy_factor(accuracy_factor, 1.0)
    assert accuracy_factor == 1.0


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_points_agree_bit_for_bit(name):
    """And the copies are as near to the truth as was asked for: half a step in each entry."""
    start = np.full(6, 0.3)
    objectives, transport, visited = states(
        name, make_federation("logistic"), iterations=8, theta0=start, tol=0.0
    )
    last = visited[-1]
    units = links.units_of(last.frame, 6)
    step = build(name).precision.gradient * np.linalg.norm(last.last[1] / units) / 6**0.5
    for i, known in last.known.items():
        held = transport.sites[i]._cache
        assert np.array_equal(held.g, known.g)
        own = AgentLink(
            links.digest_of_point(last.theta, last.frame), links.digest(known.g.tobytes()), None, None
        )
        assert np.array_equal(_recall_cache(held, b"", own).theta, last.theta)
        off = (known.g - objectives[i].at(last.theta).gradient) / units
        assert np.abs(off).max() <= step / 2 * (1 + 1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_after_losses_repeats_and_restarts_both_ends_mean_the_same_gradient(name, seed):
    """The Master's digest is the agent's newest gradient or the one before, and then the same bits."""
    faults = {"lose": 0.25, "delay": 0.2, "repeat": 0.3, "forget": 0.2, "seed": seed}
    _, transport, visited = states(
        name, make_federation("logistic"), lambda s: Faulty(InProcess(s), **faults)
    )
    assert all(count > 0 for count in transport.happened.values())
    for i, known in visited[-1].known.items():
        held = transport._inner.sites[i]._cache
        if held is not None and held.g is not None:
            copies = [g for g in (held.g, held.before) if g is not None]
            assert any(np.array_equal(g, known.g) for g in copies)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["g", "theta"])
def test_a_copy_that_differs_is_detected_and_healed_in_one_exchange(name, what):
    federation = make_federation("logistic")

    class Corrupts(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            if self.count == 5:
                held = self.sites["large"]._cache
                wrong = {what: 2 * getattr(held, what), "before": None, "direction": None}
                self.sites["large"]._cache = replace(held, **wrong)
            return super().exchange(payloads)

    healed = fedshed.optimize(federation, algorithm=name, l2=L2, transport=Corrupts)
    quiet = fedshed.optimize(federation, algorithm=name, l2=L2)
    assert np.array_equal(healed.theta, quiet.theta)
    assert healed.trace[-1].exchanges == quiet.trace[-1].exchanges + 1
    assert healed.trace[-1].downlink_bytes > quiet.trace[-1].downlink_bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_answer_costs_no_copy(name):
    """The agent goes on from its gradient before the last answer, which the Master never saw."""
    federation, whole = make_federation("logistic", n=40), []

    class Loses(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            codec = codec_of(build(name), 40)
            mine = (codec.decode_request(data).mine for data in payloads.values())
            whole.extend(own.whole for own in mine if isinstance(own, AgentLink))
            lost = "large" if self.count in (3, 5) else None
            return [(i, data) for i, data in super().exchange(payloads) if i != lost]

    result = fedshed.optimize(federation, algorithm=name, l2=L2, transport=Loses)
    assert result.converged
    assert whole
    assert not any(whole)


@pytest.mark.parametrize("name", NAMES)
def test_agents_that_forget_are_sent_theta_and_their_gradient(name):
    federation = make_federation("logistic")
    here, there = (
        fedshed.optimize(federation, algorithm=name, l2=L2, transport=t) for t in (None, Stateless)
    )
    assert np.array_equal(here.theta, there.theta)
    assert here.trace[-1].exchanges == there.trace[-1].exchanges
    assert there.trace[-1].downlink_bytes > here.trace[-1].downlink_bytes + 2 * 8 * 6


@pytest.mark.parametrize("start", [0.0, 5.0])
def test_both_exchange_patterns_give_the_same_iterates_bit_for_bit(start):
    federation, theta0 = make_federation("logistic"), start * np.random.default_rng(1).normal(size=6)
    two, fused = (
        fedshed.optimize(federation, algorithm="lbfgs-coded", line_search=search, theta0=theta0, l2=L2)
        for search in (TwoExchange(), Fused())
    )
    assert np.array_equal(two.theta, fused.theta)
    assert two.trace.column("f").tolist() == fused.trace.column("f").tolist()
    assert fused.trace[-1].exchanges < two.trace[-1].exchanges


# --- units ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
def test_columns_in_other_units_change_no_iterate(name, loss):
    """Columns times 4^k and penalties times 16^k: theta times 4^-k, to the last bit."""
    federation = make_federation(loss, n=8)
    units = 4.0 ** np.array([0, 3, -2, 5, 1, -4, 0, 2])
    other = Federation.from_sites({i: (t.X * units, t.y) for i, t in federation.tables.items()})
    plain, scaled = (
        fedshed.optimize(f, algorithm=name, loss=loss, l2=l2, tol=0.0, max_iterations=15)
        for f, l2 in ((federation, np.full(8, L2)), (other, L2 * units**2))
    )
    np.testing.assert_allclose(scaled.theta * units, plain.theta, rtol=1e-9, atol=1e-12)
    sent, same = (np.diff(run.trace.column("uplink_bytes"))[1:] for run in (scaled, plain))
    assert np.array_equal(sent, same)


@pytest.mark.data("heart")
def test_raw_columns_without_a_penalty_converge():
    """Age in years beside shares and a cholesterol of hundreds: Newton takes 7 iterations."""
    federation = fedshed.datasets.load("heart")
    result = fedshed.optimize(federation, algorithm="qn-shed", l2=0.0, intercept=True, tol=1e-8)
    newton = fedshed.optimize(federation, algorithm="newton", l2=0.0, intercept=True, tol=1e-8)
    assert result.converged, result.reason
    assert abs(result.trace[-1].f - newton.trace[-1].f) < 1e-13
    assert len(result.trace) < 5 * len(newton.trace)


def test_columns_of_very_different_size_converge():
    """Raw columns from 1e-3 to 1e4, no penalty: as Newton's limit, in a few times its iterations."""
    rng = np.random.default_rng(3)
    units = np.geomspace(1e-3, 1e4, 10)
    tables = {}
    for site in "abcd":
        X = (rng.normal(size=(150, 10)) + 1.0) * units
        tables[site] = (
            X,
            np.where(X / units @ np.linspace(-1, 1, 10) + rng.logistic(size=150) > 0, "yes", "no"),
        )
    federation = Federation.from_sites(tables)
    ours, newton = (
        fedshed.optimize(federation, algorithm=a, l2=0.0, tol=1e-7) for a in ("qn-shed", "newton")
    )
    assert ours.converged, ours.reason
    np.testing.assert_allclose(ours.theta * units, newton.theta * units, atol=1e-6)
    assert len(ours.trace) < 6 * len(newton.trace)


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-250, 1e250)), min_size=1, max_size=30))
@QUICK
def test_a_diagonal_is_known_to_an_eighth_of_an_octave_and_zeros_stay_zeros(values):
    diagonal = np.array(values)
    roots = links.roots_of(links.encode_diagonal(diagonal), len(diagonal))
    assert np.array_equal(roots == 0, diagonal == 0)
    off = np.log2(roots[roots > 0] ** 2) - np.log2(diagonal[diagonal > 0])
    assert (np.abs(off) <= 0.125 + 1e-9).all()


# --- bytes that are none ---------------------------------------------------------------------------


@given(st.binary(max_size=60), st.integers(1, 40))
@QUICK
def test_any_bytes_are_a_diagonal_and_a_direction_or_a_codec_error(data, n):
    frame = links.encode_diagonal(np.ones(n))
    for decode in (lambda: links.roots_of(data, n), lambda: links.decode_direction(data, frame, n)):
        with suppress(CodecError):
            assert np.isfinite(decode()).all()


def asked_of(site, codec, *parts, mine=None):
    request = codec.encode_request(codec.encode_common(b"run!", 1, parts), mine)
    return codec.decode_reply(site.answer(request)).parts


def test_a_direction_that_cannot_be_decoded_is_declined_by_the_site():
    algorithm, zero = build("lbfgs-coded"), np.zeros(6)
    objective = local_objectives(make_federation("logistic"), "logistic")["large"]
    site, codec = Site("large", objective, algorithm), codec_of(algorithm, 6)
    own = AgentLink(links.digest_of_point(zero, b""), None, None, None)
    (answer,) = asked_of(site, codec, AlongDirection(b"noise", np.ones(1), 1, False, b""), mine=own)
    assert "not a coded direction" in answer.why
    (answer,) = asked_of(site, codec, AtCurrentPoint(3, 0.0, b""), mine=replace(own, point=own.point ^ 1))
    assert type(answer).__name__ == "Forgot"


ZERO = np.zeros(6)
AT_ZERO = AgentLink(links.digest_of_point(ZERO, b""), None, None, None)
ODD = {
    "nothing": ([], AT_ZERO),
    "an update without its search": ([Update(2, None)], AT_ZERO),
    "a plain update": ([Update(2, ZERO)], AT_ZERO),
    "two searches": ([AlongDirection(b"\0" + bytes(48), np.ones(1), 1, False, b"")] * 2, AT_ZERO),
    "a point without its own part": ([AtCurrentPoint(2, 0.1, b"")], None),
    "a frame that is none": (
        [AtCurrentPoint(2, 0.1, b"noise")],
        replace(AT_ZERO, whole=FullState(ZERO, None, b"\7")),
    ),
    "steps of 0": ([AlongDirection(b"\0" + bytes(48), np.zeros(2), 8, False, b"")], AT_ZERO),
    "far away": (
        [AlongDirection(b"\0" + np.full(6, 1e300).tobytes(), np.full(2, 1e9), 8, True, b"")],
        AT_ZERO,
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("odd", ODD)
def test_a_request_that_no_master_sends_is_answered_or_declined(name, odd):
    """Nothing but a message leaves, and the site goes on: its next answer is as if nothing had been."""
    objective = local_objectives(make_federation("logistic"), "logistic")["large"]
    codec, (parts, own) = codec_of(build(name), 6), ODD[odd]
    site, other = (Site("large", objective, build(name)) for _ in range(2))
    asked_of(site, codec, *parts, mine=own)
    (one,), (two,) = (asked_of(s, codec, FirstExchange(None, -0.1)) for s in (site, other))
    assert isinstance(one, FirstReply)
    assert np.array_equal(one.gradient, two.gradient)


@pytest.mark.parametrize("wrong", [{"count": 33}, {"count": 1}, {"etas": np.ones(0)}])
def test_a_search_of_too_many_step_sizes_is_refused(wrong):
    with pytest.raises(ValueError, match="step sizes"):
        AlongDirection(
            **({"direction": b"", "etas": np.ones(2), "count": 8, "slopes": False, "frame": b""} | wrong)
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_first_answer_without_a_diagonal_is_refused_by_name(name):
    federation = make_federation("logistic")
    codec = codec_of(build(name), 6)

    class Lies(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            for i, data in super().exchange(payloads):
                reply = codec.decode_reply(data)
                if i == "middle" and self.count == 1:
                    assert isinstance(reply.parts[0], FirstReply)
                    reply = replace(reply, parts=[replace(reply.parts[0], diagonal=b"\7noise")])
                    data = codec.encode_reply(reply, -0.1)
                yield i, data

    result = fedshed.optimize(federation, algorithm=name, l2=L2, transport=Lies)
    assert result.converged
    assert [r.site for r in result.refusals] == ["middle"]
    assert "diagonal" in result.refusals[0].why


# --- what a site keeps on record --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_points_that_only_the_sites_memory_completes_are_on_its_record(name, tmp_path):
    """Each theta^t is among the points of the site's record, though none was sent after the first."""
    federation = make_federation("logistic", sizes={"a": 200, "b": 300})
    objectives, algorithm = local_objectives(federation, "logistic"), build(name)
    problem = Problem(np.full(6, L2), {i: o.weight for i, o in objectives.items()}, "logistic")
    guarded = {
        i: Guarded(Site(i, o, algorithm), Gate(Policy(effective_rows=1), Audit(tmp_path / i), "study"))
        for i, o in objectives.items()
    }
    start = Progress(algorithm.start(problem, np.zeros(6)), rows=[])
    run = iterate(algorithm, problem, InProcess(guarded), start, Goal(tol=1e-8, max_iterations=30))
    visited = [np.zeros(6), *(progress.state.theta for progress in run)]
    recorded = {point for entry in entries(tmp_path / "a") for point in entry.points}
    assert {*digests([theta.tobytes() for theta in visited])} <= recorded


def test_only_algorithms_over_coded_links_take_differences():
    with pytest.raises(ConfigError, match="lbfgs and qn-shed"):
        fedshed.optimize(make_federation("logistic"), algorithm="newton", precision=Differences())
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="direction must be"):
            Differences(direction=wrong)


@pytest.mark.parametrize(
    "precision", [Differences(direction=0.0), Differences(gradient=0.0), Differences(2.0)]
)
@pytest.mark.parametrize("algorithm", [QnShed(), Lbfgs()], ids=["qn-shed", "lbfgs"])
def test_the_limit_is_exact_however_coarse_the_links(algorithm, precision):
    federation = make_federation("logistic")
    result = fedshed.optimize(federation, algorithm=algorithm, precision=precision, l2=L2, tol=1e-10)
    assert result.converged
    np.testing.assert_allclose(result.theta, fedshed.optimum(federation, l2=L2)[0], atol=1e-7)


def test_agents_at_two_points_that_read_one_request_in_turn_each_find_their_own_search():
    frame = links.encode_diagonal(np.ones(3))
    move = links.encode_direction(np.array([1.0, -2.0, 0.5]), links.units_of(frame, 3), 0.0)
    parts = [links.along(Search(np.zeros(3), np.ones(3), 0.5 ** np.arange(4)), move, frame), Update(2, None)]
    points, step = (np.zeros(3), np.ones(3)), np.array([1.0, -2.0, 0.5])
    for theta in (*points, *points):
        search, (update,) = _complete_search(theta, frame, parts)
        np.testing.assert_array_equal(search.theta, theta)
        np.testing.assert_array_equal(update.theta, theta + step)
