"""A disk that is full or read-only costs a file, never a result, and is told in one sentence."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedshed
from conftest import make_federation
from fedshed import RunLog
from fedshed._utils import files
from fedshed.datasets.examples import write_example
from fedshed.solve.watching import LOG, lines

TABLES = ("north.csv", "south.csv", "west.csv")


def namespaces():
    """Whether a folder of our own can be mounted here, which root or user namespaces allow."""
    probe = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return False


mounted = pytest.mark.skipif(not namespaces(), reason="needs user namespaces (unshare -rm) to mount a tmpfs")


def on_a_disk(folder: Path, size: str, *arguments: str, read_only: bool = False, home: str = "home"):
    """A command with the folder `disk` on a file system of its own, with so little space or none to write."""
    (folder / "disk").mkdir(exist_ok=True)
    disk, cache = shlex.quote(str(folder / "disk")), shlex.quote(str(folder / home))
    script = [
        f"mount -t tmpfs -o size={size} none {disk}",
        f"mount -o remount,ro {disk}" if read_only else "true",
        f"cd {shlex.quote(str(folder))}",
        f"XDG_CACHE_HOME={cache} {shlex.join([sys.executable, '-m', 'fedshed', *arguments])}",
        "code=$?; ls -A disk > left; exit $code",
    ]
    command = ["unshare", "-rm", "sh", "-c", "; ".join(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done, (folder / "left").read_text().split()


def is_one_sentence(done, *words):
    """One line that begins with `error:`, and no traceback."""
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("error: ")
    assert all(word in errors[0] for word in words), errors[0]
    assert done.returncode == 1


@mounted
@pytest.mark.parametrize("read_only", [False, True])
def test_a_fit_keeps_its_summary_and_what_it_could_write(tmp_path, read_only):
    write_example("hospitals", tmp_path)
    arguments = ("fit", *TABLES, "--target", "malignant", "--out", "disk/fit")
    done, _ = on_a_disk(tmp_path, "40k", *arguments, read_only=read_only)
    if read_only:
        assert done.returncode == 1  # found out before the work
        assert "error: disk/fit: the file system is read-only" in done.stderr
        return
    is_one_sentence(done, "disk is full", "disk/fit/")
    assert "Federated regression of malignant" in done.stdout
    assert "wrote disk/fit/model.json" in done.stdout
    said = [line for line in done.stdout.splitlines() if line.startswith("wrote ")]
    assert len(said) < 6


@mounted
def test_a_comparison_keeps_its_table(tmp_path):
    arguments = ("compare", "--agents", "4", "--algorithms", "newton", "--out", "disk/compare")
    done, _ = on_a_disk(tmp_path, "40k", *arguments)
    is_one_sentence(done, "disk is full")
    assert " newton " in done.stdout


@mounted
def test_json_is_printed_with_the_files_that_were_written(tmp_path):
    write_example("hospitals", tmp_path)
    arguments = ("fit", *TABLES, "--target", "malignant", "--out", "disk/fit", "--json")
    done, _ = on_a_disk(tmp_path, "40k", *arguments)
    is_one_sentence(done, "disk is full")
    import json

    facts = json.loads(done.stdout)
    assert len(facts["coefficients"]) == 6
    assert facts["files"][0] == "disk/fit/model.json"
    assert len(facts["files"]) < 6


@mounted
@pytest.mark.parametrize("read_only", [False, True])
def test_predictions_that_cannot_be_written_are_said_so(tmp_path, read_only):
    write_example("hospitals", tmp_path)
    from calls import call

    fitted = [str(tmp_path / name) for name in TABLES]
    assert call("fit", *fitted, "--target", "malignant", "--out", tmp_path, "--no-report").exit_code == 0
    done, left = on_a_disk(
        tmp_path, "4k", "predict", "model.json", "west.csv", "--out", "disk/p.csv", read_only=read_only
    )
    is_one_sentence(done, "read-only" if read_only else "disk is full")
    assert left == []  # nothing half-written


@mounted
def test_a_reproduction_whose_cache_is_read_only_is_drawn_all_the_same(tmp_path):
    done, _ = on_a_disk(
        tmp_path, "4k", "reproduce", "rho", "--quick", "--jobs", "1", "--out", "figures",
        read_only=True, home="disk",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figures/rho.svg").exists()
    assert done.stderr.count("note: runs are not kept for the next call") == 1
    done, _ = on_a_disk(tmp_path, "4k", "reproduce", "renewal-sets", "--out", "disk/f")
    is_one_sentence(done, "disk is full")


# --- the same without a file system of our own ----------------------------------------------------


@pytest.fixture
def full(monkeypatch):
    """A disk on which nothing more can be written, from the n-th write on."""

    def fill(writes):
        left = [writes]

        def write(descriptor, data):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, data)

        real = os.write
        monkeypatch.setattr(files.os, "write", write)

    return fill


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_a_run_log_that_cannot_be_written_ends_no_run_and_is_said_once(tmp_path, caplog, full, writes):
    full(writes)
    federation = make_federation("logistic")
    result = fedshed.optimize(federation, algorithm="newton", l2=1e-3, watch=RunLog(tmp_path / "log"))
    assert result.converged
    said = [record.getMessage() for record in caplog.records if "the log of the run" in record.getMessage()]
    (sentence,) = said
    assert sentence.startswith("the log of the run is not complete: the disk is full")
    if writes:
        with (tmp_path / "log" / LOG).open("rb") as log:
            assert len(list(lines(log))) == writes


def test_a_line_that_fits_only_in_part_is_taken_back(tmp_path, monkeypatch):
    path, real = tmp_path / "log", os.write
    files.append_whole(path, b"first\n")
    monkeypatch.setattr(files.os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    with pytest.raises(OSError, match="No space") as error:
        files.append_whole(path, b"second\n")
    assert files.in_words(error.value) == f"{path}: the disk is full; free some space, or name another place"
    monkeypatch.undo()
    files.append_whole(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission is denied"),
        (errno.ENOENT, "no such file"), (errno.EISDIR, "a folder"), (errno.EIO, os.strerror(errno.EIO)),
    ],
)  # fmt: skip
def test_what_the_system_says_is_said_in_words(code, words):
    assert files.in_words(OSError(code, os.strerror(code), "here")).startswith("here: ")
    assert words in files.in_words(OSError(code, os.strerror(code), "here"))


# --- Ctrl-C ----------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_reproduction_at_once_and_leaves_no_process(tmp_path):
    """The signal reaches the parent alone here: its children must not outlive it either."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "fedshed", "reproduce", "all", "--quick", "--out", str(tmp_path / "f")]
    run = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    cache = tmp_path / "fedshed" / "runs"
    until = time.monotonic() + 60
    while not list(cache.glob("*.mp")) and time.monotonic() < until:  # a run has been made: it is at work
        time.sleep(0.05)
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert time.monotonic() - began < 3
    assert (run.returncode, out, err) == (130, "", "interrupted\n")
    listing = ["ps", "-o", "pid=", "-g", str(run.pid)]
    while subprocess.run(listing, capture_output=True, text=True, check=False).stdout.strip():
        assert time.monotonic() - began < 5  # Python's tracker of resources ends a moment later
        time.sleep(0.1)
    assert not list(cache.glob(".*.tmp"))
