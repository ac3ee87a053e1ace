"""A site answers the studies that it has approved, as they were approved, and no others."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.algorithms import build
from fedshed.cli import app
from fedshed.deployment import approval
from fedshed.deployment.approval import A_DAY, NOT_APPROVED, approve_study, revoke_study
from fedshed.deployment.config import StudyFile, read_site, read_study
from fedshed.deployment.decision import shortages
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import TROUBLE, Node
from fedshed.exchange import InProcess
from fedshed.fitting.fit import fit
from fedshed.fitting.sites import HostedTables
from fedshed.fitting.stages import PROTOCOL, RUN, Envelope, Play, Prepare, Refusal, digest
from fedshed.preparation import Study
from fedshed.preparation.messages import CODEC, Build, Describe, Refused
from fedshed.preparation.protocol import negotiate
from fedshed.preparation.site import Preparer
from fedshed.privacy.audit import entries
from fedshed.protocol.codec import codec_of, encode, raw
from fedshed.protocol.conversation import Conversation
from fedshed.protocol.messages import Message
from fedshed.solve.inspection import Inspect, Inspection
from fedshed.tables import read_table

SITES = ("a", "b", "c")
MODEL = Study(family="logistic", target="y", l2=1e-2)
FILE = StudyFile(MODEL, SITES)
POLICY = "[disclosure]\nmax_curvature = 10\nmax_numbers = 50\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sites of 3 columns and 60, 90 and 120 rows, each with its file."""
    rng = np.random.default_rng(0)
    for site, rows in zip(SITES, (60, 90, 120), strict=True):
        (tmp_path / site).mkdir()
        X = rng.normal(size=(rows, 3))
        y = np.where(X @ [1.0, -1.0, 0.5] + rng.logistic(size=rows) > 0, 1, 0)
        table = pd.DataFrame(X, columns=list("uvw")).assign(y=y)
        table.to_csv(tmp_path / site / "table.csv", index=False)
        text = f'# our own words\nname = "{site}"\n[table]\ncsv = "table.csv"\n{POLICY}'
        (tmp_path / site / "site.toml").write_text(text)
    return tmp_path


def approved(folder: Path, file: StudyFile = FILE, **more: object) -> dict[str, Node]:
    """Nodes of sites that have approved a study."""
    for site in SITES:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words(), **more)
    return nodes(folder)


def nodes(folder: Path) -> dict[str, Node]:
    return {site: Node.at(folder / site / "site.toml") for site in SITES}


def conducted(folder: Path, made: dict[str, Node], file: StudyFile = FILE) -> object:
    return conduct_study(file, InProcess(made))[0]


def test_an_approved_study_ends_as_a_fit_here(folder):
    model = conducted(folder, approved(folder))
    here = fit({site: read_table(folder / site / "table.csv") for site in SITES}, MODEL, algorithm="lbfgs")
    assert np.array_equal(model.inference.coefficients, here.inference.coefficients)


def test_a_study_that_is_not_approved_gets_one_constant_sentence(folder):
    with pytest.raises(ProtocolError, match=f"site 'a' refused: {NOT_APPROVED}; send study.toml"):
        conducted(folder, nodes(folder))
    (entry,) = entries(folder / "a" / "audit.jsonl")
    assert (entry.what, entry.scalars) == ("turned away", 0)


CHANGES = [
    StudyFile(replace(MODEL, l2=0.0), SITES),
    StudyFile(replace(MODEL, columns=("u", "v")), SITES),
    StudyFile(replace(MODEL, positive=(1,)), SITES),
    StudyFile(replace(MODEL, missing="drop"), SITES),
    StudyFile(MODEL, SITES, algorithm="newton"),
    StudyFile(MODEL, SITES, tolerance=1e-6),
    StudyFile(MODEL, SITES, max_iterations=1000),
    StudyFile(MODEL, SITES, errors="HC3"),
    StudyFile(MODEL, SITES, points=1000),
    StudyFile(MODEL, (*SITES, "d")),
]


@pytest.mark.parametrize("other", CHANGES)
def test_whatever_is_changed_is_another_study(other):
    assert other.terms.digest != FILE.terms.digest


