"""Real engines: deployments of Flower and NVFlare on this machine, over TLS."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from fedshed.datasets.examples import TARGET
from fedshed.deployment.example import write_tables
from fedshed.deployment.local import Programs, approve_everywhere, listening
from fedshed.deployment.new import write
from fedshed.deployment.plan import Command, Deployment, read_plan
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
Make: TypeAlias = Callable[..., object]  # what writes a deployment's folder
TARGETS = {"logistic": TARGET, "linear": "radius"}


def free_port() -> int:
    """A port that is free together with the ten that follow it."""
    rng = np.random.default_rng()
    while True:
        port = int(rng.integers(20_000, 60_000))
        with closing(socket.socket()) as first, closing(socket.socket()) as last:
            if first.connect_ex(("localhost", port)) and last.connect_ex(("localhost", port + 10)):
                return port


def joined(root: Path, plan: Deployment, *, protected: bool = False) -> None:
    """As `deploy new`, with keys that were made at the sites; then each key is put beside what came back."""
    from fedshed.deployment.join import join, read_requests

    sent = root.with_name(f"{root.name}-sent")
    sent.mkdir()
    for site in plan.sites:
        join(site, plan.engine, root.with_name(f"{root.name}-{site}"))
        shutil.copy(root.with_name(f"{root.name}-{site}") / f"{site}.join", sent)
    write(root, plan, read_requests(sent, plan.engine, plan.sites), protected=protected)
    for site in plan.sites:
        assert not list((root / "sites" / site).rglob("*.key"))
        shutil.copytree(root.with_name(f"{root.name}-{site}"), root / "sites" / site, dirs_exist_ok=True)
    write_tables({site: root / "sites" / site / "table.csv" for site in plan.sites})


def deployed(
    root: Path, engine: str, family: str = "linear", make: Make = write, *, protected: bool = False
) -> Deployment:
    """The folder of `deploy new`, its study cut down to a few exchanges."""
    plan = Deployment(engine, SITES, port=free_port())  # type: ignore[arg-type]
    make(root, plan, protected=protected)
    study = root / "master" / "study.toml"
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    text = study.read_text().replace('family = "logistic" ', f'family = "{family}" ')
    text = text.replace(f'target = "{TARGET}"', f'target = "{TARGETS[family]}"')
    text = text.replace("standardize = true\n", "")
    text = text.replace("\nclasses = ", "\n# classes = ") if family == "linear" else text
    study.write_text(re.sub("^(# )?columns = .*$", f"columns = [{names}]", text, flags=re.MULTILINE))
    if not protected:  # what `fit` takes, where a budget carries Hessians
        study.write_text(study.read_text().replace('algorithm = "auto"', 'algorithm = "newton"'))
    for site in plan.sites:
        path = root / "sites" / site / "site.toml"
        text = path.read_text().replace("max_curvature = 0.2 ", "max_curvature = 50 ")
        path.write_text(text.replace("max_numbers = 1.0 ", "max_numbers = 50 "))
    return plan


def reference(root: Path, family: str) -> Model:
    """`fit` on the same tables."""
    study = Study(family=family, target=TARGETS[family], columns=COLUMNS, l2=1e-3)  # type: ignore[arg-type]
    return fit({site: read_table(root / "sites" / site / "table.csv") for site in SITES}, study)


def local(root: Path, **options: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "fedshed", "deploy", "local", str(root), "--json"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


QUICK = "import time; rest = time.sleep; time.sleep = lambda seconds: rest(0.3 if seconds == 3 else seconds)"


def quick_nodes(folder: Path) -> dict[str, str]:
    """An environment in which Flower's nodes look for work ten times as often as every 3 seconds."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(QUICK)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def programs_of(root: Path) -> list[str]:
    """Command lines of the processes that run in a deployment's folders."""
    import psutil

    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        cwd = process.info["cwd"] or ""
        if Path(cwd).is_relative_to(root.resolve()):
            found.append(" ".join(process.info["cmdline"] or ()))
    return found


