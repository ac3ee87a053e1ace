"""A tree of groups gives what its sites give without groups, and counts the bytes of every hop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedshed
from conftest import make_federation
from fedshed import ConfigError, Group
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.exchange.group import Relay
from fedshed.exchange.groups import Hop
from fedshed.exchange.processes import Processes
from fedshed.exchange.site import Site
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Search, Update
from fedshed.protocol.sums import Scaling
from fedshed.solve.optimize import build_problem
from pages import play

SUMMABLE = [name for name, entry in fedshed.ALGORITHMS.items() if entry.algorithm.summable]
OTHERS = [name for name in fedshed.ALGORITHMS if name not in SUMMABLE]
SITES, ROWS, N = 13, 390, 5


def federation(loss="logistic", seed=0):
    """Sites of unequal sizes, some of them of one row, which differ from each other."""
    rng = np.random.default_rng(seed)
    site = np.minimum(rng.geometric(0.2, ROWS), SITES) - 1
    site[:SITES] = np.arange(SITES)
    X = rng.normal(size=(ROWS, N)) * (1 + site[:, None] / SITES)
    z = X @ np.linspace(-1, 1, N) + 0.1 * site
    y = z + rng.normal(size=ROWS) if loss == "least-squares" else rng.random(ROWS) < 1 / (1 + np.exp(-z))
    return fedshed.Federation.from_arrays(X, y, [f"s{k:02d}" for k in site])


def tree(sites, seed, depth=3):
    """Random groups of shuffled sites, within each other down to a depth; one site is in none."""
    rng = np.random.default_rng(seed)
    shuffled = [str(site) for site in rng.permutation(sites)]
    return split(shuffled[1:], rng, depth, "g")


def split(sites, rng, depth, name):
    cuts = np.sort(rng.choice(np.arange(1, len(sites)), min(2, len(sites) - 1), replace=False))
    parts = [part.tolist() for part in np.split(np.array(sites), cuts)]
    made = []
    for k, part in enumerate(parts):
        below = split(part, rng, depth - 1, f"{name}{k}") if depth > 1 and len(part) > 2 else part
        made.append(Group(f"{name}{k}", below))
    return made


def solved(rows, name, groups=(), **given):
    settings = {"l2": 1e-2, "tol": 1e-12, "max_iterations": 15} | given
    return fedshed.optimize(rows, algorithm=name, groups=groups, **settings)


@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
@pytest.mark.parametrize("name", SUMMABLE)
def test_a_tree_of_groups_gives_the_flat_run(name, loss):
    rows = federation(loss)
    flat = solved(rows, name, loss=loss)
    for seed in range(2):
        grouped = solved(rows, name, tree(rows.sites, seed), loss=loss)
        assert grouped.trace[-1].exchanges == flat.trace[-1].exchanges
        np.testing.assert_allclose(grouped.theta, flat.theta, rtol=0, atol=1e-12)
        np.testing.assert_allclose(grouped.trace[-1].f, flat.trace[-1].f, rtol=1e-12)


def test_a_group_of_all_sites_or_of_one_each_gives_the_flat_run():
    rows = federation()
    flat = solved(rows, "newton")
    for groups in ([Group("everyone", rows.sites)], [Group(f"of {i}", [i]) for i in rows.sites]):
        np.testing.assert_allclose(solved(rows, "newton", groups).theta, flat.theta, rtol=0, atol=1e-12)


def test_the_same_tree_gives_the_same_bits_in_whatever_order_it_is_written():
    rows = federation()
    groups = tree(rows.sites, 3)
    first, second = solved(rows, "lbfgs", groups), solved(rows, "lbfgs", [_reversed(g) for g in groups[::-1]])
    assert first.theta.tobytes() == second.theta.tobytes()
    assert [row.f for row in first.trace] == [row.f for row in second.trace]


def _reversed(group):
    return Group(group.name, [m if isinstance(m, str) else _reversed(m) for m in group.members[::-1]])


def test_the_master_sees_groups_with_the_weights_of_their_sites():
    rows = federation()
    result = solved(rows, "newton", [Group("north", ["s00", Group("far", ["s01", "s02"])])])
    assert sorted(result.sites) == sorted(["north", *rows.sites[3:]])


def test_bytes_are_counted_on_every_hop():
    """What a relay and its sites send each other is what the Master and these sites did without groups."""
    rows = federation()
    groups = tree(rows.sites, 1)
    flat, grouped = solved(rows, "newton"), solved(rows, "newton", groups)
    size = flat.sites[rows.sites[0]]  # every site is asked and sends the same number of bytes
    assert {(i.uplink_bytes, i.downlink_bytes) for i in flat.sites.values()} == {
        (size.uplink_bytes, size.downlink_bytes)
    }
    hops = _walked(grouped.hops)
    assert len(hops) > len(groups)
    for hop in hops:
        assert (hop.uplink_bytes, hop.downlink_bytes) == (
            hop.members * size.uplink_bytes, hop.members * size.downlink_bytes
        )  # fmt: skip
    agents = len(grouped.sites)
    assert grouped.traffic.uplink_bytes == agents * size.uplink_bytes
    assert f"{hops[0].uplink_bytes:,} bytes" in repr(grouped)


def _walked(hops):
    return [each for hop in hops for each in (hop, *_walked(hop.groups))]


@pytest.mark.parametrize("name", OTHERS)
def test_an_algorithm_that_does_not_add_up_is_refused_by_name(name):
    groups = [Group("north", ["s00", "s01"])]
    with pytest.raises(ConfigError, match=r"needs the answer of each site; a run with groups allows .*lbfgs"):
        fedshed.optimize(federation(), algorithm=name, groups=groups, loss="least-squares")


def test_processes_are_for_sites_and_not_for_groups():
    with pytest.raises(ConfigError, match="'north' is a group, but each process has one site"):
        solved(federation(), "newton", [Group("north", ["s00"])], transport=Processes)


def test_a_budget_of_eigenpairs_is_refused_and_not_forgotten():
    with pytest.raises(ConfigError, match="for a run with groups leave budget out"):
        solved(federation(), "auto", [Group("north", ["s00"])], budget=2)


def test_a_rounded_precision_is_refused():
    with pytest.raises(ConfigError, match=r"a run with groups adds exact numbers"):
        solved(federation(), "newton", [Group("north", ["s00"])], precision=fedshed.Bits(8))


def test_the_automatic_choice_adds_up():
    grouped = fedshed.optimize(federation(), l2=1e-2, groups=[Group("north", ["s00", "s01"])])
    assert grouped.converged
    assert fedshed.ALGORITHMS[grouped.algorithm.partition(":")[0]].algorithm.summable


WRONG = {
    r"'north' names 's99', which is not a site here.*did you mean 's09'": [Group("north", ["s99", "s09"])],
    r"'s01' is in groups 'north' and 'south'": [Group("north", ["s01"]), Group("south", ["s01", "s02"])],
    r"'s01' is in groups 'inner' and 'outer'|'outer' and 'inner'": [
        Group("outer", [Group("inner", ["s01"]), "s01"])
    ],
    r"'s01' is in group 'north', twice": [Group("north", ["s01", "s01"])],
    r"both called 's03'; rename the group": [Group("s03", ["s01"])],
    r"two groups are called 'north'": [Group("north", ["s01"]), Group("x", [Group("north", ["s02"])])],
    r"must be a list such as .*, and 's01' is not a Group": ["s01"],
    r"must be a list such as .*, not Group": Group("north", ["s01"]),
    r"must be a list such as .*, not {": {"north": ["s01"]},
    r"must be a list such as .*, not 's01'": "s01",
}


@pytest.mark.parametrize("words", WRONG)
def test_groups_that_cannot_be_are_named(words):
    with pytest.raises(ConfigError, match=words):
        solved(federation(), "newton", WRONG[words])


@pytest.mark.parametrize("members", [[], "s01", 3])
def test_a_group_without_a_list_of_members_is_refused(members):
    with pytest.raises(ConfigError, match="group 'north'"):
        Group("north", members)
    with pytest.raises(ConfigError, match="the name of a group must be text"):
        Group("", ["s01"])


def test_groups_that_forget_or_repeat_give_the_same_run():
    rows, groups = federation(), tree(federation().sites, 2)
    plain = solved(rows, "newton", groups)

    def faulty(agents):
        return Faulty(InProcess(agents), seed=4, lose=0.2, repeat=0.2, forget=0.3, delay=0.1)

    assert solved(rows, "newton", groups, transport=Stateless).theta.tobytes() == plain.theta.tobytes()
    found = solved(rows, "newton", groups, transport=faulty, max_iterations=100)
    assert found.converged  # so that |theta - theta*| <= tol / l2
    np.testing.assert_allclose(found.theta, plain.theta, rtol=0, atol=1e-10)


def test_a_run_with_groups_is_resumed_with_its_groups(tmp_path):
    rows = make_federation("logistic")
    groups = [Group("both", [Group("first", rows.sites[:1]), rows.sites[1]])]
    whole = solved(rows, "newton", groups)
    solved(rows, "newton", groups, max_iterations=2, checkpoint=tmp_path / "c")
    gone_on = fedshed.resume(tmp_path / "c", rows, max_iterations=400)
    assert gone_on.theta.tobytes() == whole.theta.tobytes()
    assert gone_on.sites == whole.sites
    assert [hop.name for hop in gone_on.hops] == ["both"]


def test_separated_data_are_found_behind_groups():
    x = np.linspace(-1, 1, 40)
    rows = fedshed.Federation.from_arrays(x[:, None], x > 0.1, [f"s{k % 4}" for k in range(40)])
    groups = [Group("north", ["s0", "s1"])]
    result = fedshed.optimize(rows, l2=0.0, intercept=True, algorithm="newton", groups=groups)
    assert not result.converged
    assert "separated" in result.reason


def test_the_page_about_groups_runs():
    play(Path(__file__).parents[2] / "docs" / "scale.md")


# --- sites that answer in the plural ---------------------------------------------------------------


def alike_sites(loss, count=11, rows=6):
    """Sites with tables of one shape, which share arrays."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(count * rows, N))
    y = rng.poisson(1.0, count * rows) if loss == "poisson" else X[:, 0] > rng.normal(size=count * rows)
    weights = rng.integers(1, 4, count * rows).astype(float)
    labels = np.repeat([f"s{k:02d}" for k in range(count)], rows)
    rows = fedshed.Federation.from_arrays(X, y, labels, sample_weight=weights)
    return build_problem(rows, loss, 1e-2, intercept=False)[0]


