"""Rounds as they are played: certificates, stopping, counting, watching, saving, what is not believed."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from conftest import make_federation
from fedshed import Federation, Fused
from fedshed.algorithms import Newton, Shed
from fedshed.algorithms.base import Info, advance, gradient
from fedshed.algorithms.renewal import Once
from fedshed.exchange import Faulty, InProcess
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Local
from fedshed.solve.engine import ROUNDING

L2 = 1e-3


def scaled(columns, loss="least-squares", rows=90):
    """Three sites whose columns are in very different units."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, len(columns))) * columns
    z = X @ (rng.normal(size=len(columns)) / columns) + 0.1 * rng.normal(size=rows)
    return Federation.from_arrays(X, z if loss == "least-squares" else z > 0, sites=np.arange(rows) % 3)


# --- certificates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fib-shed", "newton", "lbfgs"])
@pytest.mark.parametrize("iterations", [1, 3, 6])
def test_the_bound_bounds_the_gap_and_the_estimate_is_newtons(name, iterations):
    federation = make_federation("logistic")
    _, f_star = fedshed.optimum(federation, l2=L2)
    result = fedshed.optimize(federation, algorithm=name, l2=L2, max_iterations=iterations, f_star=f_star)
    certificate, gap = result.certificate, result.trace[-1].gap
    assert certificate.grad_norm == pytest.approx(result.trace[-1].grad_norm)
    assert certificate.bound == pytest.approx(certificate.grad_norm**2 / (2 * L2))
    assert gap <= certificate.bound
    assert (certificate.estimate is not None) == (name == "newton")
    if name == "newton" and iterations == 6:
        assert certificate.estimate == pytest.approx(gap, rel=0.2, abs=1e-15)


def test_no_bound_where_a_coefficient_is_not_penalised():
    result = fedshed.optimize(make_federation("logistic"), algorithm="fib-shed", l2=L2, intercept=True)
    assert result.certificate.bound is None


# --- stopping -----------------------------------------------------------------------------------------


def test_gap_tol_stops_at_the_first_iterate_that_is_close_enough():
    federation = make_federation("logistic")
    _, f_star = fedshed.optimum(federation, l2=L2)
    result = fedshed.optimize(federation, algorithm="fib-shed", l2=L2, f_star=f_star, gap_tol=1e-5)
    assert result.converged
    assert result.trace[-1].gap <= 1e-5 < result.trace[-2].gap


def test_a_gradient_at_rounding_level_ends_the_run_and_says_so():
    result = fedshed.optimize(
        make_federation("least-squares"), loss="least-squares", algorithm="newton", l2=L2, tol=0.0
    )
    assert result.converged
    assert result.reason.startswith(ROUNDING)
    assert f"{result.trace[-1].grad_norm:.1e}" in result.reason
    assert "tol is 0" in result.reason
    assert len(result.trace) < 20


@pytest.mark.parametrize("name", ["lbfgs-coded", "qn-shed", "pen"])
def test_coded_gradients_at_rounding_level_are_confirmed_and_end_the_run(name):
    """Without the exact answer a run over coded links went on until max_iterations."""
    federation = make_federation("least-squares")
    result = fedshed.optimize(federation, loss="least-squares", algorithm=name, l2=L2, tol=1e-19)
    assert result.converged
    assert result.reason.startswith(ROUNDING)
    assert len(result.trace) < 100


def test_a_line_search_that_rounding_hides_has_converged():
    """One column of 1e8: costs and slopes along the step are rounding errors, ||g|| is tiny."""
    rng = np.random.default_rng(3)
    columns = np.array([1e8, 1.0, 1.0])
    X = rng.normal(size=(90, 3)) * columns
    z = X @ (rng.normal(size=3) / columns) + 0.1 * rng.normal(size=90) + rng.normal(size=90)
    result = fedshed.optimize(
        Federation.from_arrays(X, z > 0), l2=0.0, intercept=True, algorithm="qn-shed", tol=1e-12
    )
    assert result.converged
    assert result.reason.startswith(ROUNDING)


