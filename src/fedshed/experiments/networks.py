"""A map of networks: which algorithm is the fastest at which latency and bandwidth, with its seconds."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedshed._utils.canvas import NOTE, sheet, style, wrapped
from fedshed._utils.figure_style import look
from fedshed._utils.mathematics import typeset
from fedshed.algorithms.costs import rate_in_words, time_in_words
from fedshed.experiments.times import Fastest, TimeMap

MODEL = r"Time to the optimum: exchanges $\times$ latency + 8 $\times$ bytes / rate + CPU of all sites."
TINT = 0.4  # of an algorithm's colour behind letters
HEIGHT = 0.95  # inches of one latency


def draw(found: TimeMap, title: str = "") -> Figure:
    """A cell for each latency and rate, in the colour and with the marker of the fastest algorithm."""
    with style():
        figure, axes = sheet(HEIGHT * len(found.latencies) + 2.2)
        ax = axes[0, 0]
        for i, row in enumerate(found.cells):
            for j, fastest in enumerate(row):
                _cell(ax, j, i, fastest)
        _scales(ax, found)
        ax.set_title(f"Fastest algorithm by network\n{wrapped(typeset(title), 60)}".rstrip())
        figure.supxlabel("\n".join(wrapped(note, 80) for note in (MODEL, *found.notes())), **NOTE)
    return figure


def _cell(ax: Axes, x: int, y: int, fastest: Fastest) -> None:
    """The name of an algorithm and its time, on its colour."""
    (name, seconds), (red, green, blue) = fastest, to_rgb(look(fastest[0]).color)
    tint = tuple(1 - TINT * (1 - part) for part in (red, green, blue))
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=tint, edgecolor="white", linewidth=3))
    options = {**look(name).line_options(), "linestyle": "none", "markersize": 11}
    ax.plot(x, y + 0.28, **options)
    ax.text(x, y - 0.08, name, ha="center", va="center", fontweight="bold")
    ax.text(x, y - 0.33, time_in_words(seconds), ha="center", va="center")


def _scales(ax: Axes, found: TimeMap) -> None:
    """Rates to the right and latencies upwards, in words."""
    ax.set_xticks(range(len(found.rates)), [rate_in_words(rate) for rate in found.rates])
    ax.set_yticks(range(len(found.latencies)), [time_in_words(one) for one in found.latencies])
    ax.set_xlim(-0.5, len(found.rates) - 0.5)
    ax.set_ylim(-0.5, len(found.latencies) - 0.5)
    ax.set_xlabel("rate of each site's link")
    ax.set_ylabel("latency of an exchange")
    ax.tick_params(length=0, labelsize=13)
    for side in ax.spines.values():
        side.set_visible(False)