def test_what_only_the_master_does_is_no_other_study():
    assert StudyFile(MODEL, SITES[::-1], deadline=5, quorum=2, patience=9).terms == FILE.terms


def test_the_words_of_a_file_do_not_matter_but_what_they_say_does(folder):
    made = approved(folder)
    with pytest.raises(ProtocolError, match=NOT_APPROVED):
        conducted(folder, made, CHANGES[1])


class Dishonest(HostedTables):
    """A Master that names the approved study and asks another."""

    def __init__(self, transport: InProcess, prepare: Prepare) -> None:
        super().__init__(transport, SITES, FILE.terms)
        self._stage = prepare

    def prepare(self):  # type: ignore[no-untyped-def]
        from contextlib import nullcontext

        return nullcontext(self._session(self._stage).part())


@pytest.mark.parametrize(
    "terms", [None, CHANGES[1].terms], ids=["without terms", "with the terms of another study"]
)
def test_a_study_cannot_borrow_the_name_of_another(folder, terms):
    made = approved(folder)
    lies = Dishonest(InProcess(made), Prepare(PROTOCOL, terms))
    said = r"site 'a' refused: (this site has not|the request cannot)"
    with lies.prepare() as transport, pytest.raises(ProtocolError, match=said):
        negotiate(MODEL, transport, SITES)


def test_another_model_under_the_approved_terms_is_refused(folder):
    """The oracle of refusals: `log(u - c)` is defined or not, whatever c the Master likes."""
    made = approved(folder)
    lies = Dishonest(InProcess(made), Prepare(PROTOCOL, FILE.terms))
    with lies.prepare() as transport, pytest.raises(Exception, match=r"site 'a'.*(does|do) not fit"):
        negotiate(Study(family="linear", formula="y ~ log(u - 1)"), transport, SITES)


def played(folder: Path, made: dict[str, Node], change: object) -> bytes:
    """What site a answers to the start of a fit that was changed."""
    hosted = HostedTables(InProcess(made), SITES, FILE.terms, bytes(RUN))
    with hosted.prepare() as transport:
        plan, *_ = negotiate(MODEL, transport, SITES)
    bare = replace(plan, names=(), terms=(), warnings=())
    return inspected(made["a"], FILE, change(Play(bare, raw(build("lbfgs")), FILE.terms)))


def inspected(
    node: Node, file: StudyFile, stage: Play, conversation: Conversation | None = None,
    asked: Message | None = None, part: int = 2,
) -> bytes:  # fmt: skip
    """What a node answers to one request of a fit, of whatever Master."""
    opening, n = encode(stage), len(stage.plan.columns) + stage.plan.intercept
    codec = codec_of(conversation or Inspection(), n)
    payload = codec.encode_request(codec.encode_common(b"run!", 1, [asked or Inspect(np.zeros(n))]), None)
    key = file.terms.digest + bytes(RUN) + digest(opening)
    return node.handle(encode(Envelope(key, part, opening, payload)))


def test_a_fit_of_another_study_algorithm_or_scale_is_refused(folder, caplog):
    changes = {
        "other study": lambda play: replace(play, plan=replace(play.plan, study=CHANGES[0].study)),
        "the fit uses another algorithm": lambda play: replace(play, algorithm=raw(build("agd"))),
        "other scales": lambda play: replace(
            play, plan=replace(play.plan, centres=(0.0,) * 3, scales=(1e-9, 1.0, 1.0))
        ),
    }
    for said, change in changes.items():
        reply = played(folder, approved(folder), change)
        assert msgspec.msgpack.decode(reply, type=Refusal).reason.startswith("the request cannot be read")
        assert said in caplog.text
        caplog.clear()
    assert b"Inspected" in played(folder, approved(folder), lambda play: play)