def relays(algorithm, loss):
    """A relay whose sites share its codec and so answer together, and one that asks them one by one."""
    models = alike_sites(loss)
    total = sum(model.weight for model in models.values())
    scalings = {i: Scaling(model.weight, total, plain=True) for i, model in models.items()}
    made = []
    for codec in (codec_of(algorithm, N), None):
        sites = {i: Site(i, model, algorithm, codec) for i, model in models.items()}
        hop = Hop()
        made.append((Relay(sites, algorithm, N, scalings, codec, hop), hop))
    return made


def requests(t=2):
    """An update; a search with the update at its full step; the same where costs overflow."""
    theta, far = np.linspace(-0.1, 0.1, N), np.full(N, 400.0)
    etas = np.array([1.0, 0.5, 1e-9])
    near = Search(theta, -theta, etas, slopes=True)
    return [(Update(t, theta),), (near, Update(t, None)), (Search(theta, far, etas), Update(t, None))]


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
@pytest.mark.parametrize("name", ["newton", "lbfgs", "agd", "heavy-ball"])
def test_sites_that_answer_together_give_the_sums_and_bytes_of_each_alone(name, loss):
    algorithm = fedshed.ALGORITHMS[name].algorithm
    (together, its_hop), (alone, hop) = relays(algorithm, loss)
    codec = codec_of(algorithm, N)
    for t in (1, 2):
        for k, parts in enumerate(requests(t)):
            payload = codec.encode_request(codec.encode_common(b"run", k, parts), None)
            ours, theirs = (codec.decode_reply(relay.handle(payload)) for relay in (together, alone))
            assert ours.hessians == theirs.hessians
            assert (its_hop.up, its_hop.down) == (hop.up, hop.down)
            for one, other in zip(ours.parts, theirs.parts, strict=True):
                assert_alike(one, other)


