"""What runs at the Master of a real study: it waits for the sites, conducts, and writes down how it ended."""

from __future__ import annotations

import io
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes

import msgspec
from msgspec import Struct

from fedshed._utils.errors import ProtocolError
from fedshed._utils.files import in_words, write_atomically
from fedshed._utils.names import printable_lines
from fedshed.deployment.approval import NOT_APPROVED
from fedshed.deployment.config import StudyFile, read_study
from fedshed.deployment.simulations import refuse_simulations
from fedshed.exchange import Transport
from fedshed.fitting.conduct import conduct
from fedshed.fitting.model import Conducted, Model
from fedshed.fitting.protected_study import MaskedTables, SumsWatch, hosted_tables, study_of
from fedshed.fitting.sites import HostedTables
from fedshed.fitting.stages import RUN
from fedshed.inference.result import FewSitesWarning, Robust
from fedshed.inference.survival_result import SurvivalCurves
from fedshed.protected.stores import FolderStore, MemoryStore
from fedshed.solve.run import Watch
from fedshed.solve.trace import Trace
from fedshed.solve.watching import RunLog


class Report(Struct, frozen=True):
    """What a study cost: bytes as the model's run counts them, and in the envelopes the engine was given."""

    converged: bool
    algorithm: str
    theta: list[float]
    rows: dict[str, int]
    exchanges: int
    payload_up: int
    payload_down: int
    carried_up: int
    carried_down: int
    seconds: float
    sites: int = 0  # that took part
    protected: bool = False  # the Master saw only sums over all of them


def conduct_study(
    file: StudyFile, transport: Transport, *, checkpoint: Path | None = None, watch: Watch | None = None,
    save: Callable[[Model], None] = lambda model: None,
    save_curves: Callable[[SurvivalCurves], None] = lambda curves: None,
) -> tuple[Model, Report]:  # fmt: skip
    """The model of all rows of all sites; a fit that was cut off goes on from its checkpoint.

    `save` is called with the model before the checkpoint is removed, so that one of both is always there;
    `save_curves` with the survival curves, of a study that declares them.
    """
    began = time.perf_counter()
    refuse_simulations(transport)
    await_sites(transport, file.sites, file.deadline)
    tables: HostedTables | MaskedTables
    try:
        if file.study.protected:
            tables = _masked(file, transport, checkpoint)
            done = study_of(file.terms, watch and SumsWatch(watch, tables))(tables)
        else:
            tables = HostedTables(transport, file.sites, file.terms, _run(checkpoint))
            done = conduct(
                file.study, tables, file.goal, algorithm=file.algorithm, fused=True, errors=file.row_errors,
                checkpoint=checkpoint, watch=watch,
            )  # fmt: skip
    except ProtocolError as error:
        raise _with_remedy(error, file) from error
    save(done.model)
    if done.curves is not None:
        save_curves(done.curves)
    if checkpoint is not None:  # the study is over: the next is a new one
        checkpoint.unlink(missing_ok=True)
        shutil.rmtree(_log_of(checkpoint), ignore_errors=True)
    return done.model, _report(done, tables, time.perf_counter() - began)


def _with_remedy(error: ProtocolError, file: StudyFile) -> ProtocolError:
    """An error that says what to do where a site has not approved the study."""
    if NOT_APPROVED not in str(error):
        return error
    return type(error)(
        f"{error}; send study.toml to the site, where `fedshed site approve study.toml` shows what it asks "
        f"for (SHA-256 {file.terms.digest.hex()})"
    )


def _masked(file: StudyFile, transport: Transport, checkpoint: Path | None) -> MaskedTables:
    """The sites of a protected study; one that was cut off goes on from the sums on the Master's disk."""
    run = _run(checkpoint)
    store = MemoryStore() if checkpoint is None else FolderStore(_log_of(checkpoint))
    return hosted_tables(transport, file.terms, run, store, file.patience)


