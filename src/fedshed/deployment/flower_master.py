"""The Master on Flower: `python -m fedshed.deployment.flower_master serve|start|conduct`, in its folder.

`serve RUNTIME flower-superlink ...` starts the SuperLink and conducts the study of the runs that `start`
submits.  A run that somebody else submits has no ticket: it is ended at once, and its app is not opened.
"""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from secrets import token_hex

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedshed._utils.files import write_secret
from fedshed.deployment.flower import Flower
from fedshed.deployment.flower_runtime import Runtime, supervise
from fedshed.deployment.master import serve

TICKET = Path("flwr") / "ticket"  # of the next run, which only the Master's own user can read
TOKEN = "FEDSHED_TASK"  # the variable that hands a task's token to its process
NOT_OURS = "only the study of the Master is conducted here"


def main(argv: list[str]) -> int:
    """What is to be done, and what it is done with."""
    if argv[0] == "serve":
        return _serve(argv[1], argv[2:])
    if argv[0] == "start":
        return _start(argv[1:])
    return _conduct(argv[1])


def _serve(address: str, superlink: list[str]) -> int:
    def work(secret: bytes) -> None:
        runtime = Runtime(address, secret, Path("ca.crt").read_bytes())
        for token in runtime.tasks(TaskType.SERVER_APP):
            own = [sys.executable, "-m", "fedshed.deployment.flower_master", "conduct", address]
            subprocess.run(own, env={**os.environ, TOKEN: token}, check=False)

    return supervise(superlink, work, Path("flwr") / "superexec")


def _start(submit: list[str]) -> int:
    """Submit a run with a new ticket."""
    ticket = token_hex(16)
    TICKET.unlink(missing_ok=True)
    write_secret(TICKET, ticket.encode())
    return subprocess.run([*submit, "--run-config", f'ticket="{ticket}"'], check=False).returncode


def _conduct(address: str) -> int:
    """One run, in a process of its own: Flower ends that process if the run is stopped."""
    trusted, token = Path("ca.crt").read_bytes(), os.environ.pop(TOKEN)
    grid = HttpGrid(address, root_certificates=trusted, token=token)
    with closing(Runtime(address, b"-", trusted)) as runtime, runtime.task(token) as client:
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.node_id = given.task_id, given.context.node_id
        TaskIdentity.run_id = given.run.run_id
        run = run_from_proto(given.run)
        grid.set_run(run)
        status, details = SubStatus.FAILED, NOT_OURS
        try:
            if admitted(run, TICKET):
                details = "the Master's results/error.txt says why"
                serve(Path.cwd(), lambda study: Flower(grid, study.deadline, keys(Path("keys"))))
                status, details = SubStatus.COMPLETED, ""
        finally:
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
            grid.close()
    return 0


def admitted(run: Run, ticket: Path) -> bool:
    """Whether the Master submitted this run; a ticket is used once."""
    given = run.override_config.get("ticket")
    if not ticket.exists() or not isinstance(given, str):
        return False
    if not hmac.compare_digest(given.encode(), ticket.read_bytes()):
        return False
    ticket.unlink()
    return True


def keys(folder: Path) -> dict[str, bytes]:
    """The public key of each site, as Flower knows it."""
    files = sorted(folder.glob("*.pub"))
    return {path.stem: public_key_to_bytes(load_ssh_public_key(path.read_bytes())) for path in files}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