HOSTILE = """import os, pathlib
pathlib.Path({marker!r}).write_text(os.getcwd())
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client_app = ClientApp()
server_app = ServerApp()
"""


def hostile_app(app: Path, marker: Path) -> Path:
    """A Flower app whose code writes a file as soon as anybody loads it."""
    from fedshed.deployment.flower_kit import APP

    app.mkdir(exist_ok=True)
    (app / "hostile.py").write_text(HOSTILE.format(marker=str(marker)))
    text = APP.replace("serverapp = ", 'serverapp = "hostile:server_app" # ')
    (app / "pyproject.toml").write_text(text.replace("clientapp = ", 'clientapp = "hostile:client_app" # '))
    return app


@pytest.mark.parametrize(
    ("engine", "family", "protected"),
    [("nvflare", "logistic", False), ("flower", "linear", False), ("flower", "linear", True)],
)
def test_a_deployment_gives_what_fit_gives(tmp_path, engine, family, protected):
    """Three sites, TLS, keys made at the sites: the same model, and nothing is left running.

    In the open it is the same bit for bit; a protected study on NVFlare is below.  On Flower the run brings
    an app with code in it, which neither the Master nor a site starts.
    """
    quick = quick_nodes(tmp_path / "quick")
    tmp_path /= "study"
    deployed(tmp_path, engine, family, joined, protected=protected)
    if engine == "flower":
        hostile_app(tmp_path / "master" / "app", tmp_path / "ran")
    else:
        from fedshed.deployment.renew import renew

        assert len(renew(tmp_path)) == 2 + len(SITES)
    began = time.monotonic()
    process = local(tmp_path, env=quick)
    out, err = process.communicate(timeout=240)
    took = time.monotonic() - began
    assert process.returncode == 0, err.decode() + logs(tmp_path)
    report, expected = json.loads(out), reference(tmp_path, family)
    model = Model.load(tmp_path / "master" / "results" / "model.json")
    assert report["converged"]
    assert report["protected"] == protected
    assert report["sites"] == len(SITES)
    assert engine == "nvflare" or report["exchanges"] <= 12
    assert differ(model, expected) <= (1e-10 if protected else 0.0)
    assert protected or model.inference.model_covariance == expected.inference.model_covariance
    assert engine == "flower" or took < 90
    assert programs_of(tmp_path) == []
    assert not (tmp_path / "ran").exists()


def differ(model: Model, expected: Model) -> float:
    """The largest difference between coefficients, in standard errors."""
    errors = np.sqrt(np.diag(expected.inference.covariance()))
    found, true = (np.array(one.inference.coefficients) for one in (model, expected))
    return float(np.abs((found - true) / errors).max())


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


def killed(programs: Programs, name: str) -> Command:
    """Kill all processes of a program at once, as a machine that loses its power does; its command."""
    import psutil

    ((command, process),) = [one for one in programs._running if one[0].name == name]
    programs._running.remove((command, process))
    parent = psutil.Process(process.pid)
    for one in [*parent.children(recursive=True), parent]:
        one.kill()
    process.wait(10)
    return command


@pytest.mark.parametrize("protected", [False, True])
def test_a_site_that_is_killed_and_started_again_takes_part_in_the_running_study(tmp_path, protected):
    """On NVFlare, with nothing but its own command: the study goes on with it and converges."""
    plan = deployed(tmp_path, "nvflare", "logistic", protected=protected)
    study, results = tmp_path / "master" / "study.toml", tmp_path / "master" / "results"
    text = study.read_text()
    text = text if protected else text.replace('algorithm = "newton"', 'algorithm = "lbfgs"')
    study.write_text(text.replace("deadline = 60", "deadline = 5"))
    run, report = results / "run.jsonl", results / "report.json"
    approve_everywhere(tmp_path, plan, print)
    with Programs(tmp_path) as programs:
        programs.start(plan.kit.master())
        programs.until(lambda: listening(plan), 60.0, "the server does not listen")
        for site in SITES:
            programs.start(plan.kit.site(site))
        programs.run(plan.kit.start())
        programs.until(lambda: run.exists() and run.stat().st_size > 0, 60.0, "the fit does not begin")
        command = killed(programs, "client-b")
        assert not report.exists()
        programs.start(command)
        programs.until(lambda: report.exists() or (results / "error.txt").exists(), 90.0, "it is not done")
    assert "site b is back" in (tmp_path / "logs" / "server.log").read_text()
    assert json.loads(report.read_text())["converged"]
    found, expected = Model.load(results / "model.json"), reference(tmp_path, "logistic")
    assert differ(found, expected) < (1e-10 if protected else 1e-4)


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


