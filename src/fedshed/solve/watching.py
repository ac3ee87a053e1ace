"""Watching a run: what it reports after every round, and a log with one JSON line per round."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from fedshed._utils.errors import CodecError
from fedshed._utils.files import append_whole, in_words
from fedshed._utils.names import safe_json

if TYPE_CHECKING:
    from fedshed.algorithms.base import SiteModel
    from fedshed.exchange.contacts import Contact
    from fedshed.solve.engine import Progress
    from fedshed.solve.run import Result

LOG = "run.jsonl"
_NOTES = logging.getLogger("fedshed")


class Begin(Struct, frozen=True, tag_field="kind", tag="begin"):
    """What is being fitted, and when it will be done; a resumed run writes another one."""

    algorithm: str
    loss: str
    n: int
    sites: dict[str, float]  # share of each in the rows
    tol: float
    max_iterations: int
    least_l2: float
    patience: int
    protected: int | None = None  # how many sites the sums are over, where only sums are known

    @property
    def who(self) -> str:
        """Who takes part, in words."""
        if self.protected is None:
            return f"{len(self.sites)} sites"
        return f"protected: sums over {self.protected} sites"


class SiteNews(Struct, frozen=True):
    """One site after a round."""

    status: str  # "answered", "absent" or "refused"
    last: int  # the exchange it last answered
    silent: int
    uplink_bytes: int
    downlink_bytes: int
    pairs: int | None  # eigenpairs the Master holds, where it holds any
    why: str = ""


class Round(Struct, frozen=True, tag_field="kind", tag="round"):
    """The run after one round: numbers are those at the point the round started from."""

    time: float  # since 1970
    iteration: int
    exchanges: int
    uplink_bytes: int
    downlink_bytes: int
    seconds: float
    f: float
    grad_norm: float
    bound: float | None  # of f - f*, where all sites answered, exactly, and every coefficient is penalised
    eta: float | None
    sites: dict[str, SiteNews]
    hessians: float | None = None  # computed until now, per site; None in logs of earlier versions
    vectors: float | None = None  # sent up until now, per site


class End(Struct, frozen=True, tag_field="kind", tag="end"):
    """How it ended."""

    time: float
    converged: bool
    reason: str
    iterations: int
    exchanges: int
    seconds: float
    grad_norm: float
    bound: float | None
    refusals: int
    f: float | None = None  # this and what follows: None in logs of earlier versions
    uplink_bytes: int | None = None
    downlink_bytes: int | None = None
    hessians: float | None = None
    vectors: float | None = None


Line: TypeAlias = Begin | Round | End


class Observer:
    """Watches a run from its beginning to its end; a plain function can watch the rounds alone."""

    def begin(self, study: Begin) -> None:
        """Before the first exchange, and again after a resume."""

    def __call__(self, progress: Progress) -> None:
        """After a round."""

    def end(self, result: Result) -> None:
        """After the last exchange; not called where the run was interrupted."""


class ObserverGroup(Observer):
    """Several observers of one run."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def begin(self, study: Begin) -> None:
        """All of them."""
        for observer in self._observers:
            observer.begin(study)

    def __call__(self, progress: Progress) -> None:
        """All of them."""
        for observer in self._observers:
            observer(progress)

    def end(self, result: Result) -> None:
        """All of them."""
        for observer in self._observers:
            observer.end(result)


class RunLog(Observer):
    """Writes the log FOLDER/run.jsonl, which `fedshed watch FOLDER` shows during a run and afterwards.

    Parameters
    ----------
    folder : path
        The folder of the log; new lines are appended to an existing log.

    Examples
    --------
    >>> import fedshed, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> result = fedshed.optimize(federation, l2=1e-2, algorithm="newton", watch=fedshed.RunLog(folder))
    >>> len((folder / "run.jsonl").read_text().splitlines()) == len(result.trace) + 1
    True
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / LOG
        self._study: Begin | None = None
        self._failed = False

    def begin(self, study: Begin) -> None:
        """Write the first line: what is being fitted."""
        self._study = study
        self._write(study)

    def __call__(self, progress: Progress) -> None:
        """Write the line of one round."""
        assert self._study is not None
        self._write(news(self._study, progress))

    def end(self, result: Result) -> None:
        """Write the last line: how the run ended."""
        self._write(end_of(result))

    def _write(self, line: Line) -> None:
        """Append a line if possible; a log that cannot be written does not end a run and is reported once."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_whole(self._path, safe_json(msgspec.json.encode(line).decode()).encode() + b"\n")
        except OSError as error:
            if not self._failed:
                _NOTES.warning("the log of the run is not complete: %s", in_words(error))
            self._failed = True


def news(study: Begin, progress: Progress) -> Round:
    """What a round reports."""
    row, count = progress.rows[-1], max(1, len(study.sites))
    certain = study.least_l2 > 0 and progress.exact
    return Round(
        time=time.time(), iteration=row.iteration, exchanges=progress.traffic.exchanges,
        uplink_bytes=progress.traffic.uplink_bytes, downlink_bytes=progress.traffic.downlink_bytes,
        seconds=progress.seconds, f=row.f, grad_norm=row.grad_norm,
        bound=row.grad_norm**2 / (2 * study.least_l2) if certain else None,
        eta=progress.info.eta if progress.info else None,
        sites={i: _site(contact, progress.state.known.get(i)) for i, contact in progress.sites.items()},
        hessians=progress.traffic.hessians / count, vectors=progress.traffic.uplink_vectors / count,
    )  # fmt: skip


def _site(contact: Contact, known: SiteModel[Any] | None) -> SiteNews:
    status = "answered" if contact.silent == 0 else "refused" if contact.why else "absent"
    return SiteNews(
        status, contact.last, contact.silent, contact.uplink_bytes, contact.downlink_bytes,
        None if known is None else known.pairs, contact.why,
    )  # fmt: skip


def end_of(result: Result) -> End:
    """How a run ended, as its log says it."""
    row = result.trace[-1]
    return End(
        time.time(), result.converged, result.reason, row.iteration, row.exchanges, row.seconds,
        row.grad_norm, result.certificate.bound, len(result.refusals), row.f, row.uplink_bytes,
        row.downlink_bytes, row.hessians, row.uplink_vectors,
    )  # fmt: skip


def lines(stream: IO[bytes]) -> Iterator[Line]:
    """The complete lines that follow in a log; the last may still be being written."""
    while True:
        start = stream.tell()
        line = stream.readline()
        if not line.endswith(b"\n"):
            stream.seek(start)
            return
        try:
            yield msgspec.json.decode(line, type=Line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CodecError(f"{stream.name} is not the log of a run: {error}") from error


def seconds_left(rounds: Sequence[Round], tol: float) -> float | None:
    """Time until the gradient norm is at most tol, if its logarithm keeps falling as in the last rounds."""
    import numpy as np

    recent = [one for one in rounds[-8:] if one.grad_norm > 0]
    if len(recent) < 3 or tol <= 0:
        return None
    logs = np.log([one.grad_norm for one in recent])
    slope = (
        np.polyfit([one.seconds for one in recent], logs, 1)[0] if np.ptp([r.seconds for r in recent]) else 0
    )
    return max(0.0, float((np.log(tol) - logs[-1]) / slope)) if slope < 0 else None
