"""A site that lies to the Master: about its weight, its rows, its information, or in a wrong shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.attacks.cuts import columns
from benchmarks.attacks.master import Ear, Tables, Twist
from benchmarks.attacks.overhear import three_sites
from benchmarks.attacks.shape import PLAIN, Found, Mode, attack
from benchmarks.attacks.simulated import patients
from benchmarks.attacks.target import SITE, SITES, SWITCHES, nodes, unchecked
from fedshed._utils.errors import Error
from fedshed.deployment.config import StudyFile
from fedshed.fitting.conduct import conduct
from fedshed.fitting.model import Model
from fedshed.preparation import Study
from fedshed.preparation.messages import Ready
from fedshed.solve.inspection import Inspected
from fedshed.solve.null_start import Moments

LIAR = SITE
STUDY = StudyFile(Study(family="logistic", target="disease", columns=columns(5)), SITES, "newton")
MOVED = 0.1  # standard errors, or the share by which an error may change


def fitted(mode: Mode, rows: int, ear: Ear, twist: Twist | None = None) -> Model:
    """The model of three sites, of which one may lie."""
    frames = three_sites([patients(rows, seed=seed) for seed in range(3)])
    with (
        nodes(frames, STUDY, mode, ("answers",), SWITCHES["budget"]) as transport,
        unchecked(mode, "answers"),
    ):
        tables = Tables(transport, SITES, ear, STUDY, twist)
        return conduct(STUDY.study, tables, STUDY.goal, algorithm=STUDY.algorithm, fused=True).model


@cache
def honest_fit(mode: Mode, rows: int) -> Model:
    """The model of three sites that tell the truth."""
    return fitted(mode, rows, Ear())


def moved(honest: Model, model: Model) -> bool:
    """Whether the estimates or their errors are not those of the honest fit."""
    theta, errors = (np.array(honest.inference.coefficients), honest.inference.std_err())
    shift = np.abs(np.array(model.inference.coefficients) - theta) / errors
    ratio = np.abs(np.log(model.inference.std_err() / errors))
    return bool(not (shift <= MOVED).all() or not (ratio <= np.log(1 + MOVED)).all())


def believed(mode: Mode, rows: int, lie: Callable[[Any], Any]) -> Found:
    """1 if a lie moved the model, or ended the study without naming the site; else 0."""
    honest, ear = honest_fit(mode, rows), Ear()

    def twist(site: str, answer: Any) -> Any:
        return lie(answer) if site == LIAR else answer

    try:
        model = fitted(mode, rows, ear, twist)
    except Error as error:
        return ear.found(3 * rows, int(repr(LIAR) not in str(error)))
    except Exception:  # a foreign exception is what a lie must not cause
        return ear.found(3 * rows, 1)
    return ear.found(3 * rows, int(moved(honest, model)))


def of_kind(kinds: tuple[type, ...], answer: Any, **factors: float) -> Any:
    """An answer of these kinds with fields multiplied; any other as it is."""
    if not isinstance(answer, kinds):
        return answer
    return replace(answer, **{name: _times(getattr(answer, name), by) for name, by in factors.items()})


def _times(value: Any, factor: float) -> Any:
    return int(value * factor) if isinstance(value, int) else value * factor


def longer(answer: Any) -> Any:
    """Sums of a wrong length."""
    if not isinstance(answer, Moments):
        return answer
    return Moments(np.append(answer.sums, [1.0, 2.0]))


LIES: dict[str, Callable[[Any], Any]] = {
    "weight x 1000": lambda answer: of_kind((Ready, Inspected), answer, weight=1000),
    "rows x 100": lambda answer: of_kind((Ready, Inspected), answer, rows=100, weight=100),
    "information x 100": lambda answer: of_kind((Inspected,), answer, information=100),
    "information x -1": lambda answer: of_kind((Inspected,), answer, information=-1),
    "Moments too long": longer,
}
for _name, _lie in LIES.items():
    attack(f"lying site, {_name}", "answers", rows=60, modes=PLAIN)(partial(believed, lie=_lie))
