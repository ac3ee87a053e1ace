"""What every registered algorithm owes (docs/design.md, "Promises"), on every loss it allows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import fedshed
from conftest import CASES, INEXACT, POOLED, federation_for, make_federation, well_conditioned
from fedshed import Federation, Fused, TwoExchange
from fedshed.exchange import Faulty, InProcess, Stateless

L2 = 1e-3
BACKTRACKING = [
    name
    for name, entry in fedshed.ALGORITHMS.items()
    if isinstance(getattr(entry.algorithm, "line_search", None), TwoExchange)
]


def searched(*line_searches):
    """Each case with its own line search, and with these where it has one to replace."""
    return [
        pytest.param(case, search, id=f"{'-'.join(case)}-{search}")
        for case in CASES
        for search in (None, *(line_searches if case[0] in BACKTRACKING else ()))
    ]


def solve(federation, case, **options):
    name, loss = case
    options = {"l2": L2, "max_iterations": 3000, **options}
    return fedshed.optimize(federation, algorithm=name, loss=loss, **options)


# --- 1. pooled-exact ------------------------------------------------------------------------------


def pooled_by_sklearn(federation, loss, l2, intercept):
    """The pooled optimum by scikit-learn, in its own scaling (C = 1/(N l2), alpha = N l2)."""
    pooled = federation.pooled()
    N = len(pooled.y)
    if loss == "least-squares":
        model = Ridge(alpha=N * l2, fit_intercept=intercept, solver="svd").fit(pooled.X, pooled.y)
    else:
        model = LogisticRegression(
            C=1 / (N * l2), fit_intercept=intercept, solver="newton-cholesky", tol=1e-14, max_iter=200
        ).fit(pooled.X, pooled.y)
    return np.append(model.coef_, model.intercept_) if intercept else np.ravel(model.coef_)


@pytest.mark.parametrize("case", POOLED, ids="-".join)
@pytest.mark.parametrize("intercept", [False, True])
def test_limit_is_the_pooled_fit_on_sites_of_3_40_and_900_rows(case, intercept):
    sizes = {"a": 3, "b": 40, "c": 900}
    exact = case[0] not in INEXACT
    federation = make_federation(case[1], sizes=sizes) if exact else well_conditioned(case[1])
    result = solve(federation, case, intercept=intercept, tol=1e-11)
    expected = pooled_by_sklearn(federation, case[1], L2, intercept)
    assert result.converged
    np.testing.assert_allclose(result.theta, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", [c for c in CASES if c[0] not in INEXACT], ids="-".join)
def test_limit_is_the_pooled_fit_where_every_agent_is_rank_deficient(case):
    federation = make_federation(case[1], n=12, sizes={f"agent-{i}": 4 + i for i in range(5)})
    result = solve(federation, case, tol=1e-11, max_iterations=5000)
    assert result.converged, result.reason
    np.testing.assert_allclose(
        result.theta, pooled_by_sklearn(federation, case[1], L2, False), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("case", POOLED, ids="-".join)
def test_splitting_an_agent_moves_no_limit(case):
    whole = federation_for(case)
    tables = {site: (table.X, table.y) for site, table in whole.tables.items()}
    X, y = tables.pop("large")
    cut = len(y) // 2 if case[0] in INEXACT else 7
    split = Federation.from_sites({**tables, "large-1": (X[:cut], y[:cut]), "large-2": (X[cut:], y[cut:])})
    np.testing.assert_allclose(
        solve(split, case, tol=1e-11).theta, solve(whole, case, tol=1e-11).theta, rtol=0, atol=1e-8
    )


def test_twins_behave_as_one_agent_that_holds_the_rows_twice(case):
    """Two agents with the same rows and one with them twice: same f, g, Hessian, so the same iterates."""
    X, y = (lambda t: (t.X, t.y))(federation_for(case).tables["middle"])
    twins = Federation.from_sites({"a": (X, y), "b": (X, y)})
    double = Federation.from_sites({"a": (np.vstack([X, X]), np.concatenate([y, y]))})
    budget = 1 if fedshed.ALGORITHMS[case[0]].takes_budget else None
    one, two = (solve(federation, case, budget=budget, max_iterations=12) for federation in (twins, double))
    np.testing.assert_allclose(one.theta, two.theta, rtol=1e-7, atol=1e-9)


def test_renaming_the_agents_moves_nothing_but_rounding(case):
    federation = federation_for(case)
    renamed = {f"z{i}": federation.tables[s] for i, s in enumerate(reversed(federation.sites))}
    other = Federation.from_sites({site: (table.X, table.y) for site, table in renamed.items()})
    budget = 2 if fedshed.ALGORITHMS[case[0]].takes_budget else None
    one, two = (solve(f, case, budget=budget, max_iterations=15) for f in (federation, other))
    np.testing.assert_allclose(one.theta, two.theta, rtol=1e-7, atol=1e-9)


# --- 2. one algorithm, any transport ----------------------------------------------------------------


class ThroughBytes(InProcess):
    """Agents whose cache is encoded, thrown away and decoded between any two exchanges."""

    def exchange(self, payloads):
        replies = list(super().exchange(payloads))
        for i in payloads:
            saved = self.sites[i].save()
            self.sites[i].forget()
            self.sites[i].load(saved)
        return replies


def test_same_bits_and_bytes_when_an_agents_state_goes_through_bytes(case):
    federation = federation_for(case)
    here, there = solve(federation, case), solve(federation, case, transport=ThroughBytes)
    assert np.array_equal(here.theta, there.theta)
    assert here.trace[-1].uplink_bytes == there.trace[-1].uplink_bytes
    assert here.trace[-1].downlink_bytes == there.trace[-1].downlink_bytes
    assert here.trace[-1].hessians == there.trace[-1].hessians


def test_stateless_agents_give_the_same_bits_and_their_rebuilt_hessians_are_counted(case):
    federation = federation_for(case)
    here, there = solve(federation, case), solve(federation, case, transport=Stateless)
    assert np.array_equal(here.theta, there.theta)
    assert here.trace[-1].uplink_bytes == there.trace[-1].uplink_bytes
    assert here.trace[-1].hessians <= there.trace[-1].hessians
    if case[0] in ("shed-ls", "fib-shed", "gn-shed"):  # these reuse Hessians, so anchors must have travelled
        assert here.trace[-1].hessians < there.trace[-1].hessians
        assert here.trace[-1].downlink_bytes < there.trace[-1].downlink_bytes


# --- 3. exact traffic -------------------------------------------------------------------------------


class Metered(InProcess):
    """Weighs every payload itself."""

    up = down = exchanges = 0

    def exchange(self, payloads):
        replies = list(super().exchange(payloads))
        Metered.down += sum(len(p) for p in payloads.values())
        Metered.up += sum(len(p) for _, p in replies)
        Metered.exchanges += 1
        return replies


@pytest.mark.parametrize(("case", "line_search"), searched(TwoExchange(candidates=1), Fused()))
def test_bytes_are_those_of_the_payloads_both_ways(case, line_search):
    Metered.up = Metered.down = Metered.exchanges = 0
    federation = federation_for(case)
    start = np.full(federation.dim, 3.0)  # far away: some steps are rejected, and must be counted
    result = solve(federation, case, transport=Metered, line_search=line_search, theta0=start)
    last = result.trace[-1]
    assert (last.uplink_bytes, last.downlink_bytes, last.exchanges) == (
        Metered.up,
        Metered.down,
        Metered.exchanges,
    )


def test_knowing_f_star_costs_nothing(case):
    federation = federation_for(case)
    f_star = fedshed.optimum(federation, loss=case[1], l2=L2)[1]
    with_gap, without = solve(federation, case, f_star=f_star), solve(federation, case)
    assert with_gap.trace[-1].uplink_bytes == without.trace[-1].uplink_bytes
    assert with_gap.trace[-1].exchanges == without.trace[-1].exchanges
    assert abs(with_gap.trace[-1].gap) < 1e-12 or case not in POOLED
    assert without.trace[-1].gap is None


# --- 4. idempotent messages -------------------------------------------------------------------------


def faulty(**faults):
    return lambda sites: Faulty(InProcess(sites), **faults)


def test_repeated_and_late_replies_change_no_bit(case):
    federation = federation_for(case)
    disturbed = solve(federation, case, transport=faulty(repeat=0.5, seed=1))
    quiet = solve(federation, case)
    assert np.array_equal(disturbed.theta, quiet.theta)
    assert disturbed.trace[-1].uplink_bytes > quiet.trace[-1].uplink_bytes  # repeats cross the wire too


@pytest.mark.parametrize("case", POOLED, ids="-".join)
@pytest.mark.parametrize("seed", range(4))
def test_lost_late_and_forgotten_heal_to_the_pooled_optimum(case, seed):
    federation = federation_for(case)
    transport = faulty(lose=0.2, delay=0.15, repeat=0.2, forget=0.2, seed=seed)
    result = solve(federation, case, transport=transport, tol=1e-10)
    expected, _ = fedshed.optimum(federation, loss=case[1], l2=L2)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case not in POOLED], ids="-".join)
def test_lost_late_and_forgotten_heal_to_the_same_limit(case):
    federation = federation_for(case)
    transport = faulty(lose=0.2, delay=0.15, repeat=0.2, forget=0.2, seed=0)
    disturbed, quiet = (solve(federation, case, transport=t) for t in (transport, None))
    assert not disturbed.converged
    assert not quiet.converged
    np.testing.assert_allclose(disturbed.theta, quiet.theta, rtol=0, atol=1e-10)


def test_an_agent_that_never_answers_ends_the_run_by_name(case):
    class Deaf(InProcess):
        def exchange(self, payloads):
            return [reply for reply in super().exchange(payloads) if reply[0] != "middle"]

    with pytest.raises(fedshed.ProtocolError, match="middle"):
        solve(federation_for(case), case, transport=Deaf)


# --- 6. stop, save, load, continue ------------------------------------------------------------------


@pytest.mark.parametrize(("case", "line_search"), searched(Fused()))
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_stopped_and_resumed_equals_never_stopped(case, stop, line_search, tmp_path):
    federation, path = federation_for(case), tmp_path / "run.ckpt"
    solve(federation, case, max_iterations=stop, checkpoint=path, line_search=line_search)
    resumed = fedshed.resume(path, federation, max_iterations=3000)
    never = solve(federation, case, line_search=line_search)
    assert np.array_equal(resumed.theta, never.theta)
    assert [row.f for row in resumed.trace] == [row.f for row in never.trace]
    assert [row.eta for row in resumed.trace] == [row.eta for row in never.trace]
    assert [row.exchanges for row in resumed.trace] == [row.exchanges for row in never.trace]
    assert [row.uplink_bytes for row in resumed.trace] == [row.uplink_bytes for row in never.trace]


def test_same_seed_same_bits_other_seed_other_channel():
    federation = make_federation("logistic")
    runs = [fedshed.optimize(federation, algorithm="fib-shed+", l2=L2, seed=s) for s in (3, 3, 4)]
    assert np.array_equal(runs[0].theta, runs[1].theta)
    assert runs[0].trace[-1].uplink_bytes == runs[1].trace[-1].uplink_bytes
    assert [row.q_max for row in runs[0].trace] != [row.q_max for row in runs[2].trace]


# --- the SHED family and Newton ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shed-periodic", "fib-shed", "gn-shed", "mont-dec"])
def test_all_pairs_at_once_and_renewed_every_round_is_newton(name):
    from fedshed.algorithms.renewal import EveryRound
    from fedshed.algorithms.shed import Shed

    federation = make_federation("logistic")
    shed = Shed(renewal=EveryRound(), channel=fedshed.Constant(6))
    one = fedshed.optimize(federation, algorithm=shed, l2=L2)
    two = fedshed.optimize(federation, algorithm="newton", l2=L2)
    assert len(one.trace) == len(two.trace)
    np.testing.assert_allclose(one.trace.column("f"), two.trace.column("f"), rtol=0, atol=1e-13)
    # an unlimited link makes the first step of any of them Newton's
    first = fedshed.optimize(federation, algorithm=name, budget=6, l2=L2, max_iterations=1)
    np.testing.assert_allclose(
        first.theta,
        fedshed.optimize(federation, algorithm="newton", l2=L2, max_iterations=1).theta,
        atol=1e-12,
    )


@pytest.mark.parametrize("name", BACKTRACKING)
@pytest.mark.parametrize("scale", [0.0, 5.0, 40.0])
def test_fused_and_two_exchange_give_the_same_iterates_bit_for_bit(name, scale):
    federation = federation_for((name, "logistic"))
    start = scale * np.random.default_rng(1).normal(size=federation.dim)
    two, fused = (
        fedshed.optimize(federation, algorithm=name, l2=L2, theta0=start, line_search=search)
        for search in (TwoExchange(), Fused())
    )
    assert np.array_equal(two.theta, fused.theta)
    assert two.trace.column("eta").tolist()[1:] == fused.trace.column("eta").tolist()[1:]
    assert [row.rounds for row in two.trace] == [row.rounds for row in fused.trace]
    iterations = len(fused.trace) - 1
    rejected = sum(row.eta < 1 for row in fused.trace if row.eta is not None)
    assert two.trace[-1].exchanges - fused.trace[-1].exchanges == iterations - rejected
    if scale:
        assert rejected, "the start must be far enough to reject a full step"
