"""A site on Flower: `python -m fedshed.deployment.flower_site RUNTIME flower-supernode ...`.

It starts the SuperNode and answers its messages with the node of the site.toml beside it.  The app that comes
with a run is not unpacked, loaded or started.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedshed.deployment.flower import Answering
from fedshed.deployment.flower_runtime import Runtime, supervise

log = logging.getLogger("fedshed")
FAILED = "the site could not answer; its own log says why"


def main(argv: list[str]) -> int:
    """Start the SuperNode, and answer."""
    runtime, here = argv[0], Path.cwd()

    def work(secret: bytes) -> None:
        answer_all(Runtime(runtime, secret), here / "site.toml")

    return supervise(argv[1:], work, here / "flwr" / "secret")


def answer_all(runtime: Runtime, site: Path) -> None:
    """Answer message by message."""
    answering = Answering(site)
    for token in runtime.tasks(TaskType.CLIENT_APP):
        with runtime.task(token) as client:
            _answer(client, answering)


def _answer(client: Any, answering: Answering) -> None:
    message, context, _, _ = pull_task_input(client)  # the last is the app
    status, reply = SubStatus.COMPLETED, None
    try:
        reply = answering.replied(message)
    except Exception:  # the Master is told nothing of what the site's files say
        log.exception("a message could not be answered")
        status = SubStatus.FAILED
        reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, FAILED), reply_to=message)
    push_message(client, reply, context)
    push_task_output(client, context, status, "" if status == SubStatus.COMPLETED else FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
