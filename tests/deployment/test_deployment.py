"""Nodes, studies and plans, without an engine: the same bytes go through InProcess."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import fedshed
from fedshed import Federation
from fedshed._utils.errors import ConfigError, DataError, ProtocolError
from fedshed._utils.files import write_secret
from fedshed.algorithms.auto import choose
from fedshed.algorithms.costs import Shape
from fedshed.algorithms.pen import Pen
from fedshed.cli import app
from fedshed.datasets.examples import EXAMPLES, TARGET, csv_text
from fedshed.deployment.config import SiteFile, Source, StudyFile, Uplink, read_site, read_study
from fedshed.deployment.example import write_tables
from fedshed.deployment.master import conduct_study, serve
from fedshed.deployment.node import Node
from fedshed.deployment.plan import HERE, Command, Deployment
from fedshed.deployment.review import review
from fedshed.exchange import InProcess, Stateless
from fedshed.fitting.fit import fit
from fedshed.fitting.stages import (
    PROTOCOL,
    RUN,
    STUDY,
    Answer,
    Envelope,
    Prepare,
    Refusal,
    StageSession,
    Unknown,
    digest,
)
from fedshed.preparation import Study
from fedshed.preparation.agreement import agree
from fedshed.preparation.describe import describe
from fedshed.preparation.messages import CODEC, Build, Constants, Describe, Ready, Spread
from fedshed.privacy.audit import entries
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import encode
from fedshed.protocol.messages import Message
from fedshed.tables import read_table
from fedshed.tables.frames import Frame
from fedshed.tables.frozen import freeze, thaw

SITES = ("a", "b", "c")
NAME = bytes(range(STUDY + RUN))  # of a run of a study, as some Master may call it
OPEN = Policy(
    min_rows=1, min_rows_per_class=1, min_rows_per_level=1, max_parameters_per_row=10.0, max_curvature=1e9,
    max_numbers=1e9, max_refusals=1_000_000, effective_rows=1, max_deviance=1e300,
)  # fmt: skip
MODEL = Study(family="logistic", target="y", l2=1e-2)
STUDY = StudyFile(MODEL, SITES)
SITE_B = 'name = "b"\n[table]\ncsv = "b.csv"\n[disclosure]\nmin_rows_per_class = 1\nmax_curvature = 10\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three tables of 6 columns and 10, 40 and 90 rows."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=6)
    for site, rows in zip(SITES, (10, 40, 90), strict=True):
        X = rng.normal(size=(rows, 6)) * np.geomspace(2, 0.2, 6)
        y = np.where(X @ truth + rng.normal(size=rows) > 0, 1, 0)
        frame = pd.DataFrame(X, columns=list("uvwxpq")).assign(y=y)
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    return tmp_path


def sitefile(site: str, **changes: object) -> SiteFile:
    usual = {"table": Source(csv=f"{site}.csv"), "state": f"state-{site}", "audit": f"audit-{site}.jsonl"}
    return SiteFile(**{"name": site, "disclosure": OPEN, "any_study": True, **usual, **changes})


def nodes(folder: Path, **changes: object) -> dict[str, Node]:
    return {site: Node(sitefile(site, **changes), folder) for site in SITES}


def tables(folder: Path) -> dict[str, object]:
    return {site: read_table(folder / f"{site}.csv") for site in SITES}


class Reborn:
    """A node whose process ends after each message, as Flower's do."""

    def __init__(self, site: SiteFile, folder: Path) -> None:
        self._site, self._folder = site, folder

    def handle(self, data: bytes) -> bytes:
        return Node(self._site, self._folder, keep=True).handle(data)


class Forgetful(InProcess):
    """Processes that end after each message, with nothing but their disk to remember by."""

    stateless = True


