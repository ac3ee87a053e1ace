"""A Master that follows the protocol and keeps what it hears: an honest fit of three sites, overheard."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.attacks.master import Ear, Tables
from benchmarks.attacks.protected import Sums
from benchmarks.attacks.sensitivity import Array, Told
from benchmarks.attacks.shape import Mode
from benchmarks.attacks.target import SITE, SITES, Protected, nodes
from fedshed._utils.errors import Error
from fedshed.deployment.config import StudyFile
from fedshed.fitting.conduct import conduct
from fedshed.preparation.messages import Ready
from fedshed.protocol.messages import Costs, Update
from fedshed.solve.stages import FIT, INSPECT


def overheard(
    frames: Mapping[str, pd.DataFrame], file: StudyFile, mode: Mode, rules: Collection[str],
    base: Mapping[str, Any] | None = None, kept: Collection[str] = (),
) -> Ear:  # fmt: skip
    """All that was said in a fit, however it ended; in protected mode the sums, as if they were a site's."""
    ear = Ear()
    with nodes(frames, file, mode, rules, base, kept) as transport, suppress(Error):
        if isinstance(transport, Protected):
            Sums(transport, ear).fit_all()
            return ear
        tables = Tables(transport, file.sites, ear, file)
        conduct(file.study, tables, file.goal, algorithm=file.algorithm, fused=True)
    return ear


def ready_of(ear: Ear, site: str = SITE) -> Ready | None:
    """What a site said of its design."""
    return next((one.answer for one in ear.said if one.site == site and isinstance(one.answer, Ready)), None)


def first_update(ear: Ear, site: str = SITE) -> list[tuple[Any, Any]]:
    """The first point at which a site told a gradient, and its answer; nothing if it told none."""
    updates = (one for one in ear.said if one.site == site and isinstance(one.asked, Update))
    return [(one.asked.theta, one.answer) for one in islice(updates, 1)]


def told(ear: Ear, site: str = SITE) -> tuple[list[Told], Array]:
    """All points at which a site told costs, gradients and curvature, and the numbers that it told there."""
    found: dict[bytes, Told] = {}
    numbers: dict[bytes, Array] = {}
    steps: dict[int, Any] = {}
    for one in (one for one in ear.said if one.site == site and one.stage in (FIT, INSPECT.number)):
        steps |= {one.asked.t: one.asked.theta} if isinstance(one.asked, Update) else {}
        for point, values in _points(one.asked, one.answer, steps):
            key = point.theta.tobytes() + bytes([point.cost, point.gradient])
            if key not in found or point.numbers > found[key].numbers:
                found[key], numbers[key] = point, values
    return list(found.values()), np.concatenate([*numbers.values(), np.zeros(0)])


def _points(asked: Any, answer: Any, steps: dict[int, Any]) -> Iterator[tuple[Told, Array]]:
    """The points of one answer, with the numbers told."""
    if isinstance(answer, Costs):
        for eta, cost in zip(asked.etas, answer.values, strict=True):
            yield Told(asked.theta + eta * asked.direction, gradient=False), np.array([cost])
    if getattr(answer, "gradient", None) is None:
        return
    H = getattr(answer, "hessian", None)
    scale = getattr(answer, "scale", None)
    extra = [each for each in (H, scale) if each is not None]
    whole, diagonal = H is not None, isinstance(scale, np.ndarray)
    values = np.concatenate([[answer.loss], answer.gradient, *map(np.atleast_1d, extra)])
    yield Told(asked.theta, whole=whole, diagonal=diagonal), values
    pairs = getattr(answer, "pairs", None)
    if pairs is not None and len(pairs.values) and pairs.k in steps:
        theta, products = steps[pairs.k], pairs.values[:, None] * pairs.vectors
        yield Told(theta, cost=False, gradient=False, vectors=pairs.vectors), products.ravel()


def three_sites(frames: Collection[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables by site."""
    return dict(zip(SITES, frames, strict=True))
