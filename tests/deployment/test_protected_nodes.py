"""Nodes in protected studies: approved by key, killed at any point, rolled back, asked in any other way."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed._utils.files import secret_file
from fedshed.cli import app
from fedshed.deployment.approval import approve_study
from fedshed.deployment.config import StudyFile, read_site
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.deployment.store import KeptOnDisk
from fedshed.exchange import InProcess
from fedshed.fitting.conduct import conduct
from fedshed.fitting.fit import fit
from fedshed.fitting.host import opened_envelope
from fedshed.fitting.sites import HostedTables
from fedshed.fitting.stages import PROTOCOL, Answer, Protect, StageSession, _read
from fedshed.preparation import Study
from fedshed.privacy.audit import all_entries
from fedshed.privacy.masks import identity_public
from fedshed.privacy.private import Privacy
from fedshed.protected.messages import Begin, Open, read_request
from fedshed.protocol.codec import encode
from fedshed.report import Recorder, Rerun
from fedshed.report.fitted import of_model
from fedshed.solve.watching import RunLog
from fedshed.tables import read_table
from fedshed.ui.log import Log

SITES = ("a", "b", "c", "d")
MODEL = Study(family="logistic", target="y", columns=("u", "v", "w"), classes=(0, 1), l2=1e-2, protected=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four sites of 3 columns and 15 to 60 rows, each with its file and its key."""
    rng = np.random.default_rng(0)
    for site, rows in zip(SITES, (15, 30, 45, 60), strict=True):
        (tmp_path / site).mkdir()
        X = rng.normal(size=(rows, 3))
        y = np.where(X @ [1.0, -1.0, 0.5] + rng.logistic(size=rows) > 0, 1, 0)
        table = pd.DataFrame(X, columns=list("uvw")).assign(y=y)
        table.to_csv(tmp_path / site / "table.csv", index=False)
        (tmp_path / site / "site.toml").write_text(f'name = "{site}"\n[table]\ncsv = "table.csv"\n')
        secret_file(tmp_path / site / "protected.key")
    return tmp_path


def study(folder: Path, model: Study = MODEL, **more) -> StudyFile:
    keys = {site: identity_public((folder / site / "protected.key").read_bytes()).hex() for site in SITES}
    return StudyFile(model, SITES, keys=keys, patience=2, **more)


def approved(folder: Path, file: StudyFile) -> dict[str, Node]:
    for site in SITES:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    return nodes(folder)


def nodes(folder: Path) -> dict[str, Node]:
    return {site: Node.at(folder / site / "site.toml") for site in SITES}


def pooled(folder: Path) -> np.ndarray:
    plain = replace(MODEL, protected=False)
    model = fit({site: read_table(folder / site / "table.csv") for site in SITES}, plain, algorithm="newton")
    return np.array(model.inference.coefficients)


class Carrier(InProcess):
    """A transport on which something happens at chosen exchanges, to what is sent or to the sites."""

    def __init__(self, made, act=lambda number, site, payload: payload):
        super().__init__(made)
        self.number, self._act, self.sent = 0, act, list[bytes]()

    def exchange(self, payloads):
        self.number += 1
        answers = []
        for site, payload in payloads.items():
            changed = self._act(self.number, site, payload)
            if changed is not None:
                reply = self.sites[site].handle(changed)
                self.sent.append(reply)
                answers.append((site, reply))
        return answers


def test_a_protected_study_of_nodes_is_the_pooled_fit(folder):
    file = study(folder)
    carrier = Carrier(approved(folder, file))
    model, report = conduct_study(file, carrier)
    errors = np.sqrt(np.diag(model.inference.covariance()))
    assert np.abs((np.array(model.inference.coefficients) - pooled(folder)) / errors).max() < 1e-10
    assert model.converged
    assert report.carried_up == sum(map(len, carrier.sent))
    kinds = [entry.what for entry in all_entries(folder / "a" / "audit.jsonl")]
    assert sum(kind.startswith("masked") for kind in kinds) >= 10