def assert_alike(one, other):
    assert type(one) is type(other)
    for name in one.__struct_fields__:
        ours, theirs = getattr(one, name), getattr(other, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-15)


def test_many_sites_are_asked_some_at_a_time(monkeypatch):
    """So never are all answers of a large group there at once."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(90, N))
    rows = fedshed.Federation.from_arrays(X, X[:, 0] > rng.normal(size=90), np.repeat(np.arange(30), 3))
    whole = solved(rows, "newton", [Group("all of them", rows.sites)])
    monkeypatch.setattr("fedshed.exchange.group.MOST", 7)
    parts = solved(rows, "newton", [Group("all of them", rows.sites)])
    np.testing.assert_allclose(parts.theta, whole.theta, rtol=0, atol=1e-12)
    assert parts.hops == whole.hops


@pytest.mark.parametrize("name", ["newton", "lbfgs", "agd"])
def test_no_site_is_asked_alone_where_all_answer_together(name, monkeypatch):
    algorithm = fedshed.ALGORITHMS[name].algorithm
    ((together, _), (alone, _)), codec = relays(algorithm, "logistic"), codec_of(algorithm, N)
    monkeypatch.setattr(Site, "handle", None)
    for parts in requests()[:2]:
        payload = codec.encode_request(codec.encode_common(b"run", 1, parts), None)
        assert codec.decode_reply(together.handle(payload)).parts
        with pytest.raises(TypeError):
            alone.handle(payload)