class Lazy(Newton, frozen=True, tag="lazy"):
    """An algorithm with a mistake: its third step does not move."""

    def step(self, problem, state):
        if state.t < 3:
            return (yield from super().step(problem, state))
        return advance(state, state.theta, state.theta), Info(1.0, 1)


def test_a_step_that_stays_where_it_is_has_not_converged_while_the_gradient_is_large():
    result = fedshed.optimize(make_federation("logistic"), algorithm=Lazy(), l2=L2)
    assert not result.converged
    assert result.reason == "the step no longer changes the parameters"


class Growing(Newton, frozen=True, tag="growing"):
    """A gradient step of the wrong length: factor > 0 goes uphill, NaN nowhere."""

    factor: float = 1e4

    def step(self, problem, state):
        g = gradient(problem, state)
        return advance(state, state.theta + self.factor * (g + 0.1 * state.theta), g), Info(1.0, 1)


@pytest.mark.parametrize("factor", [1e4, 1e200, float("nan")])
@pytest.mark.parametrize("loss", ["logistic", "least-squares", "poisson", "ordinal"])
def test_a_run_that_diverges_says_so_once(loss, factor):
    """It ended with 'gave no usable answer' for each agent, or with an error of the codec."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    y = {"least-squares": X[:, 0], "logistic": X[:, 0] > rng.normal(size=90)}.get(
        loss, rng.integers(0, 3, 90)
    )
    federation = Federation.from_arrays(X, y, sites=np.arange(90) % 3)
    result = fedshed.optimize(federation, loss=loss, algorithm=Growing(factor=factor), l2=L2)
    assert not result.converged
    assert result.reason.startswith("diverged: ")
    assert result.reason.count("diverged") == 1
    assert "agent" not in result.reason
    assert "line search" in result.reason
    assert np.isfinite(result.theta).all()
    assert result.trace[-1].exchanges < 30


@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
def test_where_rounding_hides_the_decrease_the_slope_decides(loss):
    """GIANT overshoots on unequal sites; costs alone accept every step there, at a gradient norm of 1e-8."""
    result = fedshed.optimize(make_federation(loss), loss=loss, algorithm="giant", l2=L2, tol=1e-10)
    assert result.converged, result.reason


def test_separated_classes_without_a_penalty_are_never_called_converged():
    X = np.random.default_rng(0).normal(size=(60, 3))
    federation = Federation.from_arrays(X, X[:, 0] > 0, sites=np.arange(60) % 3)
    for name in ("newton", "fib-shed", "lbfgs"):
        result = fedshed.optimize(federation, algorithm=name, l2=0.0)
        assert not result.converged
        assert result.reason.startswith("separated: ")
        assert "x0" in result.reason
    assert fedshed.optimize(federation, algorithm="newton", l2=1e-6).converged


# --- units of columns do not matter ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fib-shed", "newton", "shed-ls"])
def test_columns_in_very_different_units_are_not_called_collinear(name):
    federation = scaled(np.array([1e3, 1.0, 1e-3]))
    result = fedshed.optimize(federation, loss="least-squares", algorithm=name, l2=0.0, tol=1e-6)
    assert result.converged, result.reason


def test_rho_stays_an_upper_bound_where_rounding_hides_eigenvalues():
    """lambda_1 / lambda_2 = 1e16: what eigh returns beyond lambda_1 is noise, and must not lengthen steps."""
    federation = scaled(np.array([1e8, 1.0, 1.0]))
    for name in ("shed-ls", "fib-shed"):
        trace = fedshed.optimize(
            federation, loss="least-squares", algorithm=name, l2=1e-5, tol=0.0, max_iterations=60
        ).trace
        f = trace.column("f")
        assert (np.diff(f) <= 1e-9 * f[0]).all()


def test_an_intercept_beside_huge_columns_is_not_called_collinear():
    federation = scaled(np.full(3, 1e8), loss="logistic")
    assert fedshed.optimize(federation, algorithm="newton", l2=1e-3, intercept=True, tol=1.0).converged


# --- overflow -------------------------------------------------------------------------------------------


def test_a_step_that_overflows_is_rejected_not_fatal():
    """A direction of 1e200 makes the cost infinite for every candidate: the run ends regularly."""

    class Overshoots(Shed, frozen=True, tag="overshoots"):
        def step(self, problem, state):
            g = np.ones(problem.n)
            direction = np.full(problem.n, 1e200 if state.t == 1 else 0.0)
            step = yield from self.line_search(self, problem, state, -g, direction)
            from fedshed.algorithms.base import Info

            return step.state, Info(step.eta, 2, stopped=step.stopped)

    for search in (fedshed.TwoExchange(), Fused()):
        result = fedshed.optimize(
            make_federation("least-squares"),
            loss="least-squares",
            algorithm=Overshoots(line_search=search),
            l2=L2,
        )
        assert "no step" in result.reason


def test_a_start_that_overflows_names_the_site():
    with pytest.raises(fedshed.ProtocolError, match="site 'large'"):
        fedshed.optimize(
            make_federation("least-squares"), loss="least-squares", l2=L2, theta0=np.full(6, 1e200)
        )


# --- what must not be believed ----------------------------------------------------------------------------


def test_a_reply_of_another_run_is_late_too():
    """The first run's answer to exchange 1 arrives in the second run: same number, another theta."""
    kept: dict[str, bytes] = {}

    class Keeps(InProcess):
        def exchange(self, payloads):
            replies = dict(super().exchange(payloads))
            kept.update({} if kept else replies)
            return replies.items()

    class Replays(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            replies = dict(super().exchange(payloads))
            if self.count == 1:
                replies["middle"] = kept["middle"]
            return replies.items()

    federation = make_federation("logistic")
    fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=Keeps, max_iterations=1)
    start = np.full(6, 3.0)
    fooled = fedshed.optimize(
        federation, algorithm="fib-shed", l2=L2, transport=Replays, theta0=start, max_iterations=1
    )
    honest = fedshed.optimize(federation, algorithm="fib-shed", l2=L2, theta0=start, max_iterations=1)
    assert fooled.trace[0].f == honest.trace[0].f


