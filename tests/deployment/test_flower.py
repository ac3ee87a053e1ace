"""Flower's messages, carried in this process between a Master and real sites."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from fedshed.datasets.examples import TARGET
from fedshed.deployment.config import StudyFile
from fedshed.deployment.example import write_tables
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.fitting.fit import fit
from fedshed.preparation import Study
from fedshed.tables import read_table

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the engines and what they import
]
SITES = ("a", "b", "c")
COLUMNS = ("texture", "smoothness", "compactness")
REST = '[table]\ncsv = "table.csv"\n[disclosure]\nmax_curvature = 50\nmax_numbers = 50\n'


@pytest.fixture
def grid(tmp_path, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_task_id", "_node_id"):  # the process of a running ServerApp has them
        monkeypatch.setattr(TaskIdentity, name, 1)
    write_tables({site: tmp_path / site / "table.csv" for site in SITES})
    for site in SITES:
        (tmp_path / site / "site.toml").write_text(f'name = "{site}"\nany_study = true\n{REST}')
    return _grid(tmp_path)


def _grid(folder: Path):
    """A Grid whose nodes are real sites, called in this process through Flower's own serialisation."""
    from flwr.app import Error, Message
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    from fedshed.deployment.flower import Answering

    def carried(message: Message) -> Message:
        with no_object_id_recompute():
            parts = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
            copy = inflate_object_from_contents(message.object_id, parts)
        copy.metadata.__dict__["_message_id"] = message.object_id
        return copy

    class Loopback(Grid):
        """Nodes 1, 2, 3; the replies of those in `silent` are held back, those in `broken` are errors."""

        def __init__(self) -> None:
            self.silent, self.broken, self.away = set[str](), set[str](), dict[str, float]()
            self._replies: dict[str, tuple[str, Message]] = {}

        def get_nodes(self) -> Iterable[NodeInfo]:
            return [
                NodeInfo(node_id=k, name=site)
                for k, site in enumerate(SITES, start=1)
                if time.monotonic() > self.away.get(site, 0.0)
            ]

        def get_node_ids(self):
            return [node.node_id for node in self.get_nodes()]

        def push_messages(self, messages):
            ids = []
            for message in messages:
                node = message.metadata.dst_node_id
                arrived = carried(message)
                if SITES[node - 1] in self.broken:
                    reply = Message(Error(code=0, reason="no"), reply_to=arrived)
                else:
                    reply = carried(Answering(folder / SITES[node - 1] / "site.toml").replied(arrived))
                ids.append(arrived.metadata.message_id)
                self._replies[ids[-1]] = SITES[node - 1], reply
            return ids

        def pull_messages(self, message_ids):
            wanted = [i for i in message_ids if i in self._replies and self._replies[i][0] not in self.silent]
            return [self._replies.pop(i)[1] for i in wanted]

        def set_run(self, run): ...
        def run(self): ...
        def create_message(self, *args, **kwargs): ...
        def send_and_receive(self, messages, *, timeout=None): ...

    return Loopback()


def test_sites_on_flower_give_what_fit_gives(grid, tmp_path):
    from fedshed.deployment.flower import Flower

    study = Study(family="logistic", target=TARGET, l2=1e-3)
    model, _ = conduct_study(StudyFile(study, SITES, "newton"), Flower(grid, deadline=5.0))
    expected = fit(
        {site: read_table(tmp_path / site / "table.csv") for site in SITES}, study, algorithm="newton"
    )
    assert model.converged
    assert model.coefficients == expected.coefficients
    assert model.trace[-1].exchanges <= 12


