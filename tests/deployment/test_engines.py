"""Real engines: Flower's messages in process, and loopback deployments of Flower and NVFlare over TLS."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from fedshed.datasets.examples import TARGET
from fedshed.deployment.config import StudyFile
from fedshed.deployment.example import write_tables
from fedshed.deployment.local import Programs, listening
from fedshed.deployment.master import conduct_study
from fedshed.deployment.new import write
from fedshed.deployment.node import Node
from fedshed.deployment.plan import Deployment, read_plan
from fedshed.exchange import InProcess
from fedshed.fitting.fit import fit
from fedshed.fitting.model import Model
from fedshed.preparation import Study
from fedshed.tables import read_table

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the engines and what they import
]
SITES = ("a", "b", "c")
COLUMNS = ("texture", "smoothness", "compactness")
TARGETS = {"logistic": TARGET, "linear": "radius"}


def free_port() -> int:
    """A port that is free together with the ten that follow it."""
    rng = np.random.default_rng()
    while True:
        port = int(rng.integers(20_000, 60_000))
        with closing(socket.socket()) as first, closing(socket.socket()) as last:
            if first.connect_ex(("localhost", port)) and last.connect_ex(("localhost", port + 10)):
                return port


def deployed(root: Path, engine: str, family: str = "linear") -> Deployment:
    """The folder of `deploy new`, its study cut down to a few exchanges."""
    plan = Deployment(engine, SITES, port=free_port())  # type: ignore[arg-type]
    write(root, plan)
    study = root / "master" / "study.toml"
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    text = study.read_text().replace('family = "logistic" ', f'family = "{family}" ')
    text = text.replace(f'target = "{TARGET}"', f'target = "{TARGETS[family]}"')
    study.write_text(text.replace('# columns = ["radius"] ', f"columns = [{names}] "))
    return plan


def reference(root: Path, family: str) -> Model:
    """`fit` on the same tables."""
    study = Study(family=family, target=TARGETS[family], columns=COLUMNS, l2=1e-3)  # type: ignore[arg-type]
    return fit({site: read_table(root / "sites" / site / "table.csv") for site in SITES}, study)


def local(root: Path, **options: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "fedshed", "deploy", "local", str(root), "--json"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def programs_of(root: Path) -> list[str]:
    """Command lines of the processes that run in a deployment's folders."""
    import psutil

    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        cwd = process.info["cwd"] or ""
        if Path(cwd).is_relative_to(root.resolve()):
            found.append(" ".join(process.info["cmdline"] or ()))
    return found


@pytest.mark.parametrize(("engine", "family"), [("nvflare", "logistic"), ("flower", "linear")])
def test_a_deployment_gives_what_fit_gives(tmp_path, engine, family):
    """Three sites, TLS, each with its own key: the same model bit for bit, and nothing is left running."""
    deployed(tmp_path, engine, family)
    began = time.monotonic()
    process = local(tmp_path)
    out, err = process.communicate(timeout=240)
    took = time.monotonic() - began
    assert process.returncode == 0, err.decode() + logs(tmp_path)
    report, expected = json.loads(out), reference(tmp_path, family)
    model = Model.load(tmp_path / "master" / "results" / "model.json")
    assert report["converged"]
    assert engine == "nvflare" or report["exchanges"] <= 12
    assert model.coefficients == expected.coefficients
    assert model.inference.model_covariance == expected.inference.model_covariance
    assert engine == "flower" or took < 90
    assert programs_of(tmp_path) == []


def logs(root: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in sorted((root / "logs").glob("*.log")))


def test_interrupted_it_leaves_nothing_running(tmp_path):
    deployed(tmp_path, "nvflare")
    process = local(tmp_path, start_new_session=True)
    until = time.monotonic() + 60
    while not (tmp_path / "logs" / "client-c.log").exists() and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(1.0)
    assert len(programs_of(tmp_path)) >= 4
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=40)
    assert process.returncode == 130
    assert programs_of(tmp_path) == []


# Flower without servers


