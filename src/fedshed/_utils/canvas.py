"""The sheet that figures are drawn on: its size and letters, and its bytes as a file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshed._utils.figure_style import STYLE, WIDTH
from fedshed._utils.files import write_atomically
from fedshed._utils.log_axis import use_log_scale
from fedshed._utils.mathematics import plain

GAP = r"$f(\theta^t) - f^\star$"
NOTE: dict[str, Any] = {"fontsize": 11.5, "color": "0.3"}
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def style() -> Iterator[None]:
    """The letters and lines of all figures, for what is drawn within."""
    with mpl.rc_context(STYLE):
        yield


def sheet(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """An empty figure of the one width, and its axes as an array of rows and columns."""
    figure = Figure(figsize=(WIDTH, height), dpi=200, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def dress(ax: Axes, x_label: str = "", title: str = "", *, log: bool = True) -> None:
    """Labels, a light grid, and letters that stay as large outside of `style`."""
    if log:
        use_log_scale(ax, "y", 7)
    ax.set_xlabel(x_label)
    ax.set_title(title)
    ax.tick_params(labelsize=STYLE["xtick.labelsize"])
    ax.grid(True, which="major", color="0.9", linewidth=0.8)


def legend(figure: Figure, title: str, notes: Sequence[str] = ()) -> None:
    """One legend for all panels above them, below the title of the figure, and notes below them."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= {label: one for label, one in zip(labels, handles, strict=True) if label not in entries}
    columns = 4 if max((len(plain(label)) for label in entries), default=0) <= 12 else 3
    figure.legend(
        entries.values(), entries.keys(), title=wrapped(title, 60), loc="outside upper center",
        handlelength=2.2, ncols=max(1, min(columns, len(entries))), columnspacing=1.2, handletextpad=0.5,
        borderaxespad=0.2,
    )  # fmt: skip
    figure.supxlabel("\n".join(wrapped(note, 80) for note in notes if note), **NOTE)


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many letters as they are shown; a formula is not broken."""
    kept = [part.replace(" ", "\xa0") if k % 2 else part for k, part in enumerate(text.split("$"))]
    lines = [""]
    for word in "$".join(kept).split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        lines = [*lines[:-1], longer] if len(plain(longer)) <= width else [*lines, word]
    return "\n".join(lines).replace("\xa0", " ")


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as bytes of a file, the same for the same data."""
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedshed"}):
        figure.savefig(out, format=kind, metadata=_UNDATED.get(kind, {}))
    return out.getvalue()


def save(figure: Figure, folder: str | Path, stem: str = "comparison") -> list[Path]:
    """The figure as PNG and SVG, the same bytes for the same data."""
    return [
        write_atomically(Path(folder) / f"{stem}.{kind}", rendered(figure, kind)) for kind in ("png", "svg")
    ]