WITH_MORE = replace(MODEL, columns=("u", "v"))
PLANS = {
    "columns": lambda plan: replace(plan, columns=("u", "v", "w")),
    "the target": lambda plan: replace(plan, columns=("u", "y")),
    "intercept": lambda plan: replace(plan, intercept=False),
    "classes": lambda plan: replace(plan, classes=(1, 0)),
    "a category": lambda plan: replace(plan, levels={"u": ("1", "2")}),
    "scales": lambda plan: replace(plan, centres=(0.0, 0.0), scales=(1e-9, 1.0)),
    "notes": lambda plan: replace(plan, warnings=("a word",)),
}


@pytest.mark.parametrize("what", PLANS)
def test_a_plan_of_other_columns_than_the_approved_ones_is_refused(folder, what):
    """In the preparation and in the fit: else any column of the table could be asked for."""
    file = StudyFile(WITH_MORE, SITES)
    made = approved(folder, file)
    hosted = HostedTables(InProcess(made), SITES, file.terms, bytes(RUN))
    with hosted.prepare() as transport:
        plan, *_ = negotiate(WITH_MORE, transport, SITES)
    other = PLANS[what](replace(plan, names=(), terms=(), warnings=()))
    preparer = Preparer("a", read_table(folder / "a" / "table.csv"), WITH_MORE)
    request = encode((b"run!", 1, [Build(other)], None))
    (answer,) = CODEC.decode_reply(preparer.handle(request)).parts
    assert isinstance(answer, Refused)
    stage = Play(other, raw(build("lbfgs")), file.terms)
    assert b"cannot be read" in inspected(made["a"], file, stage)
    assert b"Inspected" in inspected(made["b"], file, replace(stage, plan=replace(plan, names=(), terms=())))


def test_two_requests_of_the_preparation_at_once_are_refused(folder):
    """Else what is refused of one would open the way for the other."""
    made, opening = approved(folder), encode(Prepare(PROTOCOL, FILE.terms))
    request = encode((b"run!", 1, [Describe(MODEL), Describe(MODEL)], None))
    key = FILE.terms.digest + bytes(RUN) + digest(opening)
    assert b"cannot be read" in made["a"].handle(encode(Envelope(key, 0, opening, request)))


def test_squared_scores_leave_only_where_the_study_asks_for_them(folder):
    from fedshed.solve.scatter import RowScatter, Scatter

    for errors, answered in ((None, False), ("HC1", True)):
        file = StudyFile(MODEL, SITES) if errors is None else StudyFile(MODEL, SITES, errors=errors)
        made = approved(folder, file)
        hosted = HostedTables(InProcess(made), SITES, file.terms, bytes(RUN))
        with hosted.prepare() as transport:
            plan, *_ = negotiate(MODEL, transport, SITES)
        stage = Play(replace(plan, names=(), terms=(), warnings=()), raw(build("lbfgs")), file.terms)
        asked = Scatter(np.zeros(4), None, 0, True)
        reply = inspected(made["a"], file, stage, RowScatter(), asked, part=5)
        assert (b"Scattered" in reply) == answered


def test_a_refusal_that_is_repeated_counts_once(folder):
    """An honest Master asks again for as long as its patience lasts."""
    file = StudyFile(MODEL, SITES, algorithm="newton")
    approved(folder, file)
    (folder / "a" / "site.toml").write_text(
        (folder / "a" / "site.toml").read_text().replace("= 10", "= 0.01")
    )
    with pytest.raises(ProtocolError, match=r"\(max_curvature\)") as ended:
        conducted(folder, nodes(folder), file)
    assert "has ended" not in str(ended.value)


def test_a_second_plan_in_the_same_study_is_refused(folder):
    """Other knots, levels or scales would be other questions about the same rows."""
    made = approved(folder)
    conducted(folder, made)
    other = lambda play: replace(play, plan=replace(play.plan, columns=("w", "u", "v")))  # noqa: E731
    assert b"one plan in a study" in played(folder, made, other)


def test_a_study_that_is_asked_for_again_tells_nothing_new(folder):
    made = approved(folder)
    conducted(folder, made)
    before = [entry.total for entry in entries(folder / "a" / "audit.jsonl")][-1]
    conducted(folder, nodes(folder))
    after = list(entries(folder / "a" / "audit.jsonl"))
    assert after[-1].total == before
    assert sum(entry.what == "Schema" for entry in after) == 2


