"""A figure of the rows per agent, by class or by the value of a numeric response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedshed.tables.federation import Federation

Labels = Mapping[str, NDArray[Any]]

# Two colours of Okabe and Ito (2008), or the ten of Tol's "muted" scheme: both are safe for the colour-blind.
TWO = ("#56B4E9", "#D55E00")
TEN = (
    *("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677"),
    *("#AA4499", "#44AA99", "#882255", "#999933", "#DDDDDD"),
)
HATCHES = ("", "////")  # the second ten classes are the same colours, hatched
MOST_CLASSES = len(TEN) * len(HATCHES)
BLUES = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))  # its lightest is seen on white
BINS = 40


def draw(federation: Federation) -> Figure:
    """The rows of each site by label."""
    labels = {site: federation.tables[site].y for site in federation.sites}
    return draw_labels(labels, federation.name)


def draw_labels(labels: Labels, name: str = "data") -> Figure:
    """The rows of each agent by label: stacked bars up to twenty labels, else bars above a map of values."""
    figure = Figure(figsize=(_width(len(labels)), 4.2), dpi=150, layout="constrained")
    classes = np.unique(np.concatenate(list(labels.values())))
    if len(classes) <= MOST_CLASSES:
        ax = figure.subplots()
        _draw_bars(ax, labels, classes)
    else:
        upper, ax = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        _draw_sizes(upper, labels)
        # Text has no distance: many classes that are text are drawn by their place in the alphabet.
        text = classes.dtype.kind in "US"
        _draw_values(ax, {a: np.searchsorted(classes, y) for a, y in labels.items()} if text else labels)
    _name_agents(ax, list(labels))
    figure.suptitle(_title(labels, name), fontsize=11)
    return figure


def _draw_bars(ax: Axes, labels: Labels, classes: NDArray[Any]) -> None:
    """One bar per agent, of a block per class."""
    x, below = np.arange(len(labels)), np.zeros(len(labels), dtype=int)
    for k, label in enumerate(classes.tolist()):
        rows = np.array([np.count_nonzero(y == label) for y in labels.values()])
        ax.bar(x, rows, bottom=below, label=f"{label}", **_bar(len(labels)), **_look(k, len(classes)))
        below += rows
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    ax.legend(title="y", ncols=1 + (len(classes) > len(TEN)), frameon=False, reverse=True, **place)
    _tidy(ax, labels)


def _draw_sizes(ax: Axes, labels: Labels) -> None:
    """One bar per agent."""
    ax.bar(np.arange(len(labels)), [len(y) for y in labels.values()], color="0.45", **_bar(len(labels)))
    _tidy(ax, labels)


def _draw_values(ax: Axes, labels: Labels) -> None:
    """One column per agent: which share of its rows has y in which interval."""
    edges, cut = _edges(np.concatenate(list(labels.values())))
    share = np.array(
        [np.histogram(np.clip(y, edges[0], edges[-1]), edges)[0] / len(y) for y in labels.values()]
    )
    at = np.arange(len(labels) + 1) - 0.5
    shown = np.ma.masked_equal(share.T, 0)
    mesh = ax.pcolormesh(at, edges, shown, cmap=BLUES, norm=PowerNorm(0.5, vmin=0, vmax=share.max()))
    bar = ax.figure.colorbar(mesh, ax=ax, label="share of the agent's rows", pad=0.01)
    bar.outline.set_visible(False)
    ax.set_ylabel("y (outer 1 % at the edges)" if cut else "y")
    ax.spines[["top", "right"]].set_visible(False)


def _edges(y: NDArray[Any]) -> tuple[NDArray[np.float64], bool]:
    """The limits of the intervals of y; a few extreme values are cut off, so that the others can be seen."""
    low, first, last, high = np.quantile(y, [0, 0.005, 0.995, 1])
    cut = bool(first < last < first + (high - low) / 4)
    return np.linspace(*((first, last) if cut else (low, high)), BINS + 1), cut


def _tidy(ax: Axes, labels: Labels) -> None:
    """An axis of whole rows with some space above the largest agent."""
    ax.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.set_ylim(0, 1.05 * max(map(len, labels.values())))
    ax.set_ylabel("rows")
    ax.grid(axis="y", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _name_agents(ax: Axes, agents: Sequence[str]) -> None:
    """Names below the bars: all of them while they can be read, then every second, third, ..."""
    kinds = {agent.rpartition("-")[0] for agent in agents}
    kind = kinds.pop() if len(kinds) == 1 else ""
    names = [agent.removeprefix(f"{kind}-") for agent in agents] if kind else agents
    step = -(-len(names) // 70)
    upright = len(names) * max(map(len, names)) > 70
    ax.set_xticks(range(0, len(names), step), names[::step], rotation=90 if upright else 0)
    ax.tick_params(axis="x", labelsize=9 if len(names) <= 30 else 7, length=2)
    ax.set_xlim(-0.7, len(names) - 0.3)
    ax.set_xlabel(kind or "site")


def _bar(agents: int) -> dict[str, Any]:
    """Bars with gaps while there is room for them."""
    return {"width": 0.8 if agents <= 70 else 1.0, "linewidth": 0}


def _look(k: int, classes: int) -> dict[str, Any]:
    """The colour of class k, hatched if all colours are taken."""
    if classes <= 2:
        return {"color": TWO[k]}
    return {"facecolor": TEN[k % len(TEN)], "hatch": HATCHES[k // len(TEN)], "edgecolor": "white"}


def _width(agents: int) -> float:
    """Inches."""
    return float(np.clip(4.5 + 0.11 * agents, 6.4, 12.0))


def _title(labels: Labels, name: str) -> str:
    rows = [len(y) for y in labels.values()]
    each = f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
    return f"{name}: {len(rows)} agents, {sum(rows):,} rows, {each} each"
