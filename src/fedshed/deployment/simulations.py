"""Deployments refuse everything that is for simulations only."""

from __future__ import annotations

import sys

from fedshed._utils.errors import ConfigError
from fedshed.exchange import Transport


def refuse_simulations(transport: Transport | None = None) -> None:
    """Refuse a transport that is for simulations, and a process that is part of a Ray cluster.

    Ray pickles what it moves: whoever reaches a cluster can run code in every process of it.
    """
    if why := getattr(transport, "simulation", ""):
        raise ConfigError(f"a deployed study cannot use {type(transport).__name__}: {why}")
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        raise ConfigError(
            "this process is part of a Ray cluster, whose pickled messages can run code; run deployed "
            "studies and nodes in processes that are not connected to Ray"
        )