def test_sites_that_are_killed_before_each_message_give_the_same_model(folder):
    file = study(folder)
    whole = conduct_study(file, Carrier(approved(folder, file)))[0]
    made = nodes(folder)

    def kill(number, site, payload):
        if (number + ord(site)) % 3 == 0:
            made[site].forget()
            carrier.sites[site] = made[site] = Node.at(folder / site / "site.toml")
        return payload

    carrier = Carrier(made, kill)
    again = conduct_study(file, carrier)[0]
    assert again.inference.coefficients == whole.inference.coefficients


def test_a_master_that_is_killed_goes_on_from_its_sums(folder, tmp_path):
    file, made = study(folder), None
    made = approved(folder, file)
    whole = conduct_study(file, Carrier(nodes(folder)))[0]
    place = tmp_path / "master" / "checkpoint"
    place.parent.mkdir()
    for stop in (1, 4, 9, 6):

        def die(number, site, payload, stop=stop):
            if number > stop and site == "c":
                raise KeyboardInterrupt
            return payload

        with pytest.raises(KeyboardInterrupt):
            conduct_study(file, Carrier(made, die), checkpoint=place)
    model, _ = conduct_study(file, Carrier(made), checkpoint=place)
    assert model.inference.coefficients == whole.inference.coefficients
    assert not list(place.parent.glob("*.sums"))


def test_a_site_that_is_away_at_the_start_is_left_out_if_the_study_allows_it(folder):
    file = study(folder, quorum=3)
    gone = lambda number, site, payload: None if site == "a" and number > 3 else payload  # noqa: E731
    model, _ = conduct_study(file, Carrier(approved(folder, file), gone))
    assert model.inference.rows == 30 + 45 + 60
    strict = study(folder)
    with pytest.raises(ProtocolError, match="'a' gave no answer"):
        conduct_study(strict, Carrier(approved(folder, strict), gone))


def test_a_silent_site_is_asked_as_often_as_the_study_is_patient(folder):
    file, asked = study(folder), list[int]()
    made = approved(folder, file)

    def silent(number, site, payload):
        if site == "c" and number > 8:
            asked.append(number)
            return None
        return payload

    for patience in (1, 3):
        with pytest.raises(ProtocolError, match="'c' gave no answer"):
            conduct_study(replace(file, patience=patience), Carrier(made, silent))
        assert len(asked) == patience
        asked.clear()


def test_what_is_shown_of_a_protected_study_says_so(folder, tmp_path):
    file = study(folder, quorum=3)
    gone = lambda number, site, payload: None if site == "a" and number > 3 else payload  # noqa: E731
    model, report = conduct_study(file, Carrier(approved(folder, file), gone), watch=RunLog(tmp_path))
    assert (report.protected, report.sites) == (True, 3)
    sums = "protected: sums over 3 sites"
    page = of_model(model, Recorder(), Rerun("", 0, {}, {}), model.summary())
    assert sums in page.title
    assert page.problems[0].agents == ()
    assert page.problems[0].runs[0].traffic == ()  # nothing of a single site
    assert page.problems[0].gap.name == "estimated gap"
    assert all(one.deviation is not None for one in page.fit.coefficients if one.kind == "number")
    assert sums in Log(tmp_path).report().title
    shown = CliRunner().invoke(app, ["watch", str(tmp_path), "--once"]).output
    assert sums in shown
    assert "last seen" not in shown
    where = ["--site", str(folder / "b" / "site.toml")]
    assert "masked" in CliRunner().invoke(app, ["site", "studies", *where]).output
    record = CliRunner().invoke(app, ["site", "audit", *where]).output
    assert "masked: comparison of sites" in record
    assert "masked study: record" in record


def test_later_runs_of_a_study_are_over_the_same_sites(folder):
    file = study(folder, quorum=3)
    made = approved(folder, file)
    gone = lambda number, site, payload: None if site == "a" and number > 3 else payload  # noqa: E731
    conduct_study(file, Carrier(made, gone))
    with pytest.raises(ProtocolError, match="not one of the approved study"):
        conduct_study(file, Carrier(nodes(folder)))
    reason = [entry.detail for entry in all_entries(folder / "b" / "audit.jsonl")][-1]
    assert "another set of sites" in reason