ALGORITHMS = ["newton", "fib-shed", "qn-shed", "pen", "fednl", "lbfgs"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_study_over_nodes_is_fit_bit_for_bit(folder, algorithm):
    """Fused exchanges give the same iterates as fit's two, and everything a site says is the same."""
    model, report = conduct_study(replace(STUDY, algorithm=algorithm), InProcess(nodes(folder)))
    expected = fit(tables(folder), MODEL, algorithm=algorithm)
    assert model.converged
    assert model.coefficients == expected.coefficients
    assert model.inference.model_covariance == expected.inference.model_covariance
    assert model.inference.null_deviance == expected.inference.null_deviance
    assert report.exchanges <= expected.run.exchanges + 1  # slopes tell whether the data are separated
    assert report.rows == {"a": 10, "b": 40, "c": 90}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_processes_that_end_after_each_message_go_on_from_the_sites_disk(folder, algorithm):
    """The same model as agents that remember, and no Hessian is computed twice."""
    study = replace(STUDY, algorithm=algorithm)
    reborn = {site: Reborn(sitefile(site), folder) for site in SITES}
    model, _ = conduct_study(study, Forgetful(reborn))
    lasting, _ = conduct_study(study, InProcess(nodes(folder)))
    assert model.coefficients == lasting.coefficients
    assert model.trace[-1].hessians == lasting.trace[-1].hessians


FAMILIES = [
    Study(family="linear", formula="y ~ u + C(level) + v:w"),
    Study(family="poisson", target="count", columns=("u", "level"), exposure="years", standardize=True),
    Study(family="multinomial", target="level", columns=("u", "v"), l2=0.1),
    Study(family="logistic", target="level2", columns=("u", "v"), weight="years", l2=0.1),
    Study(family="linear", target="y", columns=("u", "v"), intercept=False, missing="drop"),
    Study(family="linear", formula="y ~ cr(u, df=3) + poly(v, 2) + scale(w) + bs(p, df=4)"),
]


@pytest.mark.parametrize("study", FAMILIES, ids=lambda study: study.family)
def test_every_kind_of_study_over_processes_that_end_is_fit(folder, study):
    """Formulas, categories, exposures, weights, classes, missing values: all as `fit` has them."""
    rng = np.random.default_rng(1)
    for site in SITES:
        frame = pd.read_csv(folder / f"{site}.csv")
        more = {
            "level": rng.choice(["low", "mid", "top"], len(frame)),
            "years": rng.uniform(1, 3, len(frame)),
        }
        frame = frame.assign(**more, count=rng.poisson(2.0, len(frame)))
        frame["level2"] = np.where(frame["level"] == "top", "yes", "no")
        frame.loc[2, "v"] = np.nan if study.missing == "drop" else frame.loc[2, "v"]
        frame.to_csv(folder / f"{site}.csv", index=False)
    reborn = {site: Reborn(sitefile(site), folder) for site in SITES}
    model, _ = conduct_study(StudyFile(study, SITES, algorithm="newton"), Forgetful(reborn))
    expected = fit(tables(folder), study, algorithm="newton")
    assert model.converged
    assert model.coefficients == expected.coefficients
    assert model.inference.cluster_covariance == expected.inference.cluster_covariance


def test_the_rows_of_a_study_cannot_change_under_it(folder):
    expected, _ = conduct_study(STUDY, InProcess(nodes(folder)))

    class Tampered(Forgetful):
        def exchange(self, payloads):
            replies = super().exchange(payloads)
            pd.read_csv(folder / "b.csv").iloc[:5].to_csv(folder / "b.csv", index=False)
            return replies

    model, _ = conduct_study(STUDY, Tampered({site: Reborn(sitefile(site), folder) for site in SITES}))
    assert model.coefficients == expected.coefficients


def test_a_node_that_forgot_its_stage_is_told_again(folder):
    all_nodes = nodes(folder)

    class Restarting(InProcess):
        def exchange(self, payloads):
            replies = super().exchange(payloads)
            all_nodes["b"].forget()
            return replies

    model, _ = conduct_study(STUDY, Restarting(all_nodes))
    expected, _ = conduct_study(STUDY, InProcess(nodes(folder)))
    assert model.coefficients == expected.coefficients


def test_envelopes_cost_little(tmp_path):
    """Handwritten digits: what the engine is given is within 5 % of what the run counts."""
    for site, rows in zip(SITES, EXAMPLES["digits"].tables().values(), strict=False):
        (tmp_path / f"{site}.csv").write_text(csv_text(rows))
    study = Study(family="logistic", target="digit", positive=(1,), l2=1e-3)
    _, report = conduct_study(StudyFile(study, SITES, algorithm="newton"), InProcess(nodes(tmp_path)))
    counted, carried = report.payload_up + report.payload_down, report.carried_up + report.carried_down
    assert counted < carried < 1.05 * counted
    assert report.converged


def test_the_study_of_deploy_new_takes_few_exchanges_by_newton(tmp_path):
    write_tables({site: tmp_path / f"{site}.csv" for site in SITES})
    study = Study(family="logistic", target=TARGET, l2=1e-3)
    model, _ = conduct_study(StudyFile(study, SITES, algorithm="newton"), InProcess(nodes(tmp_path)))
    assert model.trace[-1].exchanges <= 12  # of the start and the fit


def test_a_study_cut_off_goes_on_from_its_checkpoint(folder, tmp_path):
    path, seen = tmp_path / "checkpoint", []

    def cut_off(progress):
        seen.append(progress)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path, watch=cut_off)
    model, _ = conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path)
    expected, _ = conduct_study(STUDY, InProcess(nodes(folder)))
    assert model.coefficients == expected.coefficients
    assert len(model.trace) == len(expected.trace)
    assert not path.exists()


def test_a_study_over_limited_links_goes_on_whatever_the_order_in_which_sites_answer(folder, tmp_path):
    """A checkpoint holds the links with the algorithm; after a crash, sites may answer in another order."""
    path, study, seen = tmp_path / "checkpoint", replace(STUDY, algorithm="fib-shed"), []

    class Backwards(InProcess):
        def exchange(self, payloads):
            return reversed(list(super().exchange(payloads)))

    def cut_off(progress):
        seen.append(progress)
        if len(seen) == 3:
            raise KeyboardInterrupt

    def limited():
        return nodes(folder, uplink=Uplink(bytes_per_round=150))

    with pytest.raises(KeyboardInterrupt):
        conduct_study(study, InProcess(limited()), checkpoint=path, watch=cut_off)
    model, _ = conduct_study(study, Backwards(limited()), checkpoint=path)
    assert model.converged
    assert not path.exists()


def cut_short(folder, path, after=3):
    """A study whose Master dies after so many rounds; the processes of the sites end with it."""
    seen = []

    def cut_off(progress):
        seen.append(progress)
        if len(seen) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path, watch=cut_off)


def test_a_study_that_goes_on_is_the_same_study_to_its_sites(folder, tmp_path):
    """So the ceiling on what it releases is not begun anew; the next study is another one."""
    path = tmp_path / "checkpoint"
    cut_short(folder, path)
    conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path)
    assert len({entry.study for entry in entries(folder / "audit-b.jsonl")}) == 1
    conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path)
    assert len({entry.study for entry in entries(folder / "audit-b.jsonl")}) == 2


def test_a_model_that_cannot_be_saved_leaves_the_checkpoint(folder, tmp_path):
    """The model is written before the checkpoint is removed: one of both is always there."""
    path, order = tmp_path / "checkpoint", []

    def full(model):
        order.append(path.exists())
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path, save=full)
    assert order == [True]
    assert path.exists()
    model, _ = conduct_study(
        STUDY, InProcess(nodes(folder)), checkpoint=path, save=lambda model: order.append(1)
    )
    assert model.converged
    assert order == [True, 1]
    assert not path.exists()


def test_a_study_does_not_go_on_with_other_rows(folder, tmp_path, caplog):
    path = tmp_path / "checkpoint"
    cut_short(folder, path)
    frame = pd.read_csv(folder / "b.csv", dtype=str)  # as text: numbers would be rounded by some versions
    frame.assign(u=frame["u"] + "1").to_csv(folder / "b.csv", index=False)
    with pytest.raises(ProtocolError, match="site 'b' refused: its table does not fit"):
        conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path)
    assert "not those with which the study began" in caplog.text
    frame.to_csv(folder / "b.csv", index=False)
    assert conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path)[0].converged


class Disturbed(InProcess):
    """Site b sends something else from the `first` exchange to the `last`."""

    def __init__(self, sites, first, last, instead):
        super().__init__(sites)
        self._numbers, self._instead, self._count = range(first, last + 1), instead, 0

    def exchange(self, payloads):
        self._count += 1
        for i, data in super().exchange(payloads):
            yield i, self._instead if i == "b" and self._count in self._numbers else data