def run_as_participant(plan: Deployment, site: Path, app: Path) -> None:
    """Submit an app with nothing but what a site was given."""
    home = site / "stranger"
    home.mkdir()
    connection = f'[superlink]\ndefault = "study"\n[superlink.study]\naddress = "localhost:{plan.port}"\n'
    (home / "config.toml").write_text(f'{connection}root-certificates = "{site / "ca.crt"}"\n')
    env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    flwr = str(Path(sys.executable).parent / "flwr")
    subprocess.run([flwr, "run", str(app), "study"], env=env, check=True, capture_output=True, timeout=60)


def test_flower_lets_in_only_registered_keys_over_tls_and_runs_no_app_of_a_participant(tmp_path):
    from fedshed.deployment.flower_runtime import Runtime

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    plan = deployed(ours, "flower")
    write(theirs, plan)
    kit, site = plan.kit, plan.kit.site("a")
    shutil.copy(theirs / "sites" / "a" / "ca.crt", ours / "sites" / "a" / "other.crt")
    shutil.copy(theirs / "sites" / "a" / "node.key", ours / "sites" / "a" / "other.key")
    few = ("--max-retries", "1")
    wrong_key = [{"node.key": "other.key"}.get(part, part) for part in site.argv]
    wrong_ca = [{"ca.crt": "other.crt"}.get(part, part) for part in site.argv]
    app, said = hostile_app(tmp_path / "app", tmp_path / "ran"), ours / "logs" / "superlink.log"
    with Programs(ours) as programs:
        programs.start(kit.master())
        programs.until(lambda: listening(plan), 60.0, "the SuperLink does not listen")
        programs.run(kit.admissions()[0])
        run_as_participant(plan, ours / "sites" / "b", app)
        trusted = (ours / "sites" / "b" / "ca.crt").read_bytes()
        with (
            closing(Runtime(f"localhost:{plan.port}", b"guessed", trusted)) as stranger,
            pytest.raises(Exception, match="401 Unauthorized"),  # nor does it get the Master's tasks
        ):
            stranger.acquired("flwr-serverapp")
        handshake(plan.port, trusting(ours / "sites" / "a" / "ca.crt"))
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(plan.port, trusting(theirs / "sites" / "a" / "ca.crt"))
        plaintext_is_refused(plan.port)
        for name, argv in {"wrong-key": wrong_key, "wrong-ca": wrong_ca}.items():
            with pytest.raises(fedshed.Error, match=name):
                programs.run(replace(site, name=name, argv=(*argv, *few)), seconds=40.0)
        programs.until(lambda: "Finished task" in said.read_text(), 40.0, "the participant's run goes on")
    assert "No SuperNode found with the given public key" in said.read_text()
    assert not (tmp_path / "ran").exists()
    assert not (ours / "master" / "results").exists()


def test_a_deployment_is_not_written_over_another(tmp_path):
    deployed(tmp_path, "nvflare")
    assert read_plan(tmp_path).engine == "nvflare"
    with pytest.raises(fedshed.ConfigError, match="not empty"):
        write(tmp_path, Deployment("flower", SITES))
    for secret in (tmp_path / "sites").glob("*/startup/client.key"):
        assert secret.stat().st_mode & 0o077 == 0
