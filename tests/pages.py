"""Pages whose commands and code run as printed, and print what the page shows.

    python tests/pages.py docs/tutorials/*.md             compare
    python tests/pages.py --update docs/tutorials/*.md    write what was printed into the pages
    python tests/pages.py --figures docs/tutorials/*.md   copy the figures, and nothing else

Blocks run in their order, in an empty folder, with one Python namespace for the page.  A `console` block has
commands after `$ ` and their output below each; an exit code that is not 0 is shown as `[exit 2]`.  What a
`python` block prints is in the `text` block that follows it.  Numbers agree to three digits, or to one unit
of the last place shown; those below 1e-9 are rounding errors and all alike.  `...` stands for any lines.
`<!-- ignore: REGEX -->` before a block leaves out what differs from run to run, such as seconds;
`<!-- about: 0.3 -->` before it lets numbers differ by this share: on another processor, coded algorithms may
take an iteration more or less;
`<!-- figure: FILE -->` before an image says which file of the run it shows; --update and --figures copy it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

ROUNDING, DIGITS = 1e-9, 5e-3
_BEFORE = r"(?:<!-- ignore: (?P<ignore>.*?) -->\n)?(?:<!-- about: (?P<about>[\d.]+) -->\n)?"
_BLOCK = re.compile(
    _BEFORE + r"```(?P<kind>console|python)\n(?P<body>.*?)```\n(?P<shown>\n?```text\n(?P<text>.*?)```\n)?",
    re.S,
)
_FIGURE = re.compile(r"<!-- figure: (?P<made>\S+) -->\n!\[[^\]]*\]\((?P<kept>[^)]+)\)")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\d])")
_RULE = re.compile("─+")  # as long as the table is wide


class PageError(AssertionError):
    """What a page shows is not what it prints."""


def blocks(page: Path, kind: str = "python") -> list[str]:
    """The blocks of one kind."""
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(), flags=re.S)


@dataclass
class Session:
    """The folder and the namespace in which a page runs."""

    folder: Path
    commands: Path  # the folder of `fedshed` and `python`
    names: dict[str, Any]

    def command(self, text: str) -> str:
        """What a shell command prints, stderr included, and its exit code unless it is 0."""
        if folder := re.fullmatch(r"cd (\S+)", text.strip()):
            self.folder = self.folder / folder[1]
            return "" if self.folder.is_dir() else f"{self.folder}: no such folder\n"
        path = os.pathsep.join([str(self.commands), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", text], cwd=self.folder, env=os.environ | {"PATH": path}, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=600,
        )  # fmt: skip
        return done.stdout + (f"[exit {done.returncode}]\n" if done.returncode else "")

    def python(self, code: str) -> str:
        """What code prints."""
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "page", "exec"), self.names)
        return out.getvalue()


@contextlib.contextmanager
def session() -> Iterator[Session]:
    """An empty folder, with the `fedshed` and the `python` that run this."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".bin").mkdir()
        for command, module in (("fedshed", " -m fedshed"), ("python", "")):
            script = folder / ".bin" / command
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
            script.chmod(0o755)
        yield Session(folder, folder / ".bin", {"__name__": "__main__"})


def play(page: Path, update: bool = False) -> str:
    """The page with what its blocks print; an error where that is not what it shows, unless it is updated."""

    def rewritten(block: re.Match[str]) -> str:
        run = _console if block["kind"] == "console" else _python
        try:
            return run(block, here, update)
        except PageError as error:
            line = page.read_text()[: block.start()].count("\n") + 1
            raise PageError(f"{page}, the block at line {line}: {error}") from None

    with session() as here:
        text = _BLOCK.sub(rewritten, page.read_text())
        for figure in _FIGURE.finditer(text):
            made, kept = here.folder / figure["made"], page.parent / figure["kept"]
            if update:
                shutil.copyfile(made, kept)
            elif not (made.is_file() and kept.is_file()):
                raise PageError(f"{page}: the figure {kept} is not made from {made.name}; update the page")
    return text