@pytest.mark.parametrize(
    "instead", [b"", b"noise", encode(Refusal("the disk is full")), encode(Answer(b"x"))]
)
def test_a_site_that_fails_for_a_while_is_refused_by_name_and_the_study_goes_on(folder, instead):
    expected, _ = conduct_study(STUDY, InProcess(nodes(folder)))
    file = replace(STUDY, quorum=2)
    model, _ = conduct_study(file, Disturbed(nodes(folder), 6, 7, instead))
    assert model.converged
    np.testing.assert_allclose(
        list(model.coefficients.values()), list(expected.coefficients.values()), atol=1e-7
    )


def test_a_site_that_fails_for_good_ends_the_study_which_can_go_on(folder, tmp_path):
    path, refused = tmp_path / "checkpoint", encode(Refusal("the disk is\x1b[2J full"))
    with pytest.raises(ProtocolError, match=r"'b' gave no usable .* 5 exchanges.*the disk is\\x1b\[2J full"):
        conduct_study(STUDY, Disturbed(nodes(folder), 6, 10_000, refused), checkpoint=path)
    assert path.exists()
    assert conduct_study(STUDY, InProcess(nodes(folder)), checkpoint=path)[0].converged
    assert not path.exists()


def test_a_study_that_is_started_again_leaves_no_trace_of_its_failure(folder):
    (folder / "study.toml").write_text(
        'family = "logistic"\ntarget = "y"\nl2 = 0.01\nsites = ["a", "b", "c"]\n'
    )
    refused = encode(Refusal("the disk is full"))
    with pytest.raises(ProtocolError):
        serve(folder, lambda _: Disturbed(nodes(folder), 6, 10_000, refused))
    assert "the disk is full" in (folder / "results" / "error.txt").read_text()
    assert not (folder / "results" / "report.json").exists()
    serve(folder, lambda _: InProcess(nodes(folder)))
    assert (folder / "results" / "report.json").exists()
    assert not (folder / "results" / "error.txt").exists()


def test_the_ceiling_of_a_site_ends_the_study_by_its_rule(folder):
    low = Node(sitefile("a", disclosure=replace(OPEN, max_scalars=40)), folder)
    with pytest.raises(ProtocolError, match=r"'a' gave no usable answer.*\(max_scalars\)"):
        conduct_study(STUDY, InProcess(nodes(folder) | {"a": low}))


# what a site lets in and out


def test_the_uplink_of_a_site_is_its_number_of_eigenpairs(folder):
    """A link of 2.5 pairs a round sends 2 a round, and the others are not held back by it."""
    pair = 8 * (7 + 1)
    sent = dict.fromkeys(SITES, 0)

    class Metered(InProcess):
        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            for site, data in replies:
                sent[site] = max(sent[site], len(data) // pair)
            return replies

    all_nodes = nodes(folder)
    all_nodes["c"] = Node(sitefile("c", uplink=Uplink(bytes_per_round=2.5 * pair)), folder)
    model, _ = conduct_study(replace(STUDY, algorithm="fib-shed"), Metered(all_nodes))
    plenty, _ = conduct_study(replace(STUDY, algorithm="fib-shed"), InProcess(nodes(folder)))
    assert model.converged
    assert model.trace[1].q_max == 6  # sites without a limit send all they have at once
    assert sent["c"] < sent["b"]
    assert plenty.trace[1].q_max == 1


def test_auto_is_the_same_whatever_the_links_and_the_budgets(folder):
    slow = nodes(folder, uplink=Uplink(bytes_per_second=1000, seconds=0.2))
    policy = replace(OPEN, max_curvature=2.0)  # 20 entries for each of 7 columns; a Hessian has 28
    poor = nodes(folder, disclosure=policy)
    expected = fit(tables(folder), MODEL).inference.coefficients
    for made in (nodes(folder), slow, poor):
        model, report = conduct_study(STUDY, InProcess(made))
        assert report.algorithm == "lbfgs: a study that names no algorithm asks its sites for gradients only"
        assert model.converged
        assert np.allclose(model.inference.coefficients, expected, rtol=0, atol=1e-6)


def test_auto_spares_agents_that_forget_an_algorithm_that_needs_memory():
    slow, shape = fedshed.Network(rate=1e4), Shape(100, 5, 1000.0)
    assert isinstance(choose(shape, None, slow)[0], Pen)
    assert not isinstance(choose(shape, None, slow, stateless=True)[0], Pen)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 40)), np.arange(80) % 2
    result = fedshed.optimize(Federation.from_arrays(X, y), l2=1.0, transport=Stateless)
    assert result.converged
    assert not result.algorithm.startswith("pen")


def test_a_refusal_does_not_quote_the_sites_rows(folder, caplog):
    (folder / "b.csv").write_text("u,y\n1,0\njane,doe,1\n")
    with pytest.raises(ProtocolError, match="site 'b' refused: the site cannot read") as refused:
        conduct_study(STUDY, InProcess(nodes(folder)))
    assert "jane" not in str(refused.value)
    assert "a row has 3 fields where the first has 2" in caplog.text  # the site's own log says more


def asked(node: Node, part: Message) -> bytes:
    """What a node answers to one request of the preparation, of whatever Master."""
    opening = encode(Prepare(PROTOCOL))
    request = encode((b"run!", 1, [part], None))
    return node.handle(encode(Envelope(NAME + digest(opening), 0, opening, request)))


def test_the_values_of_a_column_cannot_be_asked_for_by_calling_it_a_category(folder):
    """Nor by calling it a target of classes: what few rows have is not named."""
    frame = pd.read_csv(folder / "c.csv")
    frame.assign(name=[f"patient {k}" for k in range(len(frame))]).to_csv(folder / "c.csv", index=False)
    value = str(frame["u"].iloc[0])
    wishes = [
        Study(family="logistic", target="y", columns=("u",), categories=("u",)),
        Study(family="logistic", target="y", columns=("name",), categories=("name",)),
        Study(family="multinomial", target="name", columns=("v",)),
    ]
    for study, rule in zip(wishes, ("level", "level", "class"), strict=True):
        for policy in (Policy(), OPEN):
            reply = asked(Node(sitefile("c", disclosure=policy), folder), Describe(study))
            named = (
                value.encode() in reply or b"patient 7" in reply or np.float64(value).tobytes()[::-1] in reply
            )
            assert named == (policy is OPEN)
            assert (f"min_rows_per_{rule}".encode() in reply) == (policy is not OPEN)