def test_replies_of_agents_that_were_not_asked_are_ignored():
    class Ghosts(InProcess):
        def exchange(self, payloads):
            return [*super().exchange(payloads), ("ghost", b"boo")]

    federation = make_federation("logistic")
    haunted = fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=Ghosts)
    assert np.array_equal(haunted.theta, fedshed.optimize(federation, algorithm="fib-shed", l2=L2).theta)


# --- counting ---------------------------------------------------------------------------------------------


def test_late_and_repeated_replies_cost_their_bytes_and_their_hessians_once():
    federation = make_federation("logistic")
    seen: list[Faulty] = []

    class Counts(InProcess):
        hessians = up = 0

        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            return replies

    def connect(sites):
        seen.append(Faulty(Counts(sites), repeat=0.6, seed=3))
        return seen[-1]

    disturbed = fedshed.optimize(federation, algorithm="mont-dec", l2=L2, transport=connect)
    quiet = fedshed.optimize(federation, algorithm="mont-dec", l2=L2)
    assert disturbed.trace[-1].hessians == quiet.trace[-1].hessians
    assert disturbed.trace[-1].uplink_bytes > 1.5 * quiet.trace[-1].uplink_bytes


def test_pairs_sent_with_a_rejected_trial_are_not_sent_again():
    """One Hessian, one pair a round: in a run every pair crosses the wire once, rejected steps or not."""
    sent = dict.fromkeys(("small", "middle", "large"), 0)
    shed = Shed(renewal=Once(), line_search=Fused())

    class Taps(InProcess):
        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            for i, data in replies:
                for part in codec_of(shed, 6).decode_reply(data).parts:
                    if isinstance(part, Local) and part.pairs is not None:
                        sent[i] += len(part.pairs.values)
            return replies

    start = np.full(6, 8.0)
    result = fedshed.optimize(
        make_federation("logistic"), algorithm=shed, l2=L2, theta0=start, transport=Taps
    )
    assert any(row.eta < 1 for row in result.trace[1:])
    assert sent["large"] == sent["middle"] == 5  # n - 1
    assert sent["small"] <= 3  # its rows


