"""Families with one more number: fixed while theta is fitted, given by the study or found by the Master.

A family says what its parameter is (`family.Parameter`); `family_of("tweedie(1.5)")` is the family at one
value, whose objective is a class with that value.  Where the Master searches for the value, each objective
tells how its cost depends on it (`Sensitivity`), in sums over rows that add up over sites.
"""

from __future__ import annotations

import copyreg
from typing import Any, ClassVar

from fedshed.objectives.base import LinearModel


class Parametric(LinearModel):
    """A linear model whose loss has one more number, an attribute of the class."""

    parameter: ClassVar[float]
    loss: ClassVar[str]  # as `optimize` calls it, with the number
    source: ClassVar[type[Parametric]]  # the class without the number

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, in this process or another, make the class again."""
        kind = type(self)
        if "source" not in vars(kind):  # the class at the family's own value
            return copyreg.__newobj__, (kind,), self.__getstate__()  # type: ignore[attr-defined]
        return _blank, (kind.source, kind.parameter, kind.loss), self.__getstate__()


def at_value(kind: type[Parametric], value: float, loss: str) -> type[Parametric]:
    """The class of objectives with this value of the parameter, the same whenever it is asked for."""
    own = {"parameter": value, "loss": loss, "source": kind, "__doc__": kind.__doc__}
    if (kind, value) not in _KNOWN:
        _KNOWN[kind, value] = type(kind.__name__, (kind,), own)
    return _KNOWN[kind, value]


_KNOWN: dict[tuple[type[Parametric], float], type[Parametric]] = {}


def _blank(kind: type[Parametric], value: float, loss: str) -> Parametric:
    made = at_value(kind, value, loss)
    return made.__new__(made)
