"""How many eigenpairs a link carries: the distributions, what is deterministic, and what is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from fedshed import optimize
from fedshed._utils.errors import ConfigError
from fedshed._utils.names import name_key
from fedshed.algorithms.channels import ByteRate, Constant, PerAgent, Rayleigh, Recorded
from fedshed.tables import Federation

steady = settings(max_examples=60, deadline=None)
rounds = st.integers(1, 10**6)
names = st.text(min_size=1, max_size=12)


def tail(k: int, d0: float = 2.0, gain: float = 5.0) -> float:
    """P(d_gamma >= k) = P(gamma >= (2^(k/d0) - 1)/Gamma), gamma ~ Exp(1)."""
    return float(np.exp(-(2 ** (k / d0) - 1) / gain))


def draws(channel: Rayleigh, agents: int, until: int) -> np.ndarray:
    return np.array(
        [[channel.eigenpairs(t, f"agent-{i}", 0) for t in range(1, until + 1)] for i in range(agents)]
    )


# --- Rayleigh fading (Section 6.3) -------------------------------------------------------------------


def test_rayleigh_mean_and_outage_of_the_paper_s_parameters():
    """Mean 3.81 (the paper says 4), no pair in 8 % of the rounds, more than 10 in 0.014 % (it says never)."""
    assert sum(tail(k) for k in range(1, 60)) == pytest.approx(3.81, abs=0.005)
    assert 1 - tail(1) == pytest.approx(0.08, abs=0.001)
    assert tail(11) == pytest.approx(1.4e-4, rel=0.03)


@pytest.mark.parametrize(("d0", "gain"), [(2.0, 5.0), (1.0, 10.0)])
def test_rayleigh_follows_its_distribution(d0, gain):
    """Frequencies of 0, 1, 2, ... within five standard errors, and so the mean."""
    pairs = draws(Rayleigh(d0, gain, seed=7), 20, 500).ravel()
    for k in range(10):
        p = tail(k, d0, gain) - tail(k + 1, d0, gain)
        assert np.mean(pairs == k) == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / len(pairs)))
    mean = sum(tail(k, d0, gain) for k in range(1, 60))
    assert pairs.mean() == pytest.approx(mean, abs=5 * pairs.std() / np.sqrt(len(pairs)))


def test_rayleigh_draws_of_agents_and_rounds_are_independent():
    """No correlation between agents, nor between one round and the next, beyond five standard errors."""
    pairs = draws(Rayleigh(), 4, 1000)
    limit = 5 / np.sqrt(pairs.shape[1])
    between = np.corrcoef(pairs) - np.eye(len(pairs))
    assert np.abs(between).max() < limit
    for row in pairs:
        assert abs(np.corrcoef(row[1:], row[:-1])[0, 1]) < limit


def test_rayleigh_is_not_clipped():
    assert min(draws(Rayleigh(gain=1e9), 1, 50).ravel()) > 10


def test_rayleigh_with_a_least_number_sends_it_where_the_link_carries_less():
    """max(least, d_gamma): Mont-Dec's links, on which a new Hessian without a pair would say nothing."""
    free, bounded = draws(Rayleigh(seed=4), 5, 300), draws(Rayleigh(seed=4, least=1), 5, 300)
    assert (free == 0).any()
    np.testing.assert_array_equal(bounded, np.maximum(free, 1))
    assert fedshed.ALGORITHMS["mont-dec"].algorithm.channel == Rayleigh(least=1)
    assert fedshed.algorithms.build("mont-dec", seed=3).channel == Rayleigh(least=1, seed=3)


def test_a_rayleigh_link_without_a_least_number_is_encoded_as_it_was_before():
    """Checkpoints of earlier versions are resumed: the same bytes, and they are read."""
    before = b'{"type":"Rayleigh","d0":2.0,"gain":5.0,"seed":null}'
    assert msgspec.json.encode(Rayleigh()) == before
    assert msgspec.json.decode(before, type=Rayleigh) == Rayleigh()
    assert msgspec.json.decode(msgspec.json.encode(Rayleigh(least=1)), type=Rayleigh) == Rayleigh(least=1)


@steady
@given(st.integers(0, 2**40), names, rounds)
def test_rayleigh_depends_on_seed_agent_and_round_only(seed, agent, t):
    """Asked again, of another object, after other questions: the same number, a whole one, at least 0."""
    channel, copy = Rayleigh(seed=seed), Rayleigh(seed=seed)
    first = channel.eigenpairs(t, agent, 8)
    for other in range(3):
        channel.eigenpairs(other, "another", 8)
    assert first == channel.eigenpairs(t, agent, 800) == copy.eigenpairs(t, agent, 8)
    assert type(first) is int
    assert first >= 0


def test_rayleigh_another_seed_agent_or_round_is_another_draw():
    base = draws(Rayleigh(seed=0), 2, 200)
    assert (base != draws(Rayleigh(seed=1), 2, 200)).any()
    assert (base[0] != base[1]).any()
    assert len(set(base[0])) > 3


def test_name_key_tells_names_apart_and_is_the_same_everywhere():
    """Not Python's hash, which changes from process to process: BLAKE2b of the name, 8 bytes."""
    keys = {name_key(f"agent-{i}") for i in range(2000)}
    assert len(keys) == 2000
    assert all(0 <= key < 2**64 for key in keys)
    assert name_key("") == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "little")


# --- the others --------------------------------------------------------------------------------------


