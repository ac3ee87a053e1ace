"""A site that was killed and started again takes part in the running job again.

NVFlare starts a job at its clients once.  A client that comes back registers under a new token, and nobody
tells it of the job.  `Rejoin`, at the server, hands it the job again with NVFlare's own messages; `Executor`,
at the site, can be called as soon as it runs, since the server sets up its clients only once; `Controller`,
in the server's job process, learns the new tokens.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.defs import SETUP_TASK_NAME, SyncKey
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.admin_defs import MsgHeader, ReturnCode

log = logging.getLogger("fedshed")
PAUSE = 3.0  # seconds between two looks for new tokens


class Rejoin(FLComponent):
    """At the server: a client that registered again while its job runs is handed the job again."""

    def __init__(self) -> None:
        super().__init__()
        self._busy = Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """A client's heartbeat says that it can be spoken to."""
        if event_type == EventType.CLIENT_HEARTBEAT_PROCESSED and self._busy.acquire(blocking=False):
            Thread(target=self._look, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _look(self, engine: Any) -> None:
        try:
            for job_id, token, client in returned(engine):
                self._hand(engine, job_id, token, client)
        except Exception:
            log.exception("a site that came back could not be given its job again; the server will retry")
        finally:
            self._busy.release()

    def _hand(self, engine: Any, job_id: str, token: str, client: Any) -> None:
        """The job's files, then the order to start; last the new token in place of the old."""
        job, participants = engine.job_runner.running_jobs[job_id], _participants(engine, job_id)
        with engine.new_context() as fl_ctx:
            for app in job.get_deployment():
                if not _deployed(engine, job, app, client, fl_ctx):
                    return
                enough, reserved = engine.check_client_resources(job, {client.name: {}}, fl_ctx)[client.name]
                if enough:
                    engine.start_client_job(job, {client.name: DispatchInfo(app, {}, reserved)}, fl_ctx)
                    participants[client.token] = client
                    participants.pop(token, None)
                    log.warning("site %s is back and was given job %s again", client.name, job_id)


def returned(engine: Any) -> list[tuple[str, str, Any]]:
    """Clients that have registered again since a job began that still runs: job, old token, client."""
    now = engine.client_manager.name_to_clients
    return [
        (job_id, token, now[client.name])
        for job_id in list(engine.run_processes)
        if job_id in engine.job_runner.running_jobs
        for token, client in list(_participants(engine, job_id).items())
        if client.name in now and now[client.name].token != token
    ]


def _participants(engine: Any, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.run_processes[job_id][RunProcessKey.PARTICIPANTS]
    return found


def _deployed(engine: Any, job: Any, app: str, client: Any, fl_ctx: FLContext) -> bool:
    """Whether the client has taken the job's files, which it checks by its own rules as the first time."""
    message = engine.job_runner._make_deploy_message(job, job.get_application(app, fl_ctx), app, fl_ctx)
    admin = engine.server.admin_server
    reply = admin.send_requests_and_get_reply_dict({client.token: message}, timeout_secs=admin.timeout)
    answer = reply.get(client.token)
    return answer is not None and answer.get_header(MsgHeader.RETURN_CODE, ReturnCode.OK) == ReturnCode.OK


class Controller(CollabController):
    """NVFlare's controller, which also asks repeatedly who takes part."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Conduct, while a thread looks for new tokens."""
        done = Event()
        Thread(target=_synced, args=(fl_ctx.get_engine(), done), daemon=True).start()
        try:
            super().control_flow(abort_signal, fl_ctx)
        finally:
            done.set()


def _synced(engine: Any, done: Event) -> None:
    while not done.wait(PAUSE):
        with suppress(RuntimeError):  # the parent does not answer: it is asked again
            engine.sync_clients_from_main_process()


class Executor(CollabExecutor):
    """NVFlare's executor, which sets itself up when it starts and not when the server tells it to."""

    def _handle_start_run(self, event_type: str, fl_ctx: FLContext) -> None:
        super()._handle_start_run(event_type, fl_ctx)
        meta = fl_ctx.get_prop(FLContextKey.JOB_META)
        server = FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()])
        setup = Shareable()
        setup[SyncKey.COLLAB_INTERFACE], setup[SyncKey.SERVER_FQCN] = {}, server  # sites call nobody
        setup[SyncKey.CLIENT_INTERFACES] = {one["name"]: {} for one in meta[JobMetaKey.JOB_CLIENTS]}
        signal = fl_ctx.get_run_abort_signal() or Signal()
        self._ready = super().execute(SETUP_TASK_NAME, setup, fl_ctx, signal)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The server's two tasks at the start; the second is done already."""
        if task_name == SETUP_TASK_NAME:
            return self._ready
        return super().execute(task_name, shareable, fl_ctx, abort_signal)