@pytest.mark.parametrize("when", ["before", "during"])
def test_an_approval_that_is_revoked_or_over_is_none(folder, when):
    made = approved(folder)
    path = folder / "b" / "site.toml"
    (entry,) = read_site(path).studies

    class Revoking(InProcess):
        count = 0

        def exchange(self, payloads):  # type: ignore[no-untyped-def]
            Revoking.count += 1
            if Revoking.count == (1 if when == "before" else 5):
                revoke_study(path, entry, "the steward")
            return super().exchange(payloads)

    with pytest.raises(ProtocolError, match=f"'b'.*{NOT_APPROVED}"):
        conduct_study(FILE, Revoking(made))
    assert read_site(path).studies[0].state(read_site(path).revoked) == "revoked"
    approved(folder)
    assert conducted(folder, nodes(folder)).run.converged


def test_an_approval_ends(folder, monkeypatch):
    made = approved(folder, days=1)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):  # type: ignore[no-untyped-def]
            return datetime.now(UTC) + timedelta(days=2)

    monkeypatch.setattr(approval, "datetime", Later)
    with pytest.raises(ProtocolError, match=NOT_APPROVED):
        conducted(folder, made)


def test_after_twenty_requests_of_a_day_a_site_is_silent(folder):
    node = nodes(folder)["a"]
    asked = [bytes([k]) * 5 for k in range(40)]
    assert [bool(node.handle(data)) for data in asked] == [True] * A_DAY + [False] * (40 - A_DAY)
    assert len(list(entries(folder / "a" / "audit.jsonl"))) == A_DAY


def test_runs_without_end_use_no_memory_and_no_disk(folder):
    """Each run of a study takes the place of the one before."""
    made = {"a": Node.at(folder / "a" / "site.toml", keep=True)}
    approved(folder)
    for k in range(6):
        hosted = HostedTables(InProcess(made), ("a",), FILE.terms, bytes([k]) * RUN)
        with hosted.prepare() as transport:
            negotiate(MODEL, transport, ("a",))
    assert len(made["a"]._stages) == len(made["a"]._frames) == 1
    kept = [path for path in (folder / "a" / "state").iterdir() if path.is_dir()]
    assert len(kept) == 2  # of the last run, and the marks of the rows
    assert len(list((folder / "a" / "state" / "marks").iterdir())) == 1


def asked(folder: Path, node: Node, run: int = 0) -> str:
    """The refusal of site a to the beginning of a run; empty if it answers."""
    hosted = HostedTables(InProcess({"a": node}), ("a",), FILE.terms, bytes([run]) * RUN)
    try:
        with hosted.prepare() as transport:
            negotiate(MODEL, transport, ("a",))
    except ProtocolError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("hours", [0, 25, 24 * 400])
def test_other_rows_under_the_same_approval_are_refused_however_late(folder, hours):
    """The difference of two answers would tell of the rows that came or went."""
    approved(folder)
    site = folder / "a"
    assert not asked(folder, Node.at(site / "site.toml", keep=True))
    lines = (site / "table.csv").read_text().splitlines(keepends=True)
    (site / "table.csv").write_text("".join(lines[:-1]))
    then = time.time() - hours * 3600
    for path in (site / "state").rglob("*"):
        os.utime(path, (then, then))
    for run in (1, 2):
        assert "does not fit" in asked(folder, Node.at(site / "site.toml", keep=True), run)


def broken_csv(site: Path) -> None:
    (site / "table.csv").unlink()


def broken_query(site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace('csv = "table.csv"', "sql = \"SELECT * FROM 'gone.csv'\""))


def broken_toml(site: Path) -> None:
    (site / "site.toml").write_text((site / "site.toml").read_text() + "[[studi")


def absent_toml(site: Path) -> None:
    (site / "site.toml").unlink()


