"""Labels of logarithmic axes: few, plain over short ranges, and never one over another."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedshed._utils.figure_style import STYLE
from fedshed._utils.log_axis import MOST, labels, ticks, use_log_scale
from log_axes import AXES


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((0.45, 4.2), ["0.5", "1", "2"]),
        ((0.9, 60.0), ["1", "2", "5", "10", "20", "50"]),
        ((15.0, 1200.0), ["20", "50", "100", "200", "500", "1000"]),
        ((0.9, 3.6), ["1", "1.5", "2", "2.5", "3", "3.5"]),
        ((0.95, 1.05), ["0.96", "0.98", "1", "1.02", "1.04"]),
        ((0.3, 300.0), ["1", "10", "100"]),
        ((1e-3, 1e61), ["$10^{0}$", "$10^{20}$", "$10^{40}$", "$10^{60}$"]),
        ((2e6, 9e7), [r"$3 \times 10^{6}$", "$10^{7}$", r"$3 \times 10^{7}$"]),
    ],
)
def test_labels_are_plain_over_short_ranges_and_powers_over_long_ones(ends, expected):
    assert labels(ticks(*ends)) == expected


@pytest.mark.parametrize("ends", AXES)
def test_an_axis_has_a_few_labels_that_do_not_touch(ends):
    """Not even in a panel of half a page; there are two at least, so that the scale can be read."""
    figure = Figure(figsize=(2.9, 2), dpi=100)
    axes = figure.subplots()
    use_log_scale(axes, "x", MOST - 1)
    axes.set_xlim(ends)
    axes.tick_params(labelsize=STYLE["xtick.labelsize"])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert all(not label.get_text() for label in axes.get_xticklabels(minor=True))
    boxes = [label.get_window_extent(canvas.get_renderer()) for label in axes.get_xticklabels()]
    assert 2 <= len(boxes) <= MOST - 1
    gaps = np.subtract([box.x0 for box in boxes[1:]], [box.x1 for box in boxes[:-1]])
    assert gaps.min() > 0
    places = axes.get_xticks()
    assert (ends[0] <= places).all()
    assert (places <= ends[1]).all()