@pytest.mark.parametrize("family", ["logistic", "multinomial"])
def test_the_values_of_a_target_that_measures_something_never_leave(folder, family):
    """Whatever the site's policy: it says that the column does not fit, and its own log says why."""
    frame = pd.read_csv(folder / "c.csv")
    for rows in (90, 2):
        frame[:rows].to_csv(folder / "c.csv", index=False)
        site = sitefile("c", state=f"state-{rows}")
        reply = asked(Node(site, folder), Describe(Study(family=family, target="u", columns=("v",))))
        assert b"its column 'u' does not fit the study" in reply
        for value in frame["u"].to_numpy():
            assert str(value).encode() not in reply
            assert value.tobytes() not in reply
            assert value.tobytes()[::-1] not in reply


def test_a_positive_value_of_few_rows_is_not_named(folder):
    """What the policy of every site keeps back is an error: a slip in the study would look the same."""
    frames = {site: pd.read_csv(folder / f"{site}.csv") for site in SITES}
    for site, frame in frames.items():
        grade = np.arange(len(frame)) % 3
        frame["y"] = np.where(np.arange(len(frame)) == 0, 3, grade) if site == "b" else np.clip(grade, 0, 2)
        frame.to_csv(folder / f"{site}.csv", index=False)
    wish = Study(family="logistic", target="y", columns=("v",), positive=(1, 2, 3))
    policy = Policy(min_rows_per_class=2, max_parameters_per_row=1)
    guarded = Node(sitefile("b", disclosure=policy), folder)
    (answer,) = CODEC.decode_reply(msgspec.msgpack.decode(asked(guarded, Describe(wish)))[1]).parts
    assert answer.positive == (0, 1)
    (answer,) = CODEC.decode_reply(
        msgspec.msgpack.decode(asked(Node(sitefile("b", state="open"), folder), Describe(wish)))[1]
    ).parts
    assert answer.positive == (0, 1, 2)
    with pytest.raises(ConfigError, match="positive names 3, which no site has"):
        conduct_study(StudyFile(wish, SITES), InProcess(nodes(folder, disclosure=policy)))


def test_the_notes_of_a_study_are_the_masters_own(folder):
    """They say what is at other sites."""
    for k, site in enumerate(SITES):
        frame = pd.read_csv(folder / f"{site}.csv").assign(
            drug=lambda f, k=k: np.resize(["x", f"d{k}"], len(f))
        )
        frame.to_csv(folder / f"{site}.csv", index=False)
    sent: list[bytes] = []

    class Heard(InProcess):
        def exchange(self, payloads):
            sent.extend(payloads.values())
            return super().exchange(payloads)

    model, _ = conduct_study(STUDY, Heard(nodes(folder)))
    assert any("'d0' (site 'a')" in note and "one site only" in note for note in model.plan.notes)
    assert sent
    assert not any(b"one site only" in payload for payload in sent)


def test_codes_are_read_as_text_where_the_study_calls_them_categories(folder):
    """01 at one site and 10 at another; under the site's own name, also after a restart, and as fit does."""
    frames = {site: pd.read_csv(folder / f"{site}.csv") for site in SITES}
    for k, frame in enumerate(frames.values()):
        frame["ward"] = np.resize([["01", "02"], ["10", "11"], ["01", "10", "11"]][k], len(frame))
    for site, frame in frames.items():
        name = "WARD_ID" if site == "a" else "ward"
        frame.rename(columns={"ward": name}).to_csv(folder / f"{site}.csv", index=False)
    own = {"y": "y", "u": "u", "ward": "WARD_ID"}
    model = Study(family="logistic", formula="y ~ u + C(ward)", l2=1e-2)
    usual = {site: sitefile(site) for site in SITES} | {"a": sitefile("a", columns=own)}
    reborn = {site: Reborn(file, folder) for site, file in usual.items()}
    found, _ = conduct_study(StudyFile(model, SITES, algorithm="newton"), Forgetful(reborn))
    assert found.plan.levels["ward"] == ("01", "02", "10", "11")
    assert found.coefficients == fit(frames, model, algorithm="newton").coefficients


def test_sums_over_the_few_rows_that_a_study_leaves_of_a_table_do_not_leave(folder):
    """Of 90 rows one is complete: its sums would be the row."""
    frame = pd.read_csv(folder / "c.csv")
    frame.loc[1:, "u"] = np.nan
    frame.to_csv(folder / "c.csv", index=False)
    study = Study(family="linear", target="y", columns=("u", "v"), missing="drop", standardize=True)
    plan = agree(study, {"c": describe(study, Frame(read_table(folder / "c.csv")))})
    row = frame["u"].iloc[0].tobytes()
    for part in (Build(plan), Constants(plan, (0, 1)), Spread(plan, np.zeros(2))):
        reply = asked(Node(sitefile("c", disclosure=Policy()), folder), part)
        assert b"(min_rows)" in reply
        assert row not in reply
        assert row in asked(Node(sitefile("c"), folder), part)  # which is what would have left


@pytest.mark.parametrize("levels", [(), ("1", "2")])
def test_a_site_does_not_quote_its_levels_to_a_master_that_leaves_them_out(folder, levels):
    frame = pd.read_csv(folder / "c.csv").assign(name=["jane"] * 45 + ["doe"] * 45)
    frame.to_csv(folder / "c.csv", index=False)
    study = Study(family="linear", target="y", columns=("name",))
    plan = agree(study, {"c": describe(study, Frame(frame))})
    other = replace(plan, levels=dict.fromkeys(plan.levels, levels))
    reply = asked(Node(sitefile("c"), folder), Build(other))
    assert b"jane" not in reply
    assert b"doe" not in reply


def test_a_slip_in_a_column_of_numbers_is_told_to_the_site_alone(folder, caplog):
    frame = pd.read_csv(folder / "c.csv").astype({"u": str})
    study = Study(family="linear", target="y", columns=("u",))
    for text in ("jane doe", "?", "unknown"):
        frame.loc[3, "u"] = text
        frame.to_csv(folder / "c.csv", index=False)
        site = sitefile("c", table=Source(csv="c.csv", na_values=("none",)), state=f"state-{len(text)}")
        reply = asked(Node(site, folder), Describe(study))
        assert b"its column 'u' does not fit the study" in reply
        assert text.encode() not in reply
    assert "na_values" in caplog.text


def test_what_a_library_says_of_the_rows_stays_at_the_site(folder, monkeypatch, caplog):
    def fails(*_):
        raise KeyError("jane doe")

    monkeypatch.setattr("fedshed.deployment.tables.read", fails)
    reply = asked(Node(sitefile("c"), folder), Describe(MODEL))
    assert b"failed to answer" in reply
    assert b"jane" not in reply
    assert "jane doe" in caplog.text


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x94" * 40, bytes(range(256))])
def test_bytes_that_are_no_envelope_are_refused_not_raised(folder, data):
    assert b"the request cannot be read" in Node(sitefile("a"), folder).handle(data)


