"""The live page: it grows with the run, commands it, and takes commands from nobody else."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter

import pytest
from typer.testing import CliRunner

import fedshed
from fedshed.cli import app
from fedshed.ui.choices import choices
from live_runs import KEY, SMALL, wait

pytestmark = pytest.mark.browser


def points(page):
    """How many points each curve of the first panel has."""
    return page.evaluate(
        "Object.fromEntries((document.getElementById('curves-plot')?.data ?? [])"
        ".filter(t => t.meta.run && t.xaxis === 'x').map(t => [t.meta.run, t.x.length]))"
    )


def choose(page, *algorithms, **settings):
    """Tick these algorithms and no others, and fill in fields."""
    page.locator("#study-algorithms input").evaluate_all(
        "(all, names) => all.forEach(one => { one.checked = names.includes(one.value); })", algorithms
    )
    for name, value in settings.items():
        page.fill(f"#study input[name={name}]", value)


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
    choose(page, "agd", agents="4", l2="1e-6", max_iterations="1000000", tol="0")
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
    choose(page, "fib-shed", "newton", l2="1e-2")
    page.click("#start")
    page.locator("body[data-state=done]").wait_for()
    wait(lambda: points(page) == Counter(name for name, _ in simulation.rows))  # drawn a few at a time
    assert set(points(page)) == {"fib-shed", "newton"}
    for part in ("#rows-plot", "#grid-plot", "#spectrum-plot"):
        page.locator(f"{part} .main-svg").first.wait_for()
    with page.expect_download() as saved:
        page.get_by_text("Save the report").click()
    text = saved.value.path().read_text()
    assert '"live":null' in text
    assert KEY not in text


def test_a_mistake_in_the_form_is_said_in_a_sentence(serve, simulation, visit):
    """The field that is wrong is marked, and the focus goes there; the console has an error for each 400."""
    page = visit(f"{serve(simulation)}?key={KEY}", expected_errors=3)
    for field, value, words in (("l2", "-1", "not negative"), ("budget", "raleigh", "rayleigh")):
        choose(page, "newton", **{field: value})
        page.click("#start")
        page.locator("#status.wrong", has_text=words).wait_for()
        wrong = page.locator(f"#study input[name={field}]")
        assert wrong.get_attribute("aria-invalid") == "true"
        assert wrong.evaluate("one => one === document.activeElement")
        page.fill(f"#study input[name={field}]", "" if field == "budget" else "1e-2")
    choose(page)
    page.click("#start")
    page.locator("#status.wrong", has_text="choose at least one algorithm").wait_for()
    assert simulation.status().state == "ready"


def test_the_form_offers_what_is_possible_on_the_data_set(serve, simulation, visit, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    page, offered = visit(f"{serve(simulation)}?key={KEY}"), {one.name: one for one in choices().datasets}
    assert page.locator("#study-dataset option").evaluate_all("all => all.map(one => one.value)") == list(
        offered
    )
    missing = page.locator("#study-dataset option:disabled").evaluate_all("all => all.map(one => one.value)")
    assert missing == [name for name, one in offered.items() if one.missing] != []
    listed = "all => all.map(one => one.value)"
    assert page.locator("#study-partition option").evaluate_all(listed) == list(offered["digits"].partitions)
    assert set(page.locator("#study-algorithms input").evaluate_all(listed)) == set(
        offered["digits"].algorithms
    )
    ticked = page.locator("#study-algorithms input:checked").evaluate_all(listed)
    assert ticked == list(offered["digits"].usual)
    assert "SHED, renewed at Fibonacci distances" in page.locator("#study-algorithms").inner_text()
    # another loss has other algorithms, and sites of its own another partition
    for name in ("news", "heart"):
        page.locator("#study-dataset").evaluate(
            "(one, name) => { [...one.options].forEach(o => o.disabled = false); one.value = name;"
            " one.dispatchEvent(new Event('change')); }",
            name,
        )
        assert page.locator("#study-partition option").evaluate_all(listed) == list(offered[name].partitions)
        assert set(page.locator("#study-algorithms input").evaluate_all(listed)) == set(
            offered[name].algorithms
        )
    assert page.locator("#study input[name=agents]").is_disabled()  # heart: natural


def test_maps_and_spectra_show_the_present_iteration_of_the_present_run(
    serve, simulation, visit, monkeypatch
):
    def paused_at_ten(name, progress, watch=simulation._watch):  # however fast the machine is
        if name == "fib-shed" and len(progress.rows) == 10:
            simulation.command("pause")
        watch(name, progress)

    monkeypatch.setattr(simulation, "_watch", paused_at_ten)
    page = visit(f"{serve(simulation)}?key={KEY}")
    choose(page, "newton", "fib-shed", l2="1e-6", tol="0")
    page.click("#start")
    page.locator("body[data-state=paused]").wait_for()
    last = simulation.rows[-1][1].iteration + 1  # the pairs are those that lead to the next iterate
    page.locator("#grid-note", has_text=f"fib-shed up to iteration {last}.").wait_for()
    page.locator("#spectrum-value", has_text=f"{last}, q").wait_for()
    assert page.locator("#grid-run").input_value() == "fib-shed"
    assert f"up to iteration {last}." in page.locator("#grid-plot").get_attribute("aria-label")
    # what the reader has chosen stays
    page.locator("#spectrum-step").evaluate(
        "one => { one.value = 3; one.dispatchEvent(new Event('input')); }"
    )
    page.click("#resume")
    page.locator("body[data-state=done]").wait_for()
    end = max(row.iteration for name, row in simulation.rows if name == "fib-shed")
    assert end > last
    page.locator("#grid-note", has_text=f"fib-shed up to iteration {end}.").wait_for()
    assert page.locator("#spectrum-step").input_value() == "3"


def test_axe_finds_nothing_wrong_with_the_form(serve, simulation, visit, violations):
    page = visit(f"{serve(simulation)}?key={KEY}", "phone")
    page.locator("#study-algorithms summary").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


def test_a_page_hears_that_its_server_ends_and_keeps_what_there_is(serve, simulation, visit):
    page = visit(f"{serve(simulation)}?key={KEY}")
    choose(page, "agd", agents="4", l2="1e-6", max_iterations="1000000", tol="0")
    page.click("#start")
    wait(lambda: points(page).get("agd", 0) > 2)
    serve.stop()
    page.locator("body[data-state=lost]").wait_for()
    assert (
        "The server has ended (stopped: stopped, because the server ended)"
        in page.locator("#status").text_content()
    )
    assert page.locator("#live button:enabled").count() == 0
    assert points(page)["agd"] > 2
    assert simulation.status().state == "stopped"


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
    port = address.rpartition(":")[2].rstrip("/")
    for name in ("evil.example", "127.0.0.1.evil.example", f"evil.example:{port}", "[::1", ""):
        assert send(address, f"?key={KEY}", None, Host=name)[0] == 400
    for name in (f"localhost:{port}", f"[::1]:{port}", "127.0.0.1"):
        assert send(address, f"?key={KEY}", None, Host=name)[0] == 200
    assert send(address, "start", b"x" * 100_000, **own)[0] == 413
    code, said = send(address, "start", b'{"l2": "much"}', **own)
    assert (code, json.loads(said)) == (400, {"error": "l2: write a number", "field": "l2"})
    code, said = send(address, "start", b'{"algorithms": ["/tmp/mine.py:Mine"]}', **own)
    assert (code, json.loads(said)["field"]) == (400, "algorithms")
    assert send(address, "erase", **own)[0] == 404
    assert send(address, "stop", **own)[0] == 403  # nothing runs


# On the command line


def test_the_command_prints_an_address_that_works_and_ends_with_ctrl_c():
    """Also while a run goes on and a page listens: it says how things stand, and takes a few seconds."""
    pytest.importorskip("uvicorn", reason="needs pip install 'fedshed[ui]'")
    command = [sys.executable, "-u", "-m", "fedshed", "ui", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    ) as process:  # fmt: skip
        word, address = process.stdout.readline().split()
        assert word == "open"
        assert address.startswith("http://127.0.0.1:")
        wait(lambda: _answers(address))
        base, _, key = address.partition("?key=")
        slow = b'{"algorithms": ["agd"], "agents": 4, "l2": 1e-6, "tol": 0.0, "max_iterations": 1000000}'
        assert send(base, "start", slow, **{"X-Key": key, "Origin": base[:-1]})[0] == 200
        with urllib.request.urlopen(f"{base}events?key={key}", timeout=20) as stream:
            assert b"generation" in stream.readline() + stream.readline()
            process.send_signal(signal.SIGINT)
            left, said = process.communicate(timeout=30)
    assert key not in said  # the key is not logged
    assert "Traceback" not in said
    assert "ended (stopped: stopped, because the server ended)" in left
    assert process.returncode == 130  # as of any command that Ctrl-C ends


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