@pytest.fixture
def grid(tmp_path, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_task_id", "_node_id"):  # the process of a running ServerApp has them
        monkeypatch.setattr(TaskIdentity, name, 1)
    write_tables({site: tmp_path / site / "table.csv" for site in SITES})
    for site in SITES:
        (tmp_path / site / "site.toml").write_text(f'name = "{site}"\n[table]\ncsv = "table.csv"\n')
    return _grid(tmp_path)


def _grid(folder: Path):
    """A Grid whose nodes are real sites, called in this process through Flower's own serialisation."""
    from flwr.app import Error, Message
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    from fedshed.deployment.flower import replied

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
                    reply = carried(replied(arrived, folder / SITES[node - 1] / "site.toml"))
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
    model, _ = conduct_study(StudyFile(study, SITES), Flower(grid, deadline=5.0))
    expected = fit({site: read_table(tmp_path / site / "table.csv") for site in SITES}, study)
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


# who is let in


def handshake(port: int, context: ssl.SSLContext) -> None:
    """Connect, and ask for something: with TLS 1.3 a server refuses a certificate only then."""
    with (
        socket.create_connection(("localhost", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if not secure.recv(1):
            raise ConnectionError("closed")


def trusting(certificate: Path, kit: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificate))
    if kit is not None:
        context.load_cert_chain(kit / "client.crt", kit / "client.key")
    return context


def plaintext_is_refused(port: int) -> None:
    with socket.create_connection(("localhost", port), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            assert not plain.recv(9).startswith(b"HTTP")
        except ConnectionError:
            return


def test_nvflare_lets_in_only_certificates_of_the_study(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    plan = deployed(ours, "nvflare")
    write(theirs, plan)
    mine, stranger = ours / "sites" / "a" / "startup", theirs / "sites" / "a" / "startup"
    with Programs(ours) as programs:
        programs.start(plan.kit.master())
        programs.until(lambda: listening(plan), 60.0, "the server does not listen")
        handshake(plan.port, trusting(mine / "rootCA.pem", mine))
        with pytest.raises(ssl.SSLCertVerificationError):  # a server of another authority
            handshake(plan.port, trusting(stranger / "rootCA.pem", stranger))
        with pytest.raises((ssl.SSLError, ConnectionError)):  # a client of another authority
            handshake(plan.port, trusting(mine / "rootCA.pem", stranger))
        with pytest.raises((ssl.SSLError, ConnectionError)):  # a client without a certificate
            handshake(plan.port, trusting(mine / "rootCA.pem"))
        plaintext_is_refused(plan.port)
    shutil.copy(stranger / "client.key", mine / "client.key")
    with pytest.raises(ssl.SSLError):  # a key that is not the certificate's
        trusting(mine / "rootCA.pem", mine)


def test_nvflare_runs_no_code_that_comes_with_a_job(tmp_path):
    """Sites allow four classes by name, refuse code of others, and keep their logs."""
    deployed(tmp_path, "nvflare")
    for local_rules in (tmp_path / "sites" / "a" / "local", tmp_path / "master" / "local"):
        resources = json.loads((local_rules / "resources.json").read_text())
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert len(resources["class_allow_list"]) == 4
        assert not resources["allow_log_streaming"]
        rights = json.loads((local_rules / "authorization.json").read_text())["permissions"]
        assert all(rights[role]["byoc"] == "none" == rights[role]["shell_commands"] for role in rights)
    assert not list((tmp_path / "master" / "job").rglob("*.py"))


def test_flower_lets_in_only_registered_keys_over_tls(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    plan = deployed(ours, "flower")
    write(theirs, plan)
    kit, site = plan.kit, plan.kit.site("a")
    shutil.copy(theirs / "sites" / "a" / "ca.crt", ours / "sites" / "a" / "other.crt")
    shutil.copy(theirs / "sites" / "a" / "node.key", ours / "sites" / "a" / "other.key")
    few = ("--max-retries", "1")
    wrong_key = [{"node.key": "other.key"}.get(part, part) for part in site.argv]
    wrong_ca = [{"ca.crt": "other.crt"}.get(part, part) for part in site.argv]
    with Programs(ours) as programs:
        programs.start(kit.master())
        programs.until(lambda: listening(plan), 60.0, "the SuperLink does not listen")
        programs.run(kit.admissions()[0])
        handshake(plan.port, trusting(ours / "sites" / "a" / "ca.crt"))
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(plan.port, trusting(theirs / "sites" / "a" / "ca.crt"))
        plaintext_is_refused(plan.port)
        for name, argv in {"wrong-key": wrong_key, "wrong-ca": wrong_ca}.items():
            with pytest.raises(fedshed.Error, match=name):
                programs.run(replace(site, name=name, argv=(*argv, *few)), seconds=40.0)
    said = (ours / "logs" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in said


def test_a_deployment_is_not_written_over_another(tmp_path):
    deployed(tmp_path, "nvflare")
    assert read_plan(tmp_path).engine == "nvflare"
    with pytest.raises(fedshed.ConfigError, match="not empty"):
        write(tmp_path, Deployment("flower", SITES))
    for secret in (tmp_path / "sites").glob("*/startup/client.key"):
        assert secret.stat().st_mode & 0o077 == 0