@steady
@given(st.integers(0, 1000), names, rounds)
def test_constant_is_constant(pairs, agent, t):
    assert Constant(pairs).eigenpairs(t, agent, 8) == pairs


@steady
@given(st.floats(0, 1e7), st.floats(1e-3, 1e3), st.integers(1, 500))
def test_byte_rate_carries_the_whole_pairs_that_fit(rate, seconds, n):
    pair = 8 * (n + 1)
    d = ByteRate(rate, seconds).eigenpairs(1, "a", pair)
    assert type(d) is int
    assert d * pair <= rate * seconds < (d + 1) * pair


def test_byte_rate_counts_the_eigenvalue_with_its_vector():
    """80 bytes are one pair of n = 9: nine numbers and one; 79 are none."""
    assert ByteRate(80.0).eigenpairs(1, "a", 8 * (9 + 1)) == 1
    assert ByteRate(79.0).eigenpairs(1, "a", 8 * (9 + 1)) == 0


@steady
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), rounds)
def test_recorded_plays_its_record_again_from_the_start(pairs, t):
    channel = Recorded({"a": tuple(pairs), "b": (3,)})
    assert [channel.eigenpairs(s, "a", 8) for s in range(1, len(pairs) + 1)] == pairs
    assert channel.eigenpairs(t, "a", 8) == channel.eigenpairs(t + len(pairs), "a", 8)
    assert channel.eigenpairs(t, "b", 8) == 3


def test_per_agent_asks_the_agent_s_own_channel_or_the_default():
    own, rest = Recorded({"a": (5, 0)}), Rayleigh(seed=3)
    channel = PerAgent({"a": own, "b": ByteRate(100.0)}, default=rest)
    for t in (1, 2, 3):
        assert channel.eigenpairs(t, "a", 40) == own.eigenpairs(t, "a", 40)
        assert channel.eigenpairs(t, "b", 40) == 2
        assert channel.eigenpairs(t, "c", 40) == rest.eigenpairs(t, "c", 40)
    assert PerAgent({}).eigenpairs(1, "anyone", 8) == 1


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Constant(-1),
            "budget, the number of eigenpairs per round, must be a whole number >= 0, not -1",
        ),
        (lambda: Rayleigh(d0=-2.0), "Rayleigh needs .* not -2.0"),
        (lambda: Rayleigh(gain=float("nan")), "Rayleigh needs .* nan"),
        (lambda: Rayleigh(seed=-1), "Rayleigh needs .* -1"),
        (lambda: Rayleigh(least=-2), "whole number least >= 0, not -2"),
        (lambda: ByteRate(-1.0), "rate >= 0 and a time > 0, not -1.0, 1.0"),
        (lambda: ByteRate(float("nan")), "rate >= 0 and a time > 0, not nan"),
        (lambda: ByteRate(float("inf")), "rate >= 0 and a time > 0, not inf"),
        (lambda: ByteRate(1.0, 0.0), "rate >= 0 and a time > 0, not 1.0, 0.0"),
        (lambda: ByteRate(1.0, float("inf")), "rate >= 0 and a time > 0, not 1.0, inf"),
        (
            lambda: Recorded({"a": (1,), "b": ()}),
            "record of agent 'b' must hold at least one number, and none below 0",
        ),
        (
            lambda: Recorded({"a": (1, -1)}),
            "record of agent 'a' must hold at least one number, and none below 0",
        ),
    ],
)
def test_impossible_channels_are_refused_with_their_values(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_an_agent_without_a_record_is_named_beside_those_that_have_one():
    channel = Recorded({"north": (1,), "south": (2,)})
    with pytest.raises(ConfigError, match=r"no record of agent 'west'.*\['north', 'south'\]"):
        channel.eigenpairs(1, "west", 8)


# --- in a run ------------------------------------------------------------------------------------------


def federation() -> Federation:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 6))
    return Federation.from_arrays(X, X @ np.ones(6) + rng.standard_normal(90), ["a"] * 50 + ["b"] * 40)


@pytest.mark.parametrize(
    "channel",
    [
        Constant(0),
        Constant(2),
        ByteRate(8 * 7 * 2.5),
        Recorded({"a": (0, 2), "b": (1, 0, 0)}),
        PerAgent({"b": Constant(3)}, default=Rayleigh(seed=5)),
    ],
    ids=lambda channel: type(channel).__name__,
)
def test_a_run_sends_what_the_channel_carries_and_always_the_gradient(channel):
    """After t rounds agent i has sent S_i = min(n - 1, d_1 + ... + d_t) pairs: q_max is the largest of them,

    and in vectors of R^n an agent has sent t gradients and S_i eigenvectors.
    """
    fed, n = federation(), 6
    trace = optimize(
        fed, loss="least-squares", l2=0.1, algorithm="shed-ls", budget=channel, tol=0.0, max_iterations=6
    ).trace

    def sent(t: int) -> list[int]:
        totals = [sum(channel.eigenpairs(s, i, 8 * (n + 1)) for s in range(1, t + 1)) for i in fed.sites]
        return [min(n - 1, total) for total in totals]

    assert 2 <= len(trace) <= 7  # fewer where the gradient is at rounding level
    for row in trace[1:]:
        t = row.iteration + (row is trace[-1])  # the last row counts the exchange that ended the run
        assert row.q_max == max(sent(row.iteration))
        assert row.uplink_vectors == pytest.approx(t + np.mean(sent(t)), rel=1e-12)
