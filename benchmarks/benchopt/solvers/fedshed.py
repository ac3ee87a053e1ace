"""Every algorithm of fedshed by its name."""

from typing import ClassVar

import numpy as np
from benchopt import BaseSolver

import fedshed
from fedshed.exchange.wire import Traffic


class EnoughError(Exception):
    """The benchmark has seen enough of this run."""


class Solver(BaseSolver):
    """An algorithm of `fedshed algorithms` with its own defaults; every encoded byte is counted."""

    name = "fedshed"
    parameters: ClassVar = {
        "algorithm": ["fib-shed", "gn-shed", "fednl", "giant", "lbfgs", "newton", "qn-shed", "pen"]
    }

    def skip(self, loss, **_):
        """Some algorithms are for least squares only."""
        losses = fedshed.algorithms.build(self.algorithm).losses
        wrong = losses is not None and loss not in losses
        return wrong, f"{self.algorithm} is not for {loss}" if wrong else None

    def set_objective(self, sites, loss, l2):
        """The problem."""
        self.federation = fedshed.Federation.from_sites(sites)
        self.options = {"loss": loss, "l2": l2, "algorithm": self.algorithm}

    def run(self, callback):
        """To rounding level, or until the benchmark has seen enough."""
        self.result = paid(np.zeros(self.federation.dim), 0, Traffic())

        def watch(progress):
            self.result = paid(progress.state.theta, progress.rounds, progress.traffic)
            if not callback():
                raise EnoughError

        callback()
        try:
            fedshed.optimize(self.federation, **self.options, tol=1e-13, max_iterations=10_000, watch=watch)
        except EnoughError:
            return

    def get_result(self):
        """The last iterate, and what it cost."""
        return self.result


def paid(theta, rounds, traffic):
    """What the objective asks for, from the traffic up to this iterate."""
    return {
        "theta": theta, "rounds": rounds, "exchanges": traffic.exchanges,
        "bits_up": 8 * traffic.uplink_bytes, "bits_down": 8 * traffic.downlink_bytes,
    }  # fmt: skip
