"""A record that grows is set aside: whatever happens at that moment, no sum is lost without an error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedshed._utils.errors import DataError
from fedshed.privacy.audit import Audit, all_entries, set_aside

CRASH = """
import os, sys
from fedshed.privacy.audit import Audit
path, step, moment = sys.argv[1:]
audit = Audit(path)
audit.append("study", "Update", b"reply", 100, table="rows", curvature=50)
audit._largest = 1
call = getattr(os, step)
def crash(*given, **more):
    if audit._open is not None:
        return call(*given, **more)
    if moment == "after":
        call(*given, **more)
    os._exit(9)
setattr(os, step, crash)
if moment == "without links":
    def link(*given): raise OSError("no links here")
    os.link = link
audit.append("study", "Update", b"more", 5, table="rows")
"""


def crashed(path: Path, step: str, moment: str) -> None:
    """Two entries, and a process that ended as it set its file aside."""
    ended = subprocess.run([sys.executable, "-c", CRASH, str(path), step, moment], check=False)
    assert ended.returncode == 9


def filled(path: Path, numbers: int = 100) -> Audit:
    audit = Audit(path)
    audit.append("study", "Update", b"reply", numbers, table="rows", curvature=50)
    return audit


def turned(audit: Audit) -> None:
    """Let the record set its file aside at its next entry."""
    audit._largest = 1
    audit.append("study", "Update", b"more", 5, table="rows")
    audit._largest = 1 << 30


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["link", "fsync", "replace"])
@pytest.mark.parametrize("earlier", [0, 2])
def test_a_process_that_ends_at_any_moment_loses_no_sum(tmp_path, step, moment, earlier):
    path = tmp_path / "audit.jsonl"
    for _ in range(earlier):
        turned(Audit(path))
    crashed(path, step, moment)
    again = Audit(path)
    assert again.ledger.table("rows").numbers == 105 + 5 * earlier
    turned(again)
    assert Audit(path).ledger.table("rows").numbers == 110 + 5 * earlier
    assert sum(one.scalars for one in all_entries(path)) == 110 + 5 * earlier


def test_a_crash_on_a_disk_without_links_is_an_error_that_says_what_to_do(tmp_path):
    path = tmp_path / "audit.jsonl"
    crashed(path, "replace", "without links")
    with pytest.raises(DataError, match="rename that back"):
        Audit(path)
    (tmp_path / "audit.1.jsonl").rename(path)
    assert Audit(path).ledger.table("rows").numbers == 105


def full(*given: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("failing", [("replace",), ("link",), ("link", "replace"), ("link", "rename")])
def test_a_full_disk_leaves_the_record_as_it_was_and_the_site_goes_on(tmp_path, monkeypatch, failing, caplog):
    path = tmp_path / "audit.jsonl"
    audit, other = filled(path), filled(path)
    with monkeypatch.context() as patched:
        for step in set(failing) - {"replace"}:
            patched.setattr(os, step, full)
        if "replace" in failing:
            patched.setattr("fedshed.privacy.audit.write_atomically", full)
        turned(audit)
    assert ("could not be set aside" in caplog.text) == (failing != ("link",))
    for one in (audit, other, Audit(path)):
        one.append("study", "Update", b"more", 1, table="rows")
    assert Audit(path).ledger.table("rows").numbers == 208
    turned(other)
    assert audit.append("study", "Update", b"more", 1, table="rows").total == 214
    assert sum(one.scalars for one in all_entries(path)) == 214


@pytest.mark.parametrize("left", [None, 0, 10, 0.5, -2])
def test_a_record_that_does_not_carry_on_is_an_error_and_no_new_budget(tmp_path, left):
    """Absent, empty, or with a part of the line that carries the sums over."""
    path = tmp_path / "audit.jsonl"
    audit = filled(path)
    turned(audit)
    carried = path.read_bytes()
    if left is None:
        path.unlink()
    else:
        path.write_bytes(carried[: int(len(carried) * left) if isinstance(left, float) else left])
    for look in (lambda: Audit(path), lambda: list(all_entries(path)), lambda: audit.append("study", "x")):
        with pytest.raises(DataError, match=r"audit\.1\.jsonl ends|removed"):
            look()
    path.write_bytes(carried)
    assert Audit(path).ledger.table("rows").numbers == 105


def test_a_record_of_other_lines_is_no_continuation(tmp_path):
    path = tmp_path / "audit.jsonl"
    turned(filled(path))
    filled(tmp_path / "other.jsonl", 1)
    (tmp_path / "other.jsonl").replace(path)
    with pytest.raises(DataError, match=r"does not begin where audit\.1\.jsonl ends"):
        Audit(path)


@pytest.mark.parametrize("how", ["removed", "put in its place"])
def test_a_record_that_disappears_under_a_site_is_noticed(tmp_path, how):
    path = tmp_path / "audit.jsonl"
    audit = filled(path)
    path.rename(tmp_path / "elsewhere")
    if how != "removed":
        filled(path, 1)
    with pytest.raises(DataError, match=how):
        audit.append("study", "Update", b"more", 1)


@pytest.mark.parametrize("name", ["record", "audit.jsonl", "audit.2026.jsonl", "a[1].jsonl", ".hidden"])
def test_any_name_of_a_record_can_be_set_aside_again_and_again(tmp_path, name):
    path = tmp_path / name
    audit = filled(path)
    for _ in range(12):
        turned(audit)
    assert [number for number, _ in set_aside(path)] == list(range(1, 13))
    assert Audit(path).ledger.table("rows").numbers == sum(one.scalars for one in all_entries(path)) == 160