def copy_figures(page: Path) -> list[Path]:
    """Run a page whatever it prints, and copy the figures it makes; where they are now."""
    with session() as here:
        for block in _BLOCK.finditer(page.read_text()):
            if block["kind"] == "python":
                here.python(block["body"])
            for command, _ in _commands(block) if block["kind"] == "console" else ():
                here.command(command)
        found = _FIGURE.finditer(page.read_text())
        return [Path(shutil.copyfile(here.folder / one["made"], page.parent / one["kept"])) for one in found]


def _commands(block: re.Match[str]) -> list[tuple[str, str]]:
    """The commands of a console block, each with what is shown below it."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block["body"], flags=re.M)


def _console(block: re.Match[str], here: Session, update: bool) -> str:
    body = block["body"]
    told = [
        (command, _told(here.command(command), shown, block, update)) for command, shown in _commands(block)
    ]
    return block[0].replace(body, "".join(f"$ {command}\n{output}" for command, output in told))


def _python(block: re.Match[str], here: Session, update: bool) -> str:
    output = _told(here.python(block["body"]), block["text"] or "", block, update)
    code = block[0].removesuffix(block["shown"] or "")
    return f"{code}\n```text\n{output}```\n" if output else code


def _told(printed: str, shown: str, block: re.Match[str], update: bool) -> str:
    """What the page is to show: as it is where that agrees, else what was printed, or an error."""
    printed = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    ignore = block["ignore"] or r"(?!)"
    share = float(block["about"] or DIGITS)
    if agrees(re.sub(ignore, "~", shown), re.sub(ignore, "~", printed), share):
        return shown
    if not update or "\n...\n" in f"\n{shown}":
        raise PageError(f"shown:\n{shown}\nprinted:\n{printed}")
    return printed


def agrees(shown: str, printed: str, share: float = DIGITS) -> bool:
    """Whether a text is what a page shows, numbers to a share; blanks count as one, `...` as any lines."""
    return _agree(shown.splitlines(), printed.splitlines(), share)


def _agree(shown: list[str], printed: list[str], share: float) -> bool:
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(_agree(shown[1:], printed[k:], share) for k in range(len(printed) + 1))
    same = bool(printed) and _same_line(shown[0], printed[0], share)
    return same and _agree(shown[1:], printed[1:], share)


def _same_line(shown: str, printed: str, share: float) -> bool:
    words = [" ".join(_RULE.sub("─", _NUMBER.sub("0", line)).split()) for line in (shown, printed)]
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=False)
    return words[0] == words[1] and all(_close(*pair, share) for pair in pairs)


def _close(one: str, other: str, share: float) -> bool:
    a, b = (Decimal(text.replace(",", "")) for text in (one, other))
    last = max(int(number.as_tuple().exponent) for number in (a, b))
    unit = 10.0**last if last < 0 or "e" in one.lower() else 0.0
    x, y = float(a), float(b)
    return max(abs(x), abs(y)) < ROUNDING or abs(x - y) <= max(share * max(abs(x), abs(y)), 1.01 * unit)


def main() -> None:
    """Compare or update the pages that are named."""
    parser = argparse.ArgumentParser(description="Run the commands and the code of pages.")
    parser.add_argument("--update", action="store_true", help="write what was printed into the pages")
    parser.add_argument("--figures", action="store_true", help="copy the figures, and nothing else")
    parser.add_argument("pages", nargs="+", type=Path)
    given = parser.parse_args()
    for page in given.pages:
        if "FEDSHED_DATA" in page.read_text() and not os.environ.get("FEDSHED_DATA"):
            print(f"{page}: skipped, FEDSHED_DATA is not set; docs/data.md says how to get the data")
            continue
        if given.figures:
            print(*copy_figures(page), sep="\n", flush=True)
            continue
        text = play(page, given.update)
        if text != page.read_text():
            page.write_text(text)
        print(f"{page}: {'updated' if given.update else 'prints what it shows'}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except PageError as error:
        sys.exit(str(error))
