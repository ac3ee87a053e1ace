"""A comparison as one figure: the gap against rounds, vectors, bytes and Hessians."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import Struct

from fedshed._utils.canvas import GAP, dress, legend, sheet, style
from fedshed._utils.figure_style import look
from fedshed._utils.log_axis import use_log_scale
from fedshed._utils.mathematics import tex, typeset
from fedshed.experiments.comparison import Comparison
from fedshed.experiments.curves import Curve, Points, curve_of, plot
from fedshed.experiments.summaries import KB, failure, has_diverged
from fedshed.solve.run import Result

FLOOR = 1e-16  # below it a gap is rounding
_ROOM = 10.0  # times the largest gap of the runs that did not diverge: the top of the axis
_SPARE = 1.5  # a run that goes on for longer than this times the converged ones is cut


class Panel(Struct, frozen=True):
    """One axis of cost: a column of the trace, and how it is shown."""

    column: str
    label: str
    total: bool = False  # a total in bytes, shown as KB per agent
    log: bool = False

    def points(self, result: Result, agents: int, top: float = np.inf) -> Points:
        """Cost and gap of every iterate, not below the floor; on a log axis from the first cost on.

        A run that diverges ends where it leaves the axis at its top.
        """
        x = result.trace.column(self.column) / (KB * agents if self.total else 1.0)
        gap = np.clip(np.nan_to_num(result.trace.column("gap"), nan=np.inf), FLOOR, top)
        shown = (x > 0 if self.log else x >= 0) & (np.cumsum(gap >= top) <= 1)
        return x[shown], gap[shown]

    def curve(self, name: str, comparison: Comparison) -> Curve:
        """An algorithm's gap against its cost: of one run, or the median and the extremes of the repeats."""
        return curve_of(
            [
                self.points(trial.results[name], len(trial.federation.tables), _top(comparison))
                for trial in comparison.trials
            ]
        )

    def end(self, comparison: Comparison) -> float | None:
        """Where a linear axis is cut, if runs that did not converge would squeeze those that did."""
        last = {name: float(self.points(r, 1)[0][-1]) for name, r in comparison.results.items()}
        done = [last[name] for name, result in comparison.results.items() if result.converged]
        cut = not self.log and done and max(done) > 0 and max(last.values()) > _SPARE * max(done)
        return 1.1 * max(done) if cut else None

    def cuts(self, result: Result, comparison: Comparison) -> bool:
        """Whether a run goes on beyond the end of this axis."""
        end = self.end(comparison)
        return end is not None and float(self.points(result, 1)[0][-1]) > end


PANELS = (
    Panel("rounds", "rounds"),
    Panel("uplink_vectors", "vectors per agent"),
    Panel("uplink_bytes", "KB sent per agent", total=True, log=True),
    Panel("hessians", "Hessians per agent"),
)


def _top(comparison: Comparison) -> float:
    """The top of the gap axis, if a run diverged and would squeeze all others; infinity otherwise."""
    runs = [result for trial in comparison.trials for result in trial.results.values()]
    if not any(has_diverged(result.reason) for result in runs):
        return np.inf
    gaps = [float(result.trace.column("gap")[0]) for result in runs]
    gaps += [float(result.trace.column("gap").max()) for result in runs if not has_diverged(result.reason)]
    return _ROOM * max(gap for gap in gaps if np.isfinite(gap))


def draw(comparison: Comparison, title: str = "") -> Figure:
    """Four panels with one gap axis, one legend and one look for each algorithm."""
    with style():
        figure, axes = sheet(7.6, 2, 2, sharey=True)
        for panel, ax in zip(PANELS, axes.flat, strict=True):
            _draw_panel(ax, panel, comparison)
        for ax in axes[:, 0]:
            ax.set_ylabel(f"gap {GAP}")
        legend(figure, typeset(title), _notes(comparison))
    return figure


def _draw_panel(ax: Axes, panel: Panel, comparison: Comparison) -> None:
    for k, name in enumerate(comparison.results):
        plot(ax, panel.curve(name, comparison), name, look(name), k)
    dress(ax, panel.label)
    if np.isfinite(top := _top(comparison)):
        ax.set_ylim(top=top)
    if panel.log:
        use_log_scale(ax, "x", 5)
    else:
        ax.set_xlim(left=0, right=panel.end(comparison))


def _notes(comparison: Comparison) -> list[str]:
    """What a reader must know that the curves do not say."""
    results = comparison.results.items()
    clipped = any((result.trace.column("gap") < FLOOR).any() for _, result in results)
    repeats, floor = len(comparison.trials), f"${tex(FLOOR)}$"
    several = [f"Lines are medians over {repeats} partitions; bands reach from the least to the most."]
    notes = [f"Gaps below {floor}, also negative ones, are drawn at {floor}."] if clipped else []
    notes += several if repeats > 1 else []
    return notes + [note for name, result in results if (note := _ending(name, result, comparison))]


def _ending(name: str, result: Result, comparison: Comparison) -> str:
    """How a run ended that goes on beyond an axis, or that did not reach the tolerance."""
    if not has_diverged(result.reason) and any(panel.cuts(result, comparison) for panel in PANELS):
        last = result.trace[-1]
        gap = f"${tex(last.gap)}$" if last.gap is not None else "unknown"
        return f"{name} goes on beyond an axis: gap {gap} after {last.rounds} rounds."
    said = failure(name, result.converged, result.reason)
    return f"{said}." if said else ""
