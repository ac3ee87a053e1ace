"""`fedshed doctor`: a check of the installation."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer
from msgspec.structs import asdict

from fedshed.cli.app import app
from fedshed.cli.show import WIDTH, Json, print_json, say

if TYPE_CHECKING:
    from fedshed.cli.findings import Finding

INDENT = 9  # of the text beside the marks


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check the installation: packages, BLAS and threads, data sets, and the result of a small fit.

    The last line says whether fedshed can be used. The exit status is 1 if
    it cannot.
    """
    from fedshed.cli.findings import examine

    findings = examine()
    if as_json:
        print_json([asdict(one) for one in findings])
    else:
        say("\n".join(_lines(findings)))
    if _failed(findings):
        raise typer.Exit(1)


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings in the width of the terminal, and then the verdict."""
    for one in findings:
        mark = "ok" if one.ok else "FAILS" if one.needed else "optional"
        yield _wrapped(f"{mark:{INDENT}}{one.what}: {one.found}")
        if not one.ok:
            yield _wrapped(" " * (INDENT + 2) + one.remedy)
    yield _wrapped(_verdict(findings))


def _verdict(findings: Sequence[Finding]) -> str:
    if failed := _failed(findings):
        return f"not ready: {', '.join(failed)} (see above what to do)"
    absent = sum(not one.ok for one in findings)
    parts = "1 optional part is" if absent == 1 else f"{absent or 'no'} optional parts are"
    return f"ready: fedshed works on this machine; {parts} missing"


def _failed(findings: Sequence[Finding]) -> list[str]:
    """The checks without which fedshed does not work."""
    return [one.what for one in findings if one.needed and not one.ok]


def _wrapped(text: str) -> str:
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    return textwrap.fill(
        text, width, subsequent_indent=" " * (INDENT + 2), break_long_words=False, break_on_hyphens=False
    )