def test_a_state_that_was_put_back_is_refused(folder, tmp_path):
    file = study(folder)
    made, copy = approved(folder, file), tmp_path / "copy"

    def put_back(number, site, payload):
        state = folder / "b" / "state"
        if number == 8 and site == "b":
            shutil.copytree(state, copy)
        if number == 12 and site == "b":
            shutil.rmtree(state)
            shutil.copytree(copy, state)
            carrier.sites["b"] = Node.at(folder / "b" / "site.toml")
        return payload

    carrier = Carrier(made, put_back)
    with pytest.raises(ProtocolError, match="site 'b' refused"):
        conduct_study(file, carrier)
    reason = [entry.detail for entry in all_entries(folder / "b" / "audit.jsonl")][-1]
    assert "older than its witness" in reason
    again = conduct_study(file, Carrier(nodes(folder)))[0]  # a new run
    assert np.allclose(again.inference.coefficients, pooled(folder), rtol=1e-9)


def test_a_protected_study_is_not_answered_in_the_open(folder):
    file = study(folder)
    made = approved(folder, file)
    with pytest.raises(ProtocolError, match="refused"):
        conduct(file.study, HostedTables(InProcess(made), SITES, file.terms), file.goal)
    assert all(entry.scalars <= 1 for entry in all_entries(folder / "a" / "audit.jsonl"))


def test_a_site_that_answers_any_study_answers_no_protected_one_that_nobody_approved(folder):
    # its other sites may be names with keys of the Master's, whose rows would count for the site's policy
    for site in SITES:
        path = folder / site / "site.toml"
        path.write_text(f"any_study = true\n{path.read_text()}")
    with pytest.raises(ProtocolError, match="has not approved the study"):
        conduct_study(study(folder), Carrier(nodes(folder)))


def test_keys_are_part_of_what_is_approved_and_pinned(folder):
    file = study(folder)
    other = replace(file, keys={**file.keys, "b": identity_public(bytes(32)).hex()})
    assert other.terms.digest != file.terms.digest
    made = approved(folder, file)
    with pytest.raises(ProtocolError, match="has not approved the study"):
        conduct_study(other, Carrier(made))
    # a site whose own key is another than the study's cannot take part
    approve_study(folder / "b" / "site.toml", other.terms.digest.hex(), "")
    (folder / "b" / "protected.key").write_bytes(bytes(31) + b"x")
    for site in SITES:
        approve_study(folder / site / "site.toml", other.terms.digest.hex(), "")
    with pytest.raises(ProtocolError, match="site 'b' refused"):
        conduct_study(other, Carrier(nodes(folder)))


def text_of(file: StudyFile) -> str:
    keys = "\n".join(f'{site} = "{key}"' for site, key in file.keys.items())
    return (
        'family = "logistic"\ntarget = "y"\ncolumns = ["u", "v", "w"]\nclasses = [0, 1]\nl2 = 0.01\n'
        f'sites = ["a", "b", "c", "d"]\nprotected = true\n[keys]\n{keys}\n'
    )


def test_a_steward_sees_what_leaves_and_pins_the_keys(folder):
    file, path = study(folder), folder / "study.toml"
    path.write_text(text_of(file))
    where = str(folder / "a" / "site.toml")
    shown = CliRunner().invoke(app, ["site", "approve", str(path), "--site", where]).output
    assert "numbers that look random" in shown
    assert file.keys["b"] in shown
    assert (
        max(len(line) for line in shown.splitlines() if "SHA-256" not in line and "--yes" not in line) <= 80
    )
    digest = shown.rpartition("--yes ")[2].split()[0]
    done = CliRunner().invoke(app, ["site", "approve", str(path), "--site", where, "--yes", digest])
    assert done.exit_code == 0, done.output
    assert {peer.name: peer.key for peer in read_site(where).peers} == {
        site: key for site, key in file.keys.items() if site != "a"
    }
    path.write_text(text_of(replace(file, keys={**file.keys, "b": identity_public(bytes(32)).hex()})))
    refused = CliRunner().invoke(app, ["site", "approve", str(path), "--site", where])
    assert isinstance(refused.exception, ConfigError | SystemExit)
    assert "ask site 'b' by telephone" in f"{refused.output}{refused.exception}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"keys": {}}, "has none"),
        ({"keys": dict.fromkeys(SITES, "0" * 64)}, "the same key"),
        ({"keys": dict.fromkeys(SITES, "xyz")}, "64 digits"),
        ({"quorum": 2}, "at least 3"),
        ({"study": replace(MODEL, columns=None)}, "must name its columns"),
        ({"study": replace(MODEL, classes=())}, "must list the classes"),
        ({"study": replace(MODEL, protected=False)}, "protected = true"),
    ],
)
def test_a_protected_study_that_lacks_something_says_what(folder, change, said):
    with pytest.raises(ConfigError, match=said):
        replace(study(folder), **change)


