"""Who is handed a running job again, with a stand-in for NVFlare's server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.deployment,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the engine and what it imports
]


class Server:
    """What the component uses of NVFlare's server engine; every message to a client is recorded."""

    def __init__(self, running: tuple[str, ...] = ("job",), takes: bool = True) -> None:
        self.started, self.deployed, self.takes = list[tuple[str, str]](), list[str](), takes
        first = {f"{name}-1": SimpleNamespace(name=name, token=f"{name}-1") for name in "abc"}
        self.run_processes = {"job": {"_participants": first}}
        self.client_manager = SimpleNamespace(name_to_clients={one.name: one for one in first.values()})
        job = SimpleNamespace(get_deployment=lambda: {"app": ["@ALL"]}, get_application=lambda *_: b"")
        self.job_runner = SimpleNamespace(
            running_jobs=dict.fromkeys(running, job), _make_deploy_message=lambda *_: "files"
        )
        admin = SimpleNamespace(timeout=1.0, send_requests_and_get_reply_dict=self._deploy)
        self.server = SimpleNamespace(admin_server=admin)

    def _deploy(self, requests: dict[str, str], timeout_secs: float) -> dict[str, Any]:
        self.deployed += requests
        reply = SimpleNamespace(get_header=lambda key, default: default)
        return dict.fromkeys(requests, reply if self.takes else None)

    def comes_back(self, name: str, token: str) -> None:
        self.client_manager.name_to_clients[name] = SimpleNamespace(name=name, token=token)

    def new_context(self):
        from contextlib import nullcontext

        return nullcontext(SimpleNamespace())

    def check_client_resources(self, job, wanted, context):
        return dict.fromkeys(wanted, (True, "reserved"))

    def start_client_job(self, job, sites, context):
        self.started += [(name, info.token) for name, info in sites.items()]


@pytest.fixture
def look():
    from nvflare.apis.fl_constant import RunProcessKey

    from fedshed.deployment.nvflare_rejoin import Rejoin, returned

    def look(server: Server) -> list[tuple[str, str, Any]]:
        for process in server.run_processes.values():
            process.setdefault(RunProcessKey.PARTICIPANTS, process["_participants"])
        found = returned(server)
        component = Rejoin()
        component._busy.acquire()
        component._look(server)
        assert component._busy.acquire(blocking=False)  # the next heartbeat can look again
        return found

    return look


def test_only_the_site_that_registered_again_is_handed_the_job_and_once(look):
    server = Server()
    assert look(server) == []
    server.comes_back("b", "b-2")
    assert [(job, token, client.token) for job, token, client in look(server)] == [("job", "b-1", "b-2")]
    assert server.deployed == ["b-2"]
    assert server.started == [("b", "reserved")]
    assert set(server.run_processes["job"]["_participants"]) == {"a-1", "b-2", "c-1"}
    assert look(server) == []
    server.comes_back("b", "b-3")
    look(server)
    assert [name for name, _ in server.started] == ["b", "b"]


def test_a_site_that_does_not_take_the_files_is_tried_again(look):
    server = Server(takes=False)
    server.comes_back("b", "b-2")
    look(server)
    assert server.started == []
    assert "b-1" in server.run_processes["job"]["_participants"]
    server.takes = True
    look(server)
    assert [name for name, _ in server.started] == ["b"]


def test_a_job_that_has_ended_and_a_site_of_another_job_are_left_alone(look):
    ended = Server(running=())
    ended.comes_back("b", "b-2")
    assert look(ended) == []
    other = Server()
    other.comes_back("z", "z-1")
    assert look(other) == []
    assert other.deployed == ended.deployed == []