# --- watching and saving ------------------------------------------------------------------------------------


def test_watch_sees_every_round():
    seen = []
    result = fedshed.optimize(
        make_federation("logistic"),
        algorithm="fib-shed",
        l2=L2,
        watch=lambda progress: seen.append(len(progress.rows)),
    )
    assert seen == list(range(1, len(result.trace)))


@pytest.mark.parametrize("line_search", [None, Fused()])
@pytest.mark.parametrize("stop", range(1, 9))
@pytest.mark.parametrize("name", ["fib-shed", "gn-shed", "shed-periodic", "fednl", "qn-shed"])
def test_resuming_among_rejected_steps_changes_no_bit(name, stop, line_search, tmp_path):
    federation, start = make_federation("logistic", n=5), np.full(5, 8.0)
    options = {"algorithm": name, "l2": L2, "theta0": start, "line_search": line_search}
    fedshed.optimize(federation, **options, max_iterations=stop, checkpoint=tmp_path / "run")
    resumed = fedshed.resume(tmp_path / "run", federation, max_iterations=500)
    never = fedshed.optimize(federation, **options)
    assert any(row.eta < 1 for row in never.trace[1:])
    assert np.array_equal(resumed.theta, never.theta)


def test_an_interrupted_run_can_be_resumed(tmp_path):
    federation = make_federation("logistic")

    def interrupt(progress):
        if len(progress.rows) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedshed.optimize(
            federation, algorithm="fib-shed", l2=L2, checkpoint=tmp_path / "run", watch=interrupt
        )
    resumed = fedshed.resume(tmp_path / "run", federation)
    assert np.array_equal(resumed.theta, fedshed.optimize(federation, algorithm="fib-shed", l2=L2).theta)


def test_a_checkpoint_is_not_overwritten_and_not_mistaken(tmp_path):
    federation, path = make_federation("logistic"), tmp_path / "run"
    fedshed.optimize(federation, algorithm="fib-shed", l2=L2, checkpoint=path, max_iterations=3)
    with pytest.raises(fedshed.ConfigError, match="resume"):
        fedshed.optimize(federation, algorithm="fib-shed", l2=L2, checkpoint=path)
    with pytest.raises(fedshed.ConfigError, match="another algorithm"):
        fedshed.resume(path, federation, algorithm=Shed(renewal=Once()))
    tighter = fedshed.resume(path, federation, max_iterations=500, tol=1e-12)
    assert tighter.trace[-1].grad_norm <= 1e-12


def test_a_full_disk_costs_the_checkpoint_not_the_result(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("fedshed.solve.checkpoint.write_atomically", full)
    with pytest.warns(UserWarning, match="no space left"):
        result = fedshed.optimize(
            make_federation("logistic"), algorithm="fib-shed", l2=L2, checkpoint=tmp_path / "run"
        )
    assert result.converged


def test_parts_that_are_not_plain_data_cannot_be_saved(tmp_path):
    class Mine:
        def eigenpairs(self, t, agent, pair_bytes):
            return 1

    federation = make_federation("logistic")
    assert fedshed.optimize(federation, algorithm="fib-shed", l2=L2, budget=Mine()).converged
    with pytest.raises(fedshed.ConfigError, match="plain data"):
        fedshed.optimize(federation, algorithm="fib-shed", l2=L2, budget=Mine(), checkpoint=tmp_path / "run")


def test_a_stall_at_rounding_level_ends_a_run_of_one_site():
    """No other site's gradient shows the Master how large rounding is: neither f nor ||g|| falls any more."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5)) * 1e8
    y = X @ np.arange(1.0, 6.0) / 1e8 + rng.normal(size=500)
    federation = Federation.from_arrays(X, y)
    result = fedshed.optimize(
        federation, loss="least-squares", l2=0.0, intercept=True, algorithm="newton", tol=1e-12
    )
    assert result.converged
    assert result.reason.startswith(ROUNDING)
    assert len(result.trace) < 250
