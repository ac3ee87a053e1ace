"""`fedshed deploy local`: every program of a deployment on this machine, in its own process group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedshed._utils.errors import ConfigError, Error
from fedshed.deployment.approval import approval_of, approve_study
from fedshed.deployment.config import read_site, read_study
from fedshed.deployment.decision import shortages
from fedshed.deployment.master import Report
from fedshed.deployment.plan import Command, Deployment, Kit, read_plan

GRACE = 5.0  # seconds a program has to end by itself
Say = Callable[[str], None]


class Programs:
    """The programs of a deployment on this machine; leaving the context ends them and all they started."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._running: list[tuple[Command, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        _end([process for _, process in reversed(self._running)])

    def start(self, command: Command) -> None:
        """Start a service; its output goes to logs/NAME.log."""
        self._running.append((command, self._popen(command)))

    def run(self, command: Command, seconds: float = 60.0) -> None:
        """Run a command to its end."""
        process = self._popen(command)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end([process])
        if code != 0:
            raise Error(f"the program {command.name} failed; {self.said(command)}")

    def check(self) -> None:
        """Raise an error if a service has ended by itself."""
        for command, process in self._running:
            if process.poll() is not None:
                code = process.returncode
                raise Error(f"the program {command.name} ended with exit code {code}; {self.said(command)}")

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something, as long as all services run."""
        end = time.monotonic() + seconds
        while not done():
            self.check()
            if time.monotonic() > end:
                raise Error(f"{what} after {seconds:g} s; see the files in {self._root / 'logs'}")
            time.sleep(0.2)

    def said(self, command: Command, lines: int = 12) -> str:
        """Where a program's log is, and its last lines."""
        path = self._log(command)
        return f"see {path}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    def _log(self, command: Command) -> Path:
        return self._root / "logs" / f"{command.name}.log"

    def _popen(self, command: Command) -> subprocess.Popen[bytes]:
        argv, env, folder = command.at(self._root)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self._log(command).parent.mkdir(exist_ok=True)
        with os.fdopen(
            os.open(self._log(command), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab"
        ) as log:
            return subprocess.Popen(
                argv, cwd=folder, env={**os.environ, **env, "PATH": path, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip


def run(root: Path, *, seconds: float = 300.0, say: Say = lambda _: None, kit: Kit | None = None) -> Report:
    """Start the Master and all sites, run the study, stop everything, and return the outcome."""
    root = root.resolve()
    plan = read_plan(root)
    kit, results = kit or plan.kit, root / "master" / "results"
    for old in ("report.json", "error.txt"):
        (results / old).unlink(missing_ok=True)
    _check_keys(root, plan)
    _check_free(plan)
    approve_everywhere(root, plan, say)
    with _terminable(), Programs(root) as programs:
        say(f"starting the Master at {plan.host}:{plan.port}")
        programs.start(kit.master())
        programs.until(lambda: listening(plan), 60.0, "the Master is not listening")
        for command in kit.admissions():
            programs.run(command)
        say(f"starting sites {', '.join(plan.sites)}")
        for site in plan.sites:
            programs.start(kit.site(site))
        say("starting the study")
        _retry(lambda: programs.run(kit.start()), programs)
        return _awaited(results, programs, seconds)


def approve_everywhere(root: Path, plan: Deployment, say: Say) -> None:
    """Approve the study at the sites that have not done so, since all are on this machine."""
    file = read_study(root / "master" / "study.toml")
    terms = file.terms
    for site in plan.sites:
        path = root / "sites" / site / "site.toml"
        given = read_site(path)
        if approval_of(terms.digest.hex(), given.studies, given.revoked) is None and not given.any_study:
            before = any(one.sha256 == terms.digest.hex() for one in given.studies)
            approve_study(path, terms.digest.hex(), terms.in_words(), by="fedshed deploy local")
            say(f"approved the study at site {site}{' again' * before}, for this trial")
            for advice in shortages(path, file):
                say(f"site {site}: {advice}")


def _awaited(results: Path, programs: Programs, seconds: float) -> Report:
    report, error = results / "report.json", results / "error.txt"
    programs.until(lambda: report.exists() or error.exists(), seconds, "the study has not ended")
    if error.exists():
        raise Error(error.read_text().strip())
    return msgspec.json.decode(report.read_bytes(), type=Report)


def _retry(act: Callable[[], None], programs: Programs, times: int = 5) -> None:
    """Try again, because a service that listens may still need a moment."""
    for left in reversed(range(times)):
        try:
            return act()
        except Error:
            programs.check()
            if not left:
                raise
            time.sleep(1.0)


def listening(plan: Deployment) -> bool:
    """Whether the Master's port is open."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((plan.host, plan.port)) == 0


def _check_keys(root: Path, plan: Deployment) -> None:
    """Refuse a deployment whose keys are at the sites; only a trial has all of them here."""
    from fedshed.deployment.join import KEYS

    away = [site for site in plan.sites if not (root / "sites" / site / KEYS[plan.engine]).exists()]
    if away:
        raise ConfigError(
            f"the keys of {', '.join(away)} are at the sites, which cannot be started here; "
            "follow COMMANDS.md, or make a trial: `fedshed deploy new` without --requests"
        )


def _check_free(plan: Deployment) -> None:
    if listening(plan):
        raise ConfigError(
            f"another program already listens at {plan.host}:{plan.port}; stop it, or choose another port "
            "(fedshed deploy new --port)"
        )


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that every `finally` runs."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask the programs and all they started to end, and end those that do not."""
    import psutil

    family = []
    for process in processes:
        if process.poll() is None:
            parent = psutil.Process(process.pid)
            family += [*parent.children(recursive=True), parent]
    for member in family:
        _signalled(member.terminate)
    _, alive = psutil.wait_procs(family, timeout=GRACE)
    for member in alive:
        _signalled(member.kill)
    psutil.wait_procs(alive, timeout=GRACE)
    for process in processes:
        process.wait(GRACE)


def _signalled(send: Callable[[], None]) -> None:
    import psutil

    try:
        send()
    except psutil.NoSuchProcess:
        return