def test_a_stage_must_be_the_one_that_is_named(folder, caplog):
    node = Node(sitefile("a"), folder)
    opening = encode(Prepare(PROTOCOL))
    assert node.handle(encode(Envelope(NAME + digest(opening), 0, None, b""))) == encode(Unknown())
    assert b"cannot be read" in node.handle(encode(Envelope(NAME + bytes(8), 0, opening, b"")))
    assert b"another version" in node.handle(encode(Envelope(b"../../../x", 0, opening, b"")))
    garbage = b"\x93\x07\x01\x02"
    assert b"cannot be read" in node.handle(encode(Envelope(NAME + digest(garbage), 0, garbage, b"")))
    for said in ("is not the one that the envelope names", "the stage is unknown"):
        assert said in caplog.text  # the site's own log says more


def test_a_node_that_refuses_is_named(folder):
    room = StageSession(InProcess(nodes(folder)), NAME, Prepare(PROTOCOL))
    with pytest.raises(ProtocolError, match="site 'a' refused"):
        room.part().exchange({"a": b"no request"})


def test_the_policy_of_a_site_is_enforced_and_the_rule_is_named(folder):
    policies = {
        Policy(min_rows_per_class=1): "max_parameters_per_row",
        Policy(min_rows=11): "min_rows",
    }
    for policy, rule in policies.items():
        strict = nodes(folder) | {"a": Node(sitefile("a", disclosure=policy), folder)}
        with pytest.raises(ProtocolError, match=rf"site 'a' refused: .*\({rule}\)"):
            conduct_study(STUDY, InProcess(strict))


@pytest.mark.parametrize("lasting", [True, False])
def test_all_that_leaves_a_site_is_on_its_record(folder, lasting):
    """Every answer of every stage, with the hash of what left, also where each message has its process."""
    sent = []

    class Tapped(InProcess if lasting else Forgetful):
        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            sent.extend(len(data) for i, data in replies if i == "b")
            return replies

    sites = nodes(folder) if lasting else {site: Reborn(sitefile(site), folder) for site in SITES}
    _, report = conduct_study(STUDY, Tapped(sites))
    record = list(entries(folder / "audit-b.jsonl"))
    assert len(record) == len(sent) == report.exchanges
    assert all(0 < carried - entry.bytes < 30 for carried, entry in zip(sent, record, strict=True))
    assert len({entry.study for entry in record}) == 1
    assert record[0].what == "Schema"
    assert record[-1].what == "Search -> Costs"  # whether the cost decreases without bound
    assert "Inspect -> Inspected" in [one.what for one in record[-5:]]


def test_site_check_leaves_no_record_and_says_what_the_policy_forbids(folder):
    (folder / "a.toml").write_text('name = "a"\n[table]\ncsv = "a.csv"\n')
    shown = CliRunner().invoke(app, ["site", "check", str(folder / "a.toml")])
    assert shown.exit_code == 1
    assert "max_parameters_per_row): 7 parameters for 10 rows" in " ".join(shown.stdout.split())
    assert not (folder / "audit.jsonl").exists()


def test_only_the_columns_offered_can_be_asked_for(folder):
    offered = ["u", "v", "y"]
    model, _ = conduct_study(STUDY, InProcess(nodes(folder, columns=offered)))
    assert list(model.coefficients) == ["u", "v", "intercept"]
    with pytest.raises(DataError, match="'p'"):
        conduct_study(
            replace(STUDY, study=replace(MODEL, columns=("u", "p"))),
            InProcess(nodes(folder, columns=offered)),
        )


def test_a_site_may_call_its_columns_otherwise(folder):
    expected, _ = conduct_study(STUDY, InProcess(nodes(folder)))
    frame = pd.read_csv(folder / "c.csv", dtype=str)
    frame.rename(columns={"u": "U_MG", "y": "OUTCOME"}).to_csv(folder / "c.csv", index=False)
    names = {name: {"u": "U_MG", "y": "OUTCOME"}.get(name, name) for name in frame.columns}
    model, _ = conduct_study(
        STUDY, InProcess(nodes(folder) | {"c": Node(sitefile("c", columns=names), folder)})
    )
    assert model.coefficients == expected.coefficients


def test_sites_that_do_not_fit_are_named(folder):
    with pytest.raises(ProtocolError, match=r"not connected after 0.1 s: d; check"):
        conduct_study(StudyFile(MODEL, ("a", "d"), deadline=0.1), InProcess(nodes(folder)))
    with pytest.raises(ProtocolError, match="registered as 'a' calls itself 'b'"):
        conduct_study(StudyFile(MODEL, ("a",)), InProcess({"a": Node(sitefile("b"), folder)}))
    with pytest.raises(DataError, match="site 'b' lacks column"):
        conduct_study(
            STUDY, InProcess(nodes(folder) | {"b": Node(sitefile("b", columns=["u", "y"]), folder)})
        )
    with pytest.raises(ConfigError, match="least-squares only"):
        conduct_study(replace(STUDY, algorithm="shed-ls"), InProcess(nodes(folder)))


# where tables come from


def test_every_source_gives_the_same_rows(folder):
    import duckdb
    import sqlalchemy

    frame = pd.read_csv(folder / "b.csv")
    frame.to_parquet(folder / "b.parquet")
    engine = sqlalchemy.create_engine(f"sqlite:///{folder}/b.sqlite")
    frame.to_sql("rows", engine, index=False)
    engine.dispose()
    with duckdb.connect(folder / "b.duckdb") as db:
        db.execute("CREATE TABLE rows AS SELECT * FROM frame")
    sources = [
        Source(csv="b.csv"),
        Source(parquet="b.parquet"),
        Source(sql="SELECT * FROM rows", url=f"sqlite:///{folder}/b.sqlite"),
        Source(sql="SELECT * FROM rows", database="b.duckdb"),
        Source(sql="SELECT * FROM 'b.parquet'"),
    ]
    found = [  # a study each: one that had begun would insist on the same bytes
        Node(sitefile("b", table=one), folder).frame(f"{k:04}".encode()).to_pandas()
        for k, one in enumerate(sources)
    ]
    for other in found[1:]:
        pd.testing.assert_frame_equal(other, found[0])


