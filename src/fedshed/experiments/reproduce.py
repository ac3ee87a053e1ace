"""Reproduce the paper's figures: make the runs that are missing, draw, and judge the paper's claims."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from shlex import quote

from msgspec.structs import replace

from fedshed._utils.canvas import rendered
from fedshed.experiments.draw import draw, table
from fedshed.experiments.plan import Figure, Panel
from fedshed.experiments.provenance import save, stamp, stamped
from fedshed.experiments.repeats import Records, Repeats
from fedshed.experiments.runs import Record, Spec, check_cache, execute, recall

OnRun = Callable[[int, int, str], None]  # done, in all, what was last: a run, or a figure


def reproduce(
    plans: Sequence[Figure],
    out: Path,
    folder: Path,
    *,
    quick: bool = False,
    jobs: int = 2,
    on_run: OnRun | None = None,
    on_figure: OnRun | None = None,
    report: bool = False,
    source: str | None = None,
) -> list[Path]:
    """Write the figures of these experiments, and their reports; a stopped call goes on where it was.

    Each figure is written as soon as its runs are there; a file of which only the stamp would change is left.
    `source` is the file that an experiment of the user's own comes from.
    """
    check_cache(folder)
    needed = {plan.name: set(all_specs([plan])) for plan in plans}
    specs, records = all_specs(plans), dict[Spec, Record]()
    figures, reports = dict[str, Path](), list[Path]()

    def draw_complete() -> None:
        for plan in plans:
            if plan.name in figures or not needed[plan.name] <= records.keys():
                continue
            found = _of(plan, records)
            figures[plan.name] = _write(plan, found, out)
            if report and needed[plan.name]:
                reports.append(_report(plan, found, out, quick, source))
            if on_figure:
                on_figure(len(figures), len(plans), plan.name)

    def keep(spec: Spec, record: Record) -> None:
        records[spec] = record
        if on_run:
            on_run(len(records), len(specs), f"{spec.run.name} on {spec.problem.dataset}")
        draw_complete()

    draw_complete()
    _run_all(specs, folder, jobs, keep)
    return [figures[plan.name] for plan in plans] + reports


def specs_of(plan: Figure, panel: Panel) -> list[tuple[Spec, ...]]:
    """The runs a panel needs, each with all of its seeds."""
    return [
        tuple(
            Spec(replace(panel.problem, seed=panel.problem.seed + k), run, plan.gap)
            for k in range(plan.seeds)
        )
        for run in panel.runs
    ]


def all_specs(plans: Sequence[Figure]) -> list[Spec]:
    """The runs of one plan after the other, those on the same data together: data is loaded once for them."""
    found: dict[Spec, None] = {}
    for plan in plans:
        specs = [spec for panel in plan.panels for each in specs_of(plan, panel) for spec in each]
        found |= dict.fromkeys(sorted(specs, key=lambda spec: repr(replace(spec.problem, l2=0.0))))
    return list(found)


def recorded(plan: Figure, folder: Path) -> dict[str, list[Repeats]]:
    """The records of a plan that was run before."""
    found = {spec: recall(spec, folder) for spec in all_specs([plan])}
    return _of(plan, {spec: record for spec, record in found.items() if record is not None})


def _of(plan: Figure, records: Mapping[Spec, Record]) -> dict[str, list[Repeats]]:
    return {
        panel.title: [Repeats(tuple(records[spec] for spec in each)) for each in specs_of(plan, panel)]
        for panel in plan.panels
    }


def _run_all(specs: Sequence[Spec], folder: Path, jobs: int, keep: Callable[[Spec, Record], None]) -> None:
    """All runs, in as many processes as asked for; each is on disk as soon as it is there."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_ctrl_c_to_the_parent) as pool:
        try:
            waiting = {pool.submit(execute, spec, folder): spec for spec in specs}
            for done in as_completed(waiting):
                keep(waiting[done], done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _stop_children()
            raise


def _leave_ctrl_c_to_the_parent() -> None:
    """Ctrl-C reaches all processes of a terminal; a run in a child is ended by its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _stop_children() -> None:
    """End the runs that are going on; what they have written so far is whole."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(1.0)


def _write(plan: Figure, records: Records, out: Path) -> Path:
    if plan.kind == "table":
        text = f"{table(plan, records)}\n{stamp(seeds_of([plan])).sentence()}\n"
        return save(out / f"{plan.name}.md", text.encode())
    figure = stamped(rendered(draw(plan, records), "svg"), stamp(seeds_of([plan])))
    return save(out / f"{plan.name}.svg", figure)


def seeds_of(plans: Sequence[Figure]) -> tuple[int, ...]:
    """The seeds of all runs of these experiments."""
    return tuple(sorted({spec.problem.seed for spec in all_specs(plans)}))


def _report(plan: Figure, records: Records, out: Path, quick: bool, source: str | None) -> Path:
    from fedshed.experiments.sources import of_experiment
    from fedshed.report import write

    what = plan.name if source is None else f"--file {quote(source)}"
    command = f"fedshed reproduce {what}{' --quick' * quick}"
    return write(out / f"{plan.name}.html", of_experiment(plan, records, command))
