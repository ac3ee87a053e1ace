"""What runs at the Master of a real study: it waits for the sites, fits the model, and writes the outcome."""

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
from fedshed.inference.result import FewSitesWarning
from fedshed.inference.survival_result import SurvivalCurves
from fedshed.protected.stores import FolderStore, MemoryStore
from fedshed.report import Recorder, Rerun, versions, write
from fedshed.report.fitted import of_model
from fedshed.solve.run import Watch
from fedshed.solve.trace import Trace
from fedshed.solve.watching import ObserverGroup, RunLog


class Report(Struct, frozen=True):
    """What a study cost: bytes as the model's run counts them, and as the engine carried them."""

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
    """Fit the model of all rows of all sites; a fit that was interrupted resumes from its checkpoint.

    Parameters
    ----------
    file : StudyFile
        The study, as `read_study` reads it.
    transport : Transport
        What carries the messages to the sites; a transport for simulations is refused.
    checkpoint : Path, optional
        The file from which an interrupted fit resumes. Default: none is written.
    watch : callable, optional
        Is called after each round, such as a `RunLog`.
    save, save_curves : callable, optional
        `save` is called with the model before the checkpoint is removed, so that one of the two always
        exists; `save_curves` with the survival curves, if the study asks for them.

    Returns
    -------
    tuple of Model and Report
        The model, and what the study cost.

    Raises
    ------
    ProtocolError
        If a site is not connected, refuses to answer, or has not approved the study.
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
    if checkpoint is not None:  # the study is over, and the next one is new
        checkpoint.unlink(missing_ok=True)
        shutil.rmtree(_log_of(checkpoint), ignore_errors=True)
    return done.model, _report(done, tables, time.perf_counter() - began)


def _with_remedy(error: ProtocolError, file: StudyFile) -> ProtocolError:
    """The error, with what to do if a site has not approved the study."""
    if NOT_APPROVED not in str(error):
        return error
    return type(error)(
        f"{error}; send study.toml to the site, where `fedshed site approve study.toml` shows what it asks "
        f"for (SHA-256 {file.terms.digest.hex()})"
    )


def _masked(file: StudyFile, transport: Transport, checkpoint: Path | None) -> MaskedTables:
    """The sites of a protected study; an interrupted one resumes from the sums on the Master's disk."""
    run = _run(checkpoint)
    store = MemoryStore() if checkpoint is None else FolderStore(_log_of(checkpoint))
    return hosted_tables(transport, file.terms, run, store, file.patience)


def _log_of(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.sums")


def _run(checkpoint: Path | None) -> bytes:
    """The random name of a run; a resumed run keeps it, so that the sites can use what they have kept."""
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
            raise ProtocolError(
                f"these sites are not connected after {seconds:g} s: {', '.join(missing)}; check that their "
                "programs run"
            )
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
    """Conduct the study in a Master's folder over an engine, and write the outcome, or why there is none.

    It reads study.toml and writes the log run.jsonl, then model.json, plan.json, summary.txt,
    coefficients.csv, trace.csv, report.html and, last, report.json into results/; with rows held out also
    evaluation.txt and evaluation.csv, and with survival curves curves.csv, survival.txt and survival.svg.  If
    the study fails, it writes error.txt there.
    """
    results = folder / "results"
    for old in ("report.json", "error.txt"):  # the outcome of an earlier attempt is not that of this one
        (results / old).unlink(missing_ok=True)
    try:
        file = read_study(folder / "study.toml")
        recorder = Recorder(spectra=0)  # eigenvalues of a site are not for those who get a report
        _, report = conduct_study(
            file, connect(file), checkpoint=results / "checkpoint",
            watch=ObserverGroup(RunLog(results), recorder),
            save=lambda model: _saved(model, results, file, recorder),
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


def _saved(model: Model, results: Path, file: StudyFile, recorder: Recorder) -> None:
    """Write a model and all that belongs to it."""
    errors = file.shown_errors
    model.save(results / "model.json")
    write_atomically(results / "plan.json", model.plan.to_json())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSitesWarning)  # a note of the summary says it
        summary = model.summary(robust=errors)
        write_atomically(results / "summary.txt", f"{summary}\n".encode())
        write_atomically(results / "coefficients.csv", model.to_csv(robust=errors).encode())
        report = of_model(model, recorder, _rerun(file), summary)
    if model.evaluation is not None:
        write_atomically(results / "evaluation.txt", f"{model.evaluation.summary()}\n".encode())
        write_atomically(results / "evaluation.csv", model.evaluation.to_csv().encode())
    write_atomically(results / "trace.csv", (model.trace or Trace([])).to_csv().encode())
    write(results / "report.html", report)


def _rerun(file: StudyFile) -> Rerun:
    """How a deployed study is run again."""
    command = "Start the study again with the same study.toml, as COMMANDS.md says (step 3, at the Master)."
    return Rerun(command, 0, {"study that the sites approved": file.terms.digest.hex()}, versions())
