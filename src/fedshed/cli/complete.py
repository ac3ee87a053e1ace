"""The names that the tab key offers, looked up when it is pressed."""

from __future__ import annotations

import tomllib
from pathlib import Path


def datasets(incomplete: str) -> list[str]:
    """Data sets."""
    from fedshed.datasets import names

    return [name for name in names() if name.startswith(incomplete)]


def algorithms(incomplete: str) -> list[str]:
    """Algorithms, after those that are already named with commas."""
    from fedshed.algorithms import ALGORITHMS

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in ALGORITHMS if name.startswith(last)]


def partitions(incomplete: str) -> list[str]:
    """Ways to deal rows to agents."""
    from fedshed.datasets.partitions import PARTITIONS

    return [name for name in PARTITIONS if name.startswith(incomplete)]


def preprocessings(incomplete: str) -> list[str]:
    """Ways to turn images into columns."""
    from fedshed.datasets.images import PREPROCESSINGS

    return [name for name in PREPROCESSINGS if name.startswith(incomplete)]


def examples(incomplete: str) -> list[str]:
    """Examples."""
    from fedshed.datasets.examples import EXAMPLES

    return [name for name in EXAMPLES if name.startswith(incomplete)]


def experiments(incomplete: str) -> list[str]:
    """Experiments of the paper, and the words for all of them."""
    figures = Path(__file__).parents[1] / "experiments" / "figures"
    order = tomllib.loads((figures / "order.toml").read_text())[
        "order"
    ]  # without what draws them: it is quick
    return [name for name in (*order, "all", "list") if name.startswith(incomplete)]
