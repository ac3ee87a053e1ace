"""When a run ends; no other module decides this."""

from __future__ import annotations

from msgspec import Struct


class Goal(Struct, frozen=True):
    """A gradient norm of at most `tol`, a gap f - f_star of at most `gap_tol`, or `max_iterations`.

    A round continues when `quorum` sites have answered; a site without a usable answer in `patience`
    exchanges in a row ends the run.
    """

    tol: float = 1e-9
    max_iterations: int = 500
    f_star: float | None = None
    gap_tol: float | None = None
    quorum: int = 1
    patience: int = 20