@pytest.mark.parametrize("trouble", [broken_csv, broken_query, broken_toml, absent_toml])
def test_trouble_at_the_site_is_on_record_and_does_not_end_the_study(folder, trouble):
    node, site = approved(folder)["a"], folder / "a"
    before = {name: (site / name).read_bytes() for name in ("table.csv", "site.toml")}
    trouble(site)
    for run in range(5):
        assert TROUBLE in asked(folder, node, run)
    for name, data in before.items():
        (site / name).write_bytes(data)
    assert not asked(folder, node, 9)
    record = list(entries(site / "audit.jsonl"))
    away = [one for one in record if one.rule]
    assert {(one.what, one.rule, one.scalars, one.study) for one in away} == {
        ("turned away", TROUBLE, 0, FILE.terms.digest.hex()[:16])
    }
    assert len(away) == 5
    assert all(one.detail for one in away)


def test_trouble_at_the_site_is_told_at_most_twenty_times_a_day(folder):
    node = approved(folder)["a"]
    broken_csv(folder / "a")
    told = [TROUBLE in asked(folder, node, run) for run in range(A_DAY + 5)]
    assert told == [True] * A_DAY + [False] * 5


def test_a_refusal_counts_against_the_table_it_is_about(folder):
    """And one in another run does not make the site forget which table it has read."""
    made = approved(folder)
    played(folder, made, lambda play: replace(play, algorithm=raw(build("agd"))))
    opening = encode(Prepare(PROTOCOL, CHANGES[0].terms))
    key = FILE.terms.digest + bytes([7]) * RUN + digest(opening)
    made["a"].handle(encode(Envelope(key, 0, opening, b"")))
    record = list(entries(folder / "a" / "audit.jsonl"))
    first, second = (one for one in record if one.rule)
    assert first.table == record[1].table != ""
    assert second.table == ""  # before the run has read one
    assert made["a"]._hash(FILE.terms.digest + bytes(RUN)) == first.table


def test_a_site_without_a_whole_record_says_nothing(folder):
    made = approved(folder)
    conducted(folder, made)
    (folder / "a" / "audit.jsonl").rename(folder / "a" / "audit.1.jsonl")
    assert made["a"].handle(b"hello") == b""
    assert nodes(folder)["a"].handle(b"hello") == b""


def test_the_record_says_what_was_asked(folder):
    conducted(folder, approved(folder))
    record = list(entries(folder / "b" / "audit.jsonl"))
    assert record[0].what == "approved"
    assert record[1].model == FILE.terms.in_words()
    fits = [entry for entry in record if entry.what.startswith("Update")]
    assert len({entry.request for entry in record[1:]}) > 3
    assert {len(entry.plan) for entry in fits} == {64}
    assert len({entry.points for entry in fits}) == len(fits)
    assert {entry.table for entry in record[1:]} == {record[1].table} != {""}


def test_a_pinned_plan_is_the_only_one(folder):
    made = approved(folder)
    model = conducted(folder, made)
    (folder / "plan.json").write_bytes(model.plan.to_json())
    pin = approval.pinned_plan(folder / "plan.json")
    conducted(folder, approved(folder, plan=pin))
    with pytest.raises(ProtocolError, match="one plan in a study"):
        conducted(folder, approved(folder, plan="0" * 64))


# --- the commands -------------------------------------------------------------------------------------------


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["site", *map(str, words)])
    return result.exit_code, result.output


@pytest.fixture
def study(folder: Path) -> Path:
    path = folder / "study.toml"
    path.write_text('sites = ["a", "b", "c"]\nfamily = "logistic"\ntarget = "y"\nl2 = 0.01\n')
    return path


def test_a_trial_on_one_machine_says_where_a_budget_may_be_too_small(folder, study):
    """Else the study is refused in the middle, and nobody has read the advice of `site approve`."""
    site = folder / "a" / "site.toml"
    tight = site.read_text().replace("max_numbers = 50", "max_numbers = 0.2")
    assert shortages(site, read_study(study)) == []
    site.write_text(tight)
    advice = shortages(site, read_study(study))
    assert "may need about" in advice[0]
    assert all("(--budget" in one for one in advice)