def test_a_password_comes_from_the_environment(folder, monkeypatch):
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"sqlite:///{folder}/t.sqlite")
    pd.read_csv(folder / "a.csv").to_sql("rows", engine, index=False)
    engine.dispose()
    monkeypatch.setenv("PLACE", str(folder))
    source = Source(sql="SELECT * FROM rows", url="sqlite:///$PLACE/t.sqlite")
    assert Node(sitefile("a", table=source), folder).frame(b"1234").num_rows == 10


def test_a_frozen_table_thaws_to_itself():
    import pyarrow as pa

    table = pa.table(
        {"i": [1, 2, None], "f": [0.1, None, 1e300], "b": [True, False, True], "s": ["x", None, "z"]}
    )
    assert thaw(freeze(table)).equals(table)


# the files


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('name = "a"\n', "the field 'table' is missing; add it"),
        ('name = "a"\n[table]\ncsv = "x"\nparquet = "y"\n', "exactly one of"),
        ('name = "a"\n[table]\ncsv = "x"\nurl = "y"\n', "are for a query; add sql"),
        ('name = "a b"\n[table]\ncsv = "x"\n', "letters, digits"),
        ('name = "a"\ntabel = 1\n[table]\ncsv = "x"\n', "tabel"),
        ('name = "a"\n[table]\ncsv = "x"\n[uplink]\n', "bytes_per_round"),
        ('name = "a"\n[table]\ncsv = "x"\n[uplink]\nbytes_per_round = -1\n', "rate >= 0"),
        ("name = ", "all text must be in quotes"),
        ('name = "a"\n[table]\ncvs = "x"\n', "unknown field 'cvs' in [table]; did you mean 'csv'?"),
        ('name = "a"\n[table]\ncsv = "x"\n[uplink]\nbytes = 3\n', "known: bytes_per_round"),
        (
            'name = "a"\n[table]\ncsv = "x"\n[disclosure]\nmin_rows = "7"\n',
            "the field disclosure.min_rows is wrong: expected int",
        ),
    ],
)
def test_a_sites_file_is_checked(tmp_path, text, complaint):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"site\.toml") as refused:
        read_site(tmp_path / "site.toml")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('family = "linear"\ntarget = "y"\n', "the field 'sites' is missing; add it"),
        ('family = "linear"\nsites = ["a", "a"]\ntarget = "y"\n', "once"),
        ('family = "linear"\nsites = ["a"]\n', "names no target"),
        ('sites = ["a"]\ntarget = "y"\n', "family"),
        ('family = "logit"\nsites = ["a"]\ntarget = "y"\n', "logit"),
        ('family = "linear"\nsites = ["a"]\ntarget = "y"\nquorum = 2\n', "quorum"),
        ('family = "linear"\nsites = ["a"]\ntarget = "y"\ndeadline = 0.0\n', "deadline"),
        (
            'family = "linear"\nsites = ["a"]\ntarget = "y"\ndeadline = "1 h"\n',
            "the field deadline is wrong: expected float",
        ),
        ('family = "linear"\nsites = ["a"]\ntarget = "y"\nl2 = -1.0\n', "l2"),
        ('family = "linear"\nsites = ["a"]\ntarget = "y"\nl3 = 1.0\n', "l3"),
    ],
)
def test_a_studys_file_is_checked(tmp_path, text, complaint):
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"study\.toml") as refused:
        read_study(tmp_path / "study.toml")
    assert complaint in str(refused.value)


# site check


def test_site_check_says_what_a_study_then_sends(folder):
    (folder / "b.toml").write_text(SITE_B)
    found = review(folder / "b.toml", STUDY)
    sizes = []

    class Metered(InProcess):
        def exchange(self, payloads):
            replies = dict(super().exchange(payloads))
            sizes.append(len(replies["b"]))
            return replies.items()

    conduct_study(STUDY, Metered(nodes(folder)))
    said = {when: sum(i.size for i in found.items if i.when == when) for when in ("each round", "at the end")}
    assert 0 <= sizes[0] - found.items[0].size <= 80  # the headers
    assert 0 <= max(sizes[3:-3]) - said["each round"] <= 80
    assert 0 <= sizes[-3] - said["at the end"] <= 80
    assert found.rows == 40


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("qn-shed", {"vectors (Eigenpairs)", "gradient (Local)"}),
        ("qn-shed whole", {"hessian (LocalWhole)"}),
        ("lbfgs-coded", {"gradient (FirstReply)", "diagonal (FirstReply)"}),
        ("pen", {"hessian (First)", "gradient (First)"}),
    ],
)
def test_site_check_shows_what_is_coded_or_comes_with_a_second_answer(folder, name, told):
    slow = "[uplink]\nbytes_per_round = 150\n" * (name == "qn-shed")
    (folder / "b.toml").write_text(SITE_B + slow)
    found = review(folder / "b.toml", StudyFile(MODEL, SITES, algorithm=name.split()[0]))
    assert told <= {item.what for item in found.items if item.when == "each round" and item.numbers}


def test_a_study_by_an_algorithm_for_comparisons_is_no_study():
    for name in ("fedavg", "disco", "q-shed"):
        with pytest.raises(ConfigError, match="for comparisons"):
            StudyFile(MODEL, SITES, algorithm=name)


def test_site_check_on_the_command_line(folder):
    (folder / "b.toml").write_text(SITE_B)
    shown = CliRunner().invoke(app, ["site", "check", str(folder / "b.toml")])
    assert shown.exit_code == 0
    assert "nothing was sent" in shown.stdout
    assert "gradient" in shown.stdout
    missing = CliRunner().invoke(app, ["site", "check", str(folder / "none.toml")])
    assert missing.exit_code == 2
    assert "none.toml" in missing.stderr


def test_site_check_of_a_site_with_one_class(folder):
    pd.read_csv(folder / "b.csv").assign(y=1).to_csv(folder / "b.csv", index=False)
    (folder / "b.toml").write_text(SITE_B)
    assert review(folder / "b.toml", STUDY).rows == 40


def test_site_check_says_what_a_spline_needs_of_a_site(folder):
    (folder / "b.toml").write_text(SITE_B)
    study = StudyFile(Study(family="linear", formula="y ~ cr(u, df=3) + scale(v)"), SITES)
    items = review(folder / "b.toml", study).items
    told = [(item.what, item.numbers) for item in items if "Tallies" in item.what]
    # 40 rows in blocks of 5 and the sum of v; then squares of v and the means of the spline
    assert told == [("sums (Tallies)", 1), ("blocks (Tallies)", 3 * 8), ("sums (Tallies)", 2 + 4)]


