"""Flower without apps: the installed fedshed takes the tasks that Flower would start a run's own code for.

Flower hands the app of a run to every participant and starts the code in it, and whoever reaches the Master's
port can start a run.  So SuperLink and SuperNodes are started with `--isolation process`: they keep tasks
until an executor fetches them, and the only executor that has the secret is ours.  It never opens an app.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_bytes
from threading import Event, Thread
from typing import Any

from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.runtime.tracing import RuntimeTracingInterceptor

from fedshed._utils.files import write_secret

log = logging.getLogger("fedshed")
PAUSE = 0.2  # seconds between two looks for a task
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Runtime:
    """The part of a SuperLink or SuperNode, on this machine, that hands out tasks."""

    def __init__(self, address: str, secret: bytes, certificates: bytes | None = None) -> None:
        self.address, self.certificates = address, certificates
        self._acquiring = self._client(
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        )

    def tasks(self, kind: str) -> Iterator[str]:
        """Tokens of the tasks of one kind, as they come; tasks of other kinds are never started."""
        while True:
            token = None
            with suppress(Exception):  # it does not listen yet, or not any more: whatever it is, ask again
                token = self.acquired(kind)
            if token:
                yield token
            else:
                time.sleep(PAUSE)

    def acquired(self, kind: str) -> str | None:
        """The token of a task of this kind, if there is one."""
        request = AcquireTaskRequest(supported_task_types=[kind])
        return self._acquiring.AcquireTask(request).token or None

    def close(self) -> None:
        """Close the connection."""
        self._acquiring.close()

    @contextmanager
    def task(self, token: str) -> Iterator[RuntimeHttpClient]:
        """A client that speaks for a task, and says that it is at work."""
        client, done = self._client(RuntimeTokenHttpInterceptor(token)), Event()
        Thread(target=_alive, args=(client, done), daemon=True).start()
        try:
            yield client
        finally:
            done.set()
            client.close()

    def _client(self, speaks_for: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="fedshed")
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.certificates is None,
            root_certificates=self.certificates,
            interceptors=[RuntimeTracingInterceptor(), version, speaks_for],
        )


def _alive(client: RuntimeHttpClient, done: Event) -> None:
    while not done.wait(HEARTBEAT_MIN_INTERVAL):
        with suppress(Exception):  # a heartbeat that is lost is followed by the next
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def supervise(argv: Sequence[str], work: Callable[[bytes], None], secret_file: Path) -> int:
    """Run Flower's program as our child, and the work beside it; the code with which the program ended."""
    secret_file.unlink(missing_ok=True)
    secret = token_bytes(32)
    write_secret(secret_file, secret)
    isolated = (*argv, "--isolation", "process", "--superexec-auth-secret-file", str(secret_file))
    child = subprocess.Popen(isolated)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    Thread(target=_working, args=(work, secret), daemon=True).start()
    return child.wait()


def _working(work: Callable[[bytes], None], secret: bytes) -> None:
    """Work for as long as this process lives, whatever happens to one task."""
    while True:
        try:
            work(secret)
        except Exception:
            log.exception("a task of Flower failed")
            time.sleep(1.0)
