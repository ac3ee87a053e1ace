"""The live page: it grows with the run, commands it, and takes commands from nobody else."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter

import pytest
from typer.testing import CliRunner

import fedshed
from fedshed.cli import app
from live_runs import SMALL, wait

pytestmark = pytest.mark.browser
KEY = "the-key"


@pytest.fixture
def serve():
    """Serves a source on a free port of loopback, and gives the address."""
    pytest.importorskip("uvicorn", reason="needs pip install 'fedshed[ui]'")
    from fedshed.cli.ui import LOOPBACK, listening
    from fedshed.ui.server import Site, server_of

    running = []

    def start(source):
        loopback = listening("127.0.0.1", 0)
        server = server_of(Site(source, KEY, list(LOOPBACK)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [loopback]})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{loopback.getsockname()[1]}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(20)


def points(page):
    """How many points each curve of the first panel has."""
    return page.evaluate(
        "Object.fromEntries((document.getElementById('curves-plot').data ?? [])"
        ".filter(t => t.meta.run && t.xaxis === 'x').map(t => [t.meta.run, t.x.length]))"
    )


def send(address, path, body=b"", **headers):
    """A request as another program makes it: the status and the text of the answer."""
    request = urllib.request.Request(address + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_a_run_is_started_watched_paused_resumed_and_stopped(serve, simulation, visit):
    page = visit(f"{serve(simulation)}?key={KEY}")
    settings = {"algorithms": "agd", "agents": "4", "l2": "1e-6", "max_iterations": "1000000", "tol": "0"}
    for name, value in settings.items():
        page.fill(f"#study input[name={name}]", value)
    page.click("#start")
    page.locator("body[data-state=running]").wait_for()
    wait(lambda: points(page).get("agd", 0) > 2)
    before = points(page)["agd"]
    wait(lambda: points(page)["agd"] > before)

    page.click("#pause")
    page.locator("body[data-state=paused]").wait_for()
    held = len(simulation.rows)
    wait(lambda: points(page)["agd"] >= min(held, 1000))
    page.wait_for_timeout(600)
    assert len(simulation.rows) <= held + 1  # the iteration that was under way
    assert page.locator("#start").is_disabled()

    page.click("#resume")
    wait(lambda: len(simulation.rows) > held + 5)
    page.click("#stop")
    page.locator("body[data-state=stopped]").wait_for()
    assert "stopped by hand" in page.locator("#status").text_content()
    assert page.locator("#start").is_enabled()


def test_agents_and_spectra_are_there_when_it_is_done(serve, simulation, visit):
    page = visit(f"{serve(simulation)}?key={KEY}")
    page.fill("#study input[name=algorithms]", "fib-shed, newton")
    page.fill("#study input[name=l2]", "1e-2")
    page.click("#start")
    page.locator("body[data-state=done]").wait_for()
    wait(lambda: points(page) == Counter(name for name, _ in simulation.rows))  # drawn a few at a time
    assert set(points(page)) == {"fib-shed", "newton"}
    for part in ("#agents-plot", "#grid-plot", "#spectrum-plot"):
        page.locator(f"{part} .main-svg").first.wait_for()
    with page.expect_download() as saved:
        page.get_by_text("Save the report").click()
    text = saved.value.path().read_text()
    assert '"live":null' in text
    assert KEY not in text


def test_a_mistake_in_the_form_is_said_in_a_sentence(serve, simulation, visit):
    page = visit(f"{serve(simulation)}?key={KEY}", expected_errors=1)
    page.fill("#study input[name=algorithms]", "fib-shd")
    page.click("#start")
    page.get_by_text("did you mean 'fib-shed'").wait_for()
    assert simulation.status().state == "ready"


def test_a_log_is_followed_without_commands(serve, visit, tmp_path):
    from fedshed.ui.log import Log

    log, path = fedshed.RunLog(tmp_path / "source"), tmp_path / "run.jsonl"
    result = fedshed.optimize(SMALL.resolved().data(), l2=1e-2, algorithm="fib-shed", watch=log)
    lines = (tmp_path / "source" / "run.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    page = visit(f"{serve(Log(path))}?key={KEY}")
    wait(lambda: points(page) == {"Shed": 4})
    assert page.locator("#pause").count() == 0
    with path.open("ab") as file:
        file.write(b"".join(lines[5:]))
    wait(lambda: points(page) == {"Shed": len(result.trace)})
    assert page.locator("body[data-state=done]").count() == 1


def test_nobody_without_the_key_sees_or_does_anything(serve, simulation):
    address = serve(simulation)
    origin = {"Origin": address[:-1], "X-Run-Token": "guess"}
    for path in ("", "data", "events", "report.html"):
        for key in ("", "?key=guess"):
            code, text = send(address, path + key, None)
            assert (code, "has the key" in text) == (403, True)
    for path in ("start", "pause", "resume", "stop"):
        assert send(address, path, b"{}", **origin)[0] == 403
    assert simulation.status().state == "ready"


def test_commands_need_the_runs_token_and_this_pages_origin(serve, simulation):
    address = serve(simulation)
    own = {"X-Key": KEY, "Origin": address[:-1]}
    slow = b'{"algorithms": ["agd"], "agents": 4, "l2": 1e-6, "tol": 0.0, "max_iterations": 1000000}'
    for origin in ({}, {"Origin": "https://elsewhere.example"}, {"Origin": "null"}):
        assert send(address, "start", slow, **{"X-Key": KEY}, **origin)[0] == 403
    code, text = send(address, "start", slow, **own)
    assert code == 200
    token = json.loads(text)["token"]
    for wrong in ("", "guess", "gu\xe9ss", token[:-1]):
        assert send(address, "pause", **own, **{"X-Run-Token": wrong})[0] == 403
    assert simulation.status().state == "running"
    foreign = {"X-Key": KEY, "X-Run-Token": token, "Origin": "https://elsewhere.example"}
    assert send(address, "stop", **foreign)[0] == 403
    assert send(address, "stop", **own, **{"X-Run-Token": token})[0] == 200
    wait(lambda: simulation.status().state == "stopped")


def test_another_name_of_this_machine_and_odd_requests_are_refused(serve, simulation):
    address = serve(simulation)
    own = {"X-Key": KEY, "Origin": address[:-1]}
    assert send(address, f"?key={KEY}", None, Host="evil.example")[0] == 400
    assert send(address, "start", b"x" * 100_000, **own)[0] == 413
    assert send(address, "start", b'{"l2": "much"}', **own)[0] == 400
    assert send(address, "erase", **own)[0] == 404
    assert send(address, "stop", **own)[0] == 403  # nothing runs


# On the command line


def test_the_command_prints_an_address_that_works_and_ends_with_ctrl_c():
    pytest.importorskip("uvicorn", reason="needs pip install 'fedshed[ui]'")
    command = [sys.executable, "-u", "-m", "fedshed", "ui", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        word, address = process.stdout.readline().split()
        assert word == "open"
        assert address.startswith("http://127.0.0.1:")
        wait(lambda: _answers(address))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert address.partition("key=")[2] not in said  # the key is not logged
    assert "Traceback" not in said


def _answers(address):
    try:
        return send(address, "", None)[0] == 200
    except urllib.error.URLError:
        return False


def test_a_port_in_use_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(app, ["ui", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 2
    assert "name another --port" in result.stderr
