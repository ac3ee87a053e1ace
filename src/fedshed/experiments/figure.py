"""A comparison as one figure: the gap against rounds, vectors, bytes and Hessians."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.figure_style import look
from fedshed._utils.files import write_atomically
from fedshed.experiments.comparison import Comparison
from fedshed.experiments.summaries import KB
from fedshed.solve.run import Result

FLOOR = 1e-16  # below it a gap is rounding
_SPARE = 1.5  # a run that goes on for longer than this times the converged ones is cut

_LINE: dict[str, Any] = {"linewidth": 1.6, "markersize": 5.5}
_LEGEND: dict[str, Any] = {"ncols": 6, "frameon": False, "handlelength": 3.5, "title_fontsize": 12}

Points = tuple[NDArray[np.float64], NDArray[np.float64]]


class Curve(NamedTuple):
    """Costs and gaps; with several repeats also the least and the largest gap at each cost."""

    x: NDArray[np.float64]
    gap: NDArray[np.float64]
    least: NDArray[np.float64] | None = None
    most: NDArray[np.float64] | None = None


class Panel(Struct, frozen=True):
    """One axis of cost: a column of the trace, and how it is shown."""

    column: str
    label: str
    total: bool = False  # a total in bytes, shown as KB per agent
    log: bool = False

    def points(self, result: Result, agents: int) -> Points:
        """Cost and gap of every iterate, not below the floor; on a log axis from the first cost on."""
        x = result.trace.column(self.column) / (KB * agents if self.total else 1.0)
        gap = np.maximum(result.trace.column("gap"), FLOOR)
        shown = x > 0 if self.log else x >= 0
        return x[shown], gap[shown]

    def curve(self, name: str, comparison: Comparison) -> Curve:
        """An algorithm's gap against its cost: of one run, or the median and the extremes of the repeats."""
        runs = [self.points(trial.results[name], len(trial.federation.tables)) for trial in comparison.trials]
        if len(runs) == 1:
            return Curve(*runs[0])
        x = np.unique(np.concatenate([cost for cost, _ in runs]))
        gaps = np.array([_at(x, *run) for run in runs])
        return Curve(x, np.median(gaps, axis=0), gaps.min(axis=0), gaps.max(axis=0))

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
    Panel("uplink_vectors", "vectors sent per agent"),
    Panel("uplink_bytes", "KB sent per agent (log scale)", total=True, log=True),
    Panel("hessians", "Hessians computed per agent"),
)


def draw(comparison: Comparison, title: str = "") -> Figure:
    """Four panels with one gap axis, one legend and one look for each algorithm."""
    figure = Figure(figsize=(10, 7.5), dpi=150, layout="constrained")
    axes = figure.subplots(2, 2, sharey=True)
    for panel, ax in zip(PANELS, axes.flat, strict=True):
        _draw_panel(ax, panel, comparison)
    for ax in axes[:, 0]:
        ax.set_ylabel(r"gap  $f(\theta^t) - f^*$")
    handles, _ = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles=handles, title=title, loc="outside upper center", **_LEGEND)
    figure.supxlabel("\n".join(_notes(comparison)), fontsize=8, color="0.35")
    return figure


def save(figure: Figure, folder: str | Path, stem: str = "comparison") -> list[Path]:
    """The figure as PNG and SVG, the same bytes for the same data."""
    return [
        write_atomically(Path(folder) / f"{stem}.{kind}", rendered(figure, kind)) for kind in ("png", "svg")
    ]


def _draw_panel(ax: Axes, panel: Panel, comparison: Comparison) -> None:
    for k, name in enumerate(comparison.results):
        curve, style = panel.curve(name, comparison), look(name).line_options()
        marks = (0.015 * (k % 7), 0.1)  # in screen distance, staggered: equal curves are seen to be two
        ax.plot(curve.x, curve.gap, label=name, markevery=marks, **_LINE, **style)
        if curve.least is not None and curve.most is not None:
            ax.fill_between(curve.x, curve.least, curve.most, color=style["color"], alpha=0.15, linewidth=0)
    ax.set_yscale("log")
    ax.set_xlabel(panel.label)
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    if panel.log:
        ax.set_xscale("log")
    else:
        ax.set_xlim(left=0, right=panel.end(comparison))


def _notes(comparison: Comparison) -> list[str]:
    """What a reader must know that the curves do not say."""
    results = comparison.results.items()
    clipped = any((result.trace.column("gap") < FLOOR).any() for _, result in results)
    repeats = len(comparison.trials)
    several = [f"Lines are medians over {repeats} partitions; bands reach from the least gap to the largest."]
    notes = [f"Gaps below {FLOOR:g}, negative ones too, are drawn at {FLOOR:g}."] if clipped else []
    notes += several if repeats > 1 else []
    for name, result in results:
        if any(panel.cuts(result, comparison) for panel in PANELS):
            last = result.trace[-1]
            notes.append(f"{name} goes on beyond an axis: gap {last.gap:.1e} after {last.rounds} rounds.")
    return notes


def _at(x: NDArray[np.float64], cost: NDArray[np.float64], gap: NDArray[np.float64]) -> NDArray[np.float64]:
    """The gap of a run when it has spent x: that of its last iterate until then, and the first before it."""
    place = np.searchsorted(cost, x, side="right") - 1
    return gap[np.maximum(place, 0)]


_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as bytes of a file, the same for the same data."""
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedshed"}):
        figure.savefig(out, format=kind, metadata=_UNDATED.get(kind, {}))
    return out.getvalue()