@pytest.mark.parametrize("kind", ["HC1", "HC3"])
def test_a_study_over_nodes_has_errors_by_rows_as_a_fit_here(folder, kind):
    file = StudyFile(MODEL, SITES, errors=kind)
    model, _ = conduct_study(file, InProcess(nodes(folder)))
    here = fit(tables(folder), MODEL, errors=kind)
    np.testing.assert_allclose(
        model.inference.std_err(robust=kind), here.inference.std_err(robust=kind), rtol=1e-6
    )
    (folder / "b.toml").write_text(SITE_B)
    told = [item.what for item in review(folder / "b.toml", file).items]
    assert any("squares (Scattered)" in what for what in told)
    assert not any("Scattered" in item.what for item in review(folder / "b.toml", STUDY).items)


def test_site_check_of_a_site_where_a_column_does_not_vary(folder):
    pd.read_csv(folder / "b.csv").assign(u=1.5).to_csv(folder / "b.csv", index=False)
    (folder / "b.toml").write_text(SITE_B)
    study = StudyFile(Study(family="linear", formula="y ~ scale(u) + v"), SITES)
    with pytest.raises(
        DataError, match="rows of this site alone; with the rows of the other sites it may work"
    ):
        review(folder / "b.toml", study)


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_a_table_that_does_not_exist_is_to_be_named_in_the_sites_file(folder, kind):
    (folder / "b.toml").write_text(f'name = "b"\n[table]\n{kind} = "gone.{kind}"\n')
    with pytest.raises(DataError, match=rf"gone\.{kind}.*; name your table under \[table\] in site\.toml$"):
        review(folder / "b.toml", STUDY)
    (folder / f"gone.{kind}").mkdir()
    with pytest.raises(DataError, match="its table cannot be read") as refused:
        review(folder / "b.toml", STUDY)
    assert "name your table" not in str(refused.value)


def test_a_table_that_does_not_fit_is_refused_with_the_site_and_the_remedy(folder):
    (folder / "b.toml").write_text('name = "b"\n[table]\ncsv = "own.csv"\n')
    (folder / "own.csv").write_text("u,v\n1,2\n")
    with pytest.raises(DataError, match="site 'b': its table does not fit the study: there is no column"):
        review(folder / "b.toml", STUDY)
    with pytest.raises(DataError, match=r"map it under \[columns\] in site\.toml"):
        review(folder / "b.toml", STUDY)
    (folder / "b.toml").write_text('name = "b"\n[table]\ncsv = "own.csv"\n[columns]\nx = "no"\nz = "nor"\n')
    with pytest.raises(DataError, match="names columns that the table does not have: no, nor"):
        review(folder / "b.toml", STUDY)


# plans