def test_a_steward_approves_reads_and_revokes(folder, study):
    site = folder / "a" / "site.toml"
    digest = FILE.terms.digest.hex()
    code, shown = command("approve", study, "--site", site)
    assert code == 1
    assert "was not approved" in shown
    for said in ("y: the target of the model", "u: a number", "information matrix", digest, "90 days"):
        assert said in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert not read_site(site).studies
    code, shown = command("approve", study, "--site", site, "--yes", digest, "--by", "Ada", "--days", 3)
    assert code == 0
    assert "Approved by Ada until" in shown
    assert site.read_text().startswith("# our own words")
    assert "approved" in command("studies", "--site", site)[1]
    conduct_study(FILE, InProcess(nodes(folder) | approved(folder)))
    code, shown = command("audit", "--site", site, "--last", 500)
    assert code == 0
    assert "the chain of hashes is whole" in shown
    assert command("revoke", digest[:8], "--site", site)[0] == 0
    assert "revoked" in command("studies", "--site", site)[1]


def test_a_decision_cannot_be_made_for_another_study_or_against_the_policy(folder, study):
    site = folder / "a" / "site.toml"
    code, shown = command("approve", study, "--site", site, "--yes", "0" * 64)
    assert code == 2
    assert "names another study" in shown
    site.write_text(site.read_text() + "min_rows = 100\n")
    code, shown = command("approve", study, "--site", site, "--yes", FILE.terms.digest.hex())
    assert code == 1
    assert "min_rows" in shown
    assert not read_site(site).studies


def test_the_record_of_an_approval_says_all_that_was_decided(folder, study):
    site, digest = folder / "a" / "site.toml", FILE.terms.digest.hex()
    plan = folder / "plan.json"
    plan.write_bytes(conducted(folder, approved(folder)).plan.to_json())
    words = ("approve", study, "--site", site, "--yes", digest, "--by", "Ada", "--budget", 2)
    assert command(*words, "--plan", plan)[0] == 0
    entry = list(entries(folder / "a" / "audit.jsonl"))[-1]
    for said in (digest, "by Ada", "budget 2,", f"plan {approval.pinned_plan(plan)}"):
        assert said in entry.detail
    assert command(*words)[0] == 0
    assert "plan any" in list(entries(folder / "a" / "audit.jsonl"))[-1].detail


WRONG = {
    "--budget": ["inf", "1e308", "-1", "0", "nan", "100.5"],
    "--days": ["nan", "inf", "0", "-3", "3651"],
    "--by": ["Ada\x1b[31m", "a\nb", "x" * 101, " "],
}


@pytest.mark.parametrize(("option", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_what_cannot_be_decided_is_refused_in_one_sentence(folder, study, option, value):
    site = folder / "a" / "site.toml"
    before = site.read_text()
    code, shown = command("approve", study, "--site", site, "--yes", FILE.terms.digest.hex(), option, value)
    assert code == 2
    assert shown.startswith(("fedshed: ", "error: ", "Error: "))
    assert len(shown.strip().splitlines()) == 1
    assert site.read_text() == before


def test_a_study_that_was_approved_again_is_listed_once(folder):
    for days in (10, 20, 30):
        approved(folder, days=days)
    rows = msgspec.json.decode(command("studies", "--site", folder / "a" / "site.toml", "--json")[1])
    assert [row["state"] for row in rows] == ["approved"]
    assert rows[0]["until"] == f"{datetime.now(UTC) + timedelta(days=30):%Y-%m-%d}"


@pytest.mark.parametrize(
    "text", ['sha256 = "12"', 'sha256 = "' + "a" * 64 + '"\napproved = 2026-01-01T00:00:00']
)
def test_an_approval_that_was_edited_by_mistake_is_refused(folder, text):
    path = folder / "a" / "site.toml"
    more = "" if "approved" in text else "approved = 2026-01-01T00:00:00Z\n"
    path.write_text(
        f'{path.read_text()}\n[[studies]]\n{text}\n{more}until = 2027-01-01T00:00:00Z\nby = "x"\n'
    )
    with pytest.raises(ConfigError, match=r"site\.toml"):
        read_site(path)