def _log_of(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.sums")


def _run(checkpoint: Path | None) -> bytes:
    """The name of a run, drawn at random; one that goes on keeps it, and sites go on with what they have."""
    if checkpoint is None:
        return token_bytes(RUN)
    path = checkpoint.with_name(f"{checkpoint.name}.study")
    begun = checkpoint.exists() or _log_of(checkpoint).is_dir()
    if begun and path.exists() and len(kept := path.read_bytes()) == RUN:
        return kept
    return write_atomically(path, token_bytes(RUN)).read_bytes()


def await_sites(transport: Transport, sites: tuple[str, ...], seconds: float, pause: float = 0.5) -> None:
    """Wait until every site of the study is connected."""
    until = time.monotonic() + seconds
    while missing := sorted(set(sites) - set(transport.agents())):
        if time.monotonic() > until:
            raise ProtocolError(f"sites {missing} are not connected after {seconds:g} s; are they running?")
        time.sleep(pause)


def _report(done: Conducted, tables: HostedTables | MaskedTables, took: float) -> Report:
    run, (up, down) = done.model.run, tables.carried
    return Report(
        converged=run.converged,
        algorithm=run.algorithm,
        theta=done.result.theta.tolist(),
        rows={site: each.rows for site, each in done.model.inference.sites.items()},
        exchanges=run.exchanges,
        payload_up=run.uplink_bytes,
        payload_down=run.downlink_bytes,
        carried_up=up,
        carried_down=down,
        seconds=took,
        sites=done.model.inference.site_count,
        protected=done.model.inference.protected is not None,
    )


def serve(folder: Path, connect: Callable[[StudyFile], Transport]) -> None:
    """Conduct the study in a Master's folder over an engine; its outcome, or why there is none, is written.

    study.toml is read; results/ gets model.json, summary.txt, trace.csv, at last report.json; or error.txt.
    """
    results = folder / "results"
    for old in ("report.json", "error.txt"):  # how an earlier attempt ended says nothing of this one
        (results / old).unlink(missing_ok=True)
    try:
        file = read_study(folder / "study.toml")
        _, report = conduct_study(
            file, connect(file), checkpoint=results / "checkpoint", watch=RunLog(results),
            save=lambda model: _saved(model, results, file.shown_errors),
            save_curves=lambda curves: _saved_curves(curves, results),
        )  # fmt: skip
        write_atomically(results / "report.json", msgspec.json.encode(report))
    except Exception as error:
        said = in_words(error) if isinstance(error, OSError) else str(error)
        with suppress(OSError):  # the error itself is what matters
            write_atomically(
                results / "error.txt", f"{type(error).__name__}: {printable_lines(said)}\n".encode()
            )
        raise


def _saved_curves(curves: SurvivalCurves, results: Path) -> None:
    """Write survival curves: the numbers, the text and the figure."""
    figure = io.BytesIO()
    curves.plot().savefig(figure, format="svg", metadata={"Date": None})
    write_atomically(results / "curves.csv", curves.to_csv().encode())
    write_atomically(results / "survival.txt", f"{curves.summary()}\n".encode())
    write_atomically(results / "survival.svg", figure.getvalue())


def _saved(model: Model, results: Path, errors: Robust) -> None:
    """Write a model and all that belongs to it."""
    model.save(results / "model.json")
    write_atomically(results / "plan.json", model.plan.to_json())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSitesWarning)  # a note of the summary says it
        write_atomically(results / "summary.txt", f"{model.summary(robust=errors)}\n".encode())
        write_atomically(results / "coefficients.csv", model.to_csv(robust=errors).encode())
    if model.evaluation is not None:
        write_atomically(results / "evaluation.txt", f"{model.evaluation.summary()}\n".encode())
        write_atomically(results / "evaluation.csv", model.evaluation.to_csv().encode())
    write_atomically(results / "trace.csv", (model.trace or Trace([])).to_csv().encode())