def test_a_command_typed_is_the_command_run(tmp_path):
    """What COMMANDS.md prints, a shell takes apart into the arguments and environment that `local` uses."""
    program = "import os, sys; print(sys.argv[1:], os.environ['WHERE'])"
    folder = tmp_path / "a b"
    folder.mkdir()
    argv = (sys.executable, "-c", program, f'site="{HERE}/x.toml"', "it's", "$HOME")
    command = Command("test", "a b", argv, {"WHERE": f"{HERE}/y"})
    typed = subprocess.run(
        ["sh", "-c", command.line()], cwd=folder, capture_output=True, text=True, check=True
    )
    run, env, where = command.at(tmp_path)
    ours = subprocess.run(
        run, cwd=where, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    assert typed.stdout == ours.stdout
    assert str(folder) in ours.stdout
    assert shlex.split(command.line())


@pytest.mark.parametrize(
    "plan",
    [{"sites": ("a", "a")}, {"sites": ("../x",)}, {"sites": ()}, {"sites": ("a",), "port": 80}],
)
def test_plans_that_cannot_work(plan):
    with pytest.raises(ConfigError):
        Deployment("flower", **plan)


def test_secrets_are_for_their_owner_only(tmp_path):
    path = write_secret(tmp_path / "new" / "key", b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_secret(path, b"y")


def test_what_a_node_keeps_on_disk_is_for_its_owner_only(folder):
    conduct_study(STUDY, Forgetful({site: Reborn(sitefile(site), folder) for site in SITES}))
    kept = [path for path in (folder / "state-a").iterdir() if path.is_dir()]
    assert stat.S_IMODE((folder / "state-a" / "key").stat().st_mode) == 0o600
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o700}


def test_a_checkpoint_is_for_its_owner_only(folder, tmp_path):
    """It holds what each site said, one by one."""
    cut_short(folder, tmp_path / "checkpoint")
    assert stat.S_IMODE((tmp_path / "checkpoint").stat().st_mode) == 0o600


@pytest.mark.parametrize("wrong", [{"weight": -40.0}, {"weight": 0.0}, {"rows": 0}])
def test_a_site_without_rows_or_with_a_negative_weight_is_not_believed(wrong):
    given = {"rows": 40, "dropped": 0, "weight": 40.0, "names": (), "terms": ()}
    assert Ready(**given).rows == 40
    with pytest.raises(ValueError, match="rows and a weight"):
        Ready(**{**given, **wrong})


def test_the_core_needs_no_engine():
    program = "import sys, fedshed, fedshed.cli, fedshed.deployment.master; print('flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# what a fit checks, a study over nodes checks too


def separated_tables(family, rng):
    """x separates the classes of all sites together; of counts, one of its levels has none."""
    made = {}
    for site, rows in zip(SITES, (40, 60, 90), strict=True):
        x, u = rng.normal(size=rows), rng.normal(size=rows)
        y = {
            "logistic": np.where(x > 0, 1, 0),
            "multinomial": np.where(x > 0.5, "high", np.where(x > -0.5, "mid", "low")),
            "poisson": np.where(u > 0, rng.poisson(2.0, size=rows), 0),
        }[family]
        level = np.where(u > 0, "some", "none")
        made[site] = pd.DataFrame(
            {"x": level if family == "poisson" else x, "u": rng.normal(size=rows), "y": y}
        )
    return made


@pytest.mark.parametrize("family", ["logistic", "multinomial", "poisson"])
@pytest.mark.parametrize("where", ["here", "nodes"])
def test_separated_data_are_never_called_converged_wherever_they_are(tmp_path, family, where):
    """Against the oracle of the linear program, which needs the rows of all sites (`optimize`)."""
    made = separated_tables(family, np.random.default_rng(4))
    study = Study(family=family, target="y")
    if where == "here":
        model = fit(made, study, algorithm="newton")
    else:
        for site, table in made.items():
            table.to_csv(tmp_path / f"{site}.csv", index=False)
        model, _ = conduct_study(StudyFile(study, SITES, algorithm="newton"), InProcess(nodes(tmp_path)))
    assert not model.converged
    assert model.run.reason.startswith("separated: the cost decreases without bound along ")
    assert re.match(r"separated.* along (intercept, )?x", model.run.reason)


def test_a_ridge_makes_separated_data_converge_over_nodes_too(tmp_path):
    made = separated_tables("logistic", np.random.default_rng(4))
    for site, table in made.items():
        table.to_csv(tmp_path / f"{site}.csv", index=False)
    study = Study(family="logistic", target="y", l2=1e-3)
    model, _ = conduct_study(StudyFile(study, SITES), InProcess(nodes(tmp_path)))
    assert model.converged


def test_collinear_columns_are_never_called_converged_over_nodes(folder):
    for site in SITES:
        table = pd.read_csv(folder / f"{site}.csv")
        table.assign(twice=2 * table["u"]).to_csv(folder / f"{site}.csv", index=False)
    study = Study(family="logistic", target="y", columns=("u", "v", "twice"))
    model, _ = conduct_study(StudyFile(study, SITES, algorithm="fib-shed"), InProcess(nodes(folder)))
    assert not model.converged
    assert "collinear over all sites and not penalised: u, twice" in model.run.reason
    with pytest.raises(fedshed.SingularError, match="u, twice"):
        fit(tables(folder), study)


class Elderly(Node):
    """A node of fedshed 0.1, whose greeting has no version."""

    def answer(self, data):
        answer = super().answer(data)
        old = None if answer.greeting is None else replace(answer.greeting, protocol=0)
        return replace(answer, greeting=old)


def test_another_version_of_the_protocol_is_refused_in_one_sentence_by_either_end(folder):
    mixed = nodes(folder) | {"b": Elderly(sitefile("b"), folder)}
    said = rf"site 'b' speaks version 0 .* version {PROTOCOL}; install the same"
    with pytest.raises(ProtocolError, match=said):
        conduct_study(STUDY, InProcess(mixed))
    opening = encode(Prepare())
    letter = Envelope(NAME + digest(opening), 0, opening, b"")
    reply = nodes(folder)["b"].handle(encode(letter))
    assert f"the Master speaks version 0 of the protocol, and this end version {PROTOCOL}".encode() in reply
    older = nodes(folder)["b"].handle(encode(Envelope(b"12345678", 0, opening, b"")))
    assert b"another version of the protocol; install the same" in older


@pytest.mark.parametrize("algorithm", ["newton", "qn-shed"])
def test_a_fit_over_site_processes_is_the_fit_in_one_process_bit_for_bit(folder, algorithm):
    over = fedshed.ProcessSites(deadline=30.0)
    apart = fit(tables(folder), MODEL, algorithm=algorithm, over=over)
    together = fit(tables(folder), MODEL, algorithm=algorithm)
    assert apart.converged
    assert apart.coefficients == together.coefficients
    assert apart.inference.model_covariance == together.inference.model_covariance
    assert apart.run.exchanges == together.run.exchanges + 1  # slopes tell whether the data are separated


def test_knots_and_means_over_site_processes_are_those_of_one_process(folder):
    study = Study(family="linear", formula="y ~ cr(u, df=3) + poly(v, 2) + scale(w)")
    apart = fit(tables(folder), study, over=fedshed.ProcessSites(deadline=30.0))
    together = fit(tables(folder), study)
    assert apart.plan == together.plan
    assert apart.coefficients == together.coefficients


def test_a_mistake_in_a_table_is_said_by_a_process_as_in_this_one(folder):
    said = []
    for over in (None, fedshed.ProcessSites(deadline=30.0)):
        with pytest.raises(DataError) as error:
            fit(tables(folder), replace(MODEL, columns=("nowhere",)), over=over)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_the_former_name_of_over_still_works_and_says_so(folder):
    with pytest.warns(DeprecationWarning, match="now called over; use over="):
        old = fit(tables(folder), MODEL, transport=Stateless)
    assert old.coefficients == fit(tables(folder), MODEL).coefficients


def test_what_opens_a_transport_closes_it(folder):
    closed = []

    class Closing(InProcess):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            closed.append(True)

    fit(tables(folder), MODEL, over=Closing)
    assert len(closed) == 5  # preparation, start, fit, inspection, null model


def test_an_index_is_no_column_in_a_process_either(folder):
    """What pandas calls an index identifies rows, and stays where it is."""
    study = Study(family="logistic", target="y", columns=None, l2=1e-2)
    made = {site: pd.read_csv(folder / f"{site}.csv").set_index("q") for site in SITES}
    apart = fit(made, study, over=fedshed.ProcessSites(deadline=30.0))
    assert apart.coefficients == fit(made, study).coefficients
    assert "q" not in apart.coefficients


def test_a_log_ends_also_where_the_inspection_fails(folder, tmp_path):
    """A site that goes away after the fit: the log says so, and does not stop in the middle."""

    class Leaving(InProcess):
        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            return [(i, data) for i, data in replies if i != "b" or b"Inspect" not in payloads["b"]]

    log = fedshed.RunLog(tmp_path / "log")
    with pytest.raises(ProtocolError, match="'b' gave no usable answer in 5 exchanges"):
        conduct_study(STUDY, Leaving(nodes(folder)), watch=log)
    lines = (tmp_path / "log" / "run.jsonl").read_text().splitlines()
    assert '"kind":"end"' in lines[-1]
    assert "gave no usable answer" in lines[-1]


@pytest.mark.parametrize("over", [fedshed.ProcessSites, InProcess({}), 3])
def test_what_is_no_place_for_sites_is_refused_in_one_sentence(folder, over):
    with pytest.raises(
        ConfigError, match=r"over must be ProcessSites\(\) or a callable that makes a transport"
    ):
        fit(tables(folder), MODEL, over=over)


def test_no_tables_are_refused_wherever_the_sites_would_be():
    for over in (None, fedshed.ProcessSites()):
        with pytest.raises(DataError, match="at least one site"):
            fit({}, MODEL, over=over)