def test_a_protected_study_has_one_part_so_that_no_exchange_is_answered_twice(folder):
    # two members of one run, each with its own memory, would answer the same request with other noise
    file = study(folder)
    made, begin = approved(folder, file), encode(Begin())
    session = StageSession(InProcess(made), file.terms.digest + bytes(8), Protect(PROTOCOL, file.terms))
    threads = threading.active_count()
    assert len(session.part(0).exchange(dict.fromkeys(SITES, begin))) == len(SITES)
    with pytest.raises(ProtocolError, match="refused"):
        session.part(1).exchange(dict.fromkeys(SITES, begin))
    assert threading.active_count() == threads + len(SITES)
    assert "only one part" in [entry.detail for entry in all_entries(folder / "a" / "audit.jsonl")][-1]


def test_two_processes_of_a_site_do_not_both_answer_an_exchange(folder):
    file, late = study(folder), {}
    made = approved(folder, file)

    def overtake(number, site, payload):
        if site == "b" and number == 6:  # an Ask, which a process that came before answers first
            late["b"].handle(payload)
        elif site == "b" and number < 6:
            late.setdefault("b", Node.at(folder / "b" / "site.toml")).handle(payload)
        return payload

    with pytest.raises(ProtocolError, match="site 'b' refused"):
        conduct_study(file, Carrier(made, overtake))
    reason = [entry.detail for entry in all_entries(folder / "b" / "audit.jsonl")][-1]
    assert "another process of this site" in reason


def test_a_formula_cannot_make_a_column_of_one_person(folder):
    u = pd.read_csv(folder / "b" / "table.csv").loc[3, "u"]
    alone = replace(
        MODEL, columns=None, formula=f"y ~ w + I(v / (1e-10 + (u - {u}) ** 2))".replace("- -", "+ ")
    )
    file = study(folder, alone)
    with pytest.raises(ProtocolError, match="rows that make up the differences within a computed column"):
        conduct_study(file, Carrier(approved(folder, file)))
    # what any formula may do
    usual = replace(MODEL, columns=None, formula="y ~ w + I(u ** 2) + center(v)")
    file = study(folder, usual)
    assert conduct_study(file, Carrier(approved(folder, file)))[0].converged


def test_a_level_that_only_one_site_has_is_refused(folder):
    # every sum over the rows of this level is that site's alone
    for site in SITES:
        table = pd.read_csv(folder / site / "table.csv")
        table["region"] = np.where(np.arange(len(table)) % 2, "north" if site == "b" else "east", "west")
        table.to_csv(folder / site / "table.csv", index=False)
    levels = {"region": ("west", "north", "east")}
    file = study(folder, replace(MODEL, columns=("u", "region"), levels=levels))
    with pytest.raises(ProtocolError):
        conduct_study(file, Carrier(approved(folder, file)))


def private_sites(folder: Path) -> None:
    """Enough rows at each site for a private study."""
    rng = np.random.default_rng(1)
    for site in SITES:
        X = rng.normal(size=(1200, 3))
        y = np.where(X @ [0.5, -0.5, 0.2] + rng.logistic(size=1200) > 0, 1, 0)
        table = pd.DataFrame(X, columns=list("uvw")).assign(y=y)
        table.to_csv(folder / site / "table.csv", index=False)


