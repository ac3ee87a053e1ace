"""`fedshed watch`: a run while it is going on, read from its log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from fedshed._utils.errors import DataError
from fedshed._utils.names import printable
from fedshed.cli.app import app
from fedshed.cli.show import WIDTH, Json, flag, print_json

if TYPE_CHECKING:
    from fedshed.solve.watching import Begin, End, Line, Round

REFRESH = 0.5  # seconds
ROUNDS_SHOWN = 8
COLOURS = {"answered": "green", "absent": "yellow", "refused": "red"}


@app.command(epilog="Example: fedshed watch runs/today")
def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that is recorded by RunLog.")],
    once: Annotated[bool, flag("--once", "Show the present state once, and do not wait for more.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run with its sites, bytes, gradient norm and time left.

    On a terminal the display is updated; in a pipe it is printed once.
    FOLDER is the folder of a run that is recorded by watch=RunLog(folder);
    if the run has not begun, the command waits for it.
    """
    with _opened(folder, wait=not once) as stream:
        told = RunLogView(stream)
        while told.study is None and not once:
            time.sleep(REFRESH)
            told.listen()
        if as_json:
            print_json(told.summary())
        elif once or not sys.stdout.isatty():
            _console().print(told.view())
        else:
            _follow(told)


def _opened(folder: Path, wait: bool) -> IO[bytes]:
    """The log of a run; before the run begins there is none, and it is waited for."""
    from fedshed.solve.watching import LOG

    path = folder / LOG
    if wait and not path.exists():
        typer.echo(f"waiting for a run that is recorded by watch=RunLog({str(folder)!r})", err=True)
        while not path.exists():
            time.sleep(REFRESH)
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(
            f"{folder} has no log of a run ({error.strerror}); start the run with watch=RunLog(folder)"
        ) from None


class RunLogView:
    """The content of a log so far."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.study: Begin | None = None
        self.rounds: list[Round] = []
        self.end: End | None = None
        self.seen: dict[str, float] = {}  # when each site last answered
        self.listen()

    def listen(self) -> None:
        """Read the new lines."""
        from fedshed.solve.watching import lines

        for line in lines(self._stream):
            self._take(line)

    def _take(self, line: Line) -> None:
        from fedshed.solve.watching import Begin, End

        if isinstance(line, Begin):
            self.study, self.end = line, None
        elif isinstance(line, End):
            self.end = line
        else:  # a resumed run continues from its checkpoint, which may be some rounds back
            self.rounds = [one for one in self.rounds if one.iteration < line.iteration] + [line]
            answered = (i for i, site in line.sites.items() if site.status == "answered")
            self.seen.update(dict.fromkeys(answered, line.time))

    def summary(self) -> dict[str, Any]:
        """The study, its last round and its end."""
        return {"study": self.study, "round": self.rounds[-1] if self.rounds else None, "end": self.end}

    def view(self) -> Any:
        """The study, its sites, its last rounds and its state."""
        from rich.console import Group

        sums = self.study is not None and self.study.protected is not None
        sites = [] if sums else [_sites(self)]
        return Group(_heading(self.study), *sites, _rounds(self.rounds), _standing(self))


def _follow(told: RunLogView) -> None:
    from rich.live import Live

    with Live(told.view(), console=_console(), auto_refresh=False) as live:
        while told.end is None:
            time.sleep(REFRESH)
            told.listen()
            live.update(told.view(), refresh=True)


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def _heading(study: Begin | None) -> Any:
    from rich.text import Text

    if study is None:
        return Text("waiting for the run to begin")
    return Text(
        f"{study.algorithm}: {study.loss}, n = {study.n}, {study.who}, tol = {study.tol:g}", style="bold"
    )


def _table(*names: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for k, name in enumerate(names):
        table.add_column(
            name, justify="left" if k == 0 or name in ("status", "note") else "right", overflow="fold"
        )
    return table


def _sites(told: RunLogView) -> Any:
    from rich.text import Text

    table = _table("site", "rows", "status", "last seen", "KB up", "KB down", "pairs", "note")
    shares = told.study.sites if told.study else {}
    sites = told.rounds[-1].sites if told.rounds else {}
    now = told.end.time if told.end else time.time()
    for i, share in shares.items():
        if (site := sites.get(i)) is None:
            table.add_row(Text(printable(i)), f"{share:.0%}", "not yet", *[""] * 5)
            continue
        status = Text(site.status, style=COLOURS[site.status])
        seen = f"{max(0.0, now - told.seen[i]):.0f} s ago" if i in told.seen else "never"
        pairs = "" if site.pairs is None else str(site.pairs)
        note = site.why or (f"silent for {site.silent} exchanges" if site.silent else "")
        table.add_row(
            Text(printable(i)), f"{share:.0%}", status, seen, _kb(site.uplink_bytes),
            _kb(site.downlink_bytes), pairs, Text(printable(note)),
        )  # fmt: skip
    return table


def _rounds(rounds: Sequence[Round]) -> Any:
    table = _table("round", "exch.", "f", "grad. norm", "gap at most", "step", "KB up", "sec.")
    for one in rounds[-ROUNDS_SHOWN:]:
        table.add_row(
            str(one.iteration), str(one.exchanges), f"{one.f:.6g}", f"{one.grad_norm:.1e}",
            "" if one.bound is None else f"{one.bound:.1e}", "" if one.eta is None else f"{one.eta:.3g}",
            _kb(one.uplink_bytes), f"{one.seconds:.1f}",
        )  # fmt: skip
    return table


def _standing(told: RunLogView) -> Any:
    from rich.text import Text

    from fedshed.solve.watching import seconds_left

    if (end := told.end) is not None:
        how = "converged" if end.converged else "stopped"
        bound = "" if end.bound is None else f", gap at most {end.bound:.1e}"
        refused = f", {end.refusals} answers refused" if end.refusals else ""
        cost = f"{end.iterations} iterations and {end.exchanges} exchanges in {end.seconds:.1f} s"
        style = "green" if end.converged else "red"
        return Text(f"{how} after {cost}{bound}{refused}: {printable(end.reason)}", style=style)
    if not told.rounds or told.study is None:
        return Text("no round is complete yet")
    left = seconds_left(told.rounds, told.study.tol)
    quiet = time.time() - told.rounds[-1].time
    guess = "not known" if left is None else f"about {left:.0f} s"
    return Text(f"running; time left: {guess}; last round {quiet:.0f} s ago")


def _kb(count: int) -> str:
    return f"{count / 1000:.1f}"