@pytest.mark.parametrize("algorithm", ["fib-shed", "qn-shed"])
def test_shed_over_flower_does_not_become_mont_dec(grid, tmp_path, algorithm):
    """Each message has its own process, yet pairs accumulate and no Hessian is computed anew for them."""
    from fedshed.deployment.flower import Flower

    study = StudyFile(Study(family="logistic", target=TARGET, l2=0.1, columns=COLUMNS), SITES, algorithm)
    model, _ = conduct_study(study, Flower(grid, deadline=5.0))
    lasting, _ = conduct_study(
        study, InProcess({site: Node.at(tmp_path / site / "site.toml") for site in SITES})
    )
    assert model.converged
    assert model.coefficients == lasting.coefficients
    assert max(row.q_max for row in model.trace) == len(COLUMNS)
    assert model.trace[-1].hessians == lasting.trace[-1].hessians


def test_a_late_reply_over_flower_comes_with_a_later_exchange(grid):
    from fedshed.deployment.flower import Flower

    transport = Flower(grid, deadline=0.3)
    grid.silent = {"b"}
    assert sorted(i for i, _ in transport.exchange(dict.fromkeys(SITES, b"x"))) == ["a", "c"]
    grid.silent, grid.broken = set(), {"c"}
    assert sorted(i for i, _ in transport.exchange({"a": b"y", "c": b"y"})) == ["a", "b"]


def test_over_flower_a_site_that_is_not_connected_has_until_the_deadline(grid, caplog):
    from fedshed.deployment.flower import Flower

    began = time.monotonic()
    grid.away = {"b": began + 0.5}
    assert sorted(i for i, _ in Flower(grid, 20.0).exchange(dict.fromkeys(SITES, b"x"))) == list(SITES)
    assert 0.5 <= time.monotonic() - began < 10
    began = time.monotonic()
    grid.away, grid.broken = dict.fromkeys("ab", began + 60), {"c"}
    assert list(Flower(grid, 1.0).exchange(dict.fromkeys(SITES, b"x"))) == []
    assert 1.0 <= time.monotonic() - began < 5.0
    assert "site a is not connected" in caplog.text


def test_a_message_over_flower_that_is_not_ours_holds_nothing(grid):
    from flwr.app import ConfigRecord, Message, RecordDict

    from fedshed.deployment.flower import packed, payload

    assert payload(packed(b"bytes", dst_node_id=1)) == b"bytes"
    for content in ({}, {"fedshed": ConfigRecord()}, {"fedshed": ConfigRecord({"payload": "text"})}):
        assert payload(Message(RecordDict(content), message_type="query", dst_node_id=1)) == b""


def test_over_flower_a_node_with_a_sites_name_and_another_key_is_not_the_site(grid):
    """Whoever reaches the port can register a node under any name."""
    from flwr.proto.node_pb2 import NodeInfo

    from fedshed.deployment.flower import Flower

    keys = {site: site.encode() for site in SITES}
    real = [NodeInfo(node_id=k, name=site, public_key=keys[site]) for k, site in enumerate(SITES, start=1)]
    grid.get_nodes = lambda: [*real[:2], NodeInfo(node_id=9, name="c", public_key=b"other")]
    assert Flower(grid, 1.0, keys).agents() == ["a", "b"]
    grid.get_nodes = lambda: [*real, NodeInfo(node_id=9, name="a", public_key=b"other")]
    assert Flower(grid, 1.0, keys).agents() == list(SITES)
    assert {i for i, _ in Flower(grid, 5.0, keys).exchange({"a": b"x"})} == {"a"}  # there is no node 9


def test_over_flower_a_run_is_conducted_once_and_only_with_the_masters_ticket(tmp_path):
    from flwr.supercore.run import Run

    from fedshed.deployment.flower_master import admitted

    ticket = tmp_path / "ticket"
    given = Run.create_empty(1)
    given.override_config = {"ticket": "secret"}
    assert not admitted(given, ticket)
    ticket.write_text("other")
    assert not admitted(given, ticket)
    assert not admitted(Run.create_empty(2), ticket)
    ticket.write_text("secret")
    assert admitted(given, ticket)
    assert not admitted(given, ticket)