def test_a_private_study_is_charged_once_for_each_run_and_refused_above_the_ceiling(folder):
    private_sites(folder)
    promise = Privacy(epsilon=8.0, delta=1e-6, clip=3.0)
    file = study(folder, replace(MODEL, l2=0.0, privacy=promise))
    model, _ = conduct_study(file, Carrier(approved(folder, file)))
    assert model.inference.promise is not None
    path = folder / "a" / "audit.jsonl"
    assert sum(entry.rho for entry in all_entries(path)) == pytest.approx(promise.rho)
    assert sum(entry.scalars for entry in all_entries(path) if "Total" in entry.what) == 0
    # another row does not make another budget: the others are still there
    for site in SITES:
        with (folder / site / "table.csv").open("a") as table:
            table.write("0.1,0.2,0.3,1\n")
    again = study(folder, replace(MODEL, l2=1e-6, privacy=promise))
    with pytest.raises(ProtocolError, match="max_epsilon"):
        conduct_study(again, Carrier(approved(folder, again)))


def test_a_site_that_answers_any_study_answers_no_protected_one_that_it_has_not_approved(folder):
    """Whoever names the other sites and their keys would hold all of them, and steer as it likes."""
    file = study(folder)
    for site in SITES:
        path = folder / site / "site.toml"
        path.write_text("any_study = true\n" + path.read_text())
    with pytest.raises(ProtocolError, match="has not approved the study"):
        conduct_study(file, Carrier(nodes(folder)))
    assert not any(entry.what.startswith("masked") for entry in all_entries(folder / "a" / "audit.jsonl"))


class Interleaved(KeptOnDisk):
    """The store of a process in whose way another one gets, just before one of its records is kept."""

    other = None

    def put(self, name, data):
        if name == "study-set" and type(self).other is not None:
            thread, type(self).other = type(self).other, None
            thread.start()
            thread.join(timeout=0.3)
        super().put(name, data)


def test_two_processes_of_a_site_open_one_attempt_between_them(folder, monkeypatch):
    """Else the sums over two sets of sites would tell the numbers of the sites by which they differ."""
    monkeypatch.setattr("fedshed.deployment.node.KeptOnDisk", Interleaved)
    file, seen = study(folder, quorum=3), []

    def until_opened(number, site, payload):
        if number == 5:
            raise KeyboardInterrupt
        seen.append((site, payload))
        return payload

    carrier = Carrier(approved(folder, file), until_opened)
    with pytest.raises(KeyboardInterrupt):
        conduct_study(file, carrier)
    first, last = (opened_envelope([data for site, data in seen if site == "a"][k]) for k in (0, -1))
    ask, seeds = read_request(last.payload), []

    def asked(node, message):
        return _read(node.handle(encode(replace(first, payload=encode(message)))))

    other = Node.at(folder / "a" / "site.toml")
    assert isinstance(asked(other, Begin()), Answer)

    def other_process():
        asked(other, replace(ask, attempt=2, names=("a", "b", "c")))
        seeds.append(asked(other, Open(1, 2)))

    Interleaved.other = threading.Thread(target=other_process)
    running = Interleaved.other
    seeds.append(asked(carrier.sites["a"], Open(1, 1)))
    running.join()
    assert sum(isinstance(seed, Answer) for seed in seeds) == 1
    assert len(seeds) == 2


@pytest.mark.parametrize(("away", "present"), [("", 4), ("a", 3)])
def test_the_errors_of_a_private_study_count_the_noise_of_the_sites_that_take_part(folder, away, present):
    # three sites would be enough, so with four there is more noise than the three would have added
    private_sites(folder)
    promise = Privacy(epsilon=8.0, delta=1e-6, clip=3.0)
    file = study(folder, replace(MODEL, l2=0.0, privacy=promise), quorum=3)
    gone = lambda number, site, payload: None if site == away and number > 3 else payload  # noqa: E731
    found = conduct_study(file, Carrier(approved(folder, file), gone))[0].inference
    assert found.site_count == present
    assert found.rows == 1200 * present
