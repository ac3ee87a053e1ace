"""Short messages that ask for much memory or time, at the Master or at a site."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.attacks.cuts import columns
from benchmarks.attacks.master import DeniedError, Master
from benchmarks.attacks.shape import PLAIN, Found, Mode, attack
from benchmarks.attacks.simulated import patients
from benchmarks.attacks.target import SITE, cover, nodes, unchecked
from fedshed._utils.errors import Error
from fedshed.algorithms import build
from fedshed.algorithms.rivals.giant import Giant, Solve
from fedshed.deployment.config import StudyFile
from fedshed.fitting import parts
from fedshed.preparation import Study
from fedshed.protocol.codec import codec_of, encode
from fedshed.protocol.messages import Search

MOST = 64 << 20  # bytes that any message may cost, besides four times its own length
STUDY = Study(family="logistic", target="disease", columns=columns(3))
FILE = StudyFile(STUDY, (SITE,), "lbfgs")
MANY = 30_000  # iterations of one local solve


@contextmanager
def allocated() -> Iterator[Callable[[], int]]:
    """The most bytes that were held at once since the beginning."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def too_much(peak: int, message: int) -> int:
    """1 if more was allocated than a message of that length may cost."""
    return int(peak > MOST + 4 * message)


@attack("bomb, entropy coder", "decoder", rows=4000, modes=PLAIN)
def entropy_coder(mode: Mode, rows: int) -> Found:
    """A reply of a few bytes that stands for n - 1 eigenvectors of zeros; `rows` are the coefficients."""
    codec = codec_of(build("qn-shed"), rows)
    gradient = b"\0" + bytes(8 * rows)
    zeros = (rows - 1).to_bytes(4, "little") + np.float32(1).tobytes() + bytes(4)
    pairs = ["Eigenpairs", 1, 0, bytes(8 * (rows - 1)), zeros, 0.0, True]
    data = encode((b"run0", 1, 1, [["Local", 0.0, gradient, pairs]]))
    with allocated() as peak, unchecked(mode, "decoder"):
        with suppress(Error):
            codec.decode_reply(data)
        return Found(0, too_much(peak(), len(data)), 1, 0)


@attack("bomb, step sizes", "decoder", "budget", rows=1000, modes=PLAIN)
def step_sizes(mode: Mode, rows: int) -> Found:
    """A search with 8,000 step sizes, each of which costs the site as many numbers as it has rows."""
    with unchecked("rule off", "decoder"):  # the Master's own end does not stop it
        search = Search(np.zeros(4), np.ones(4), np.linspace(0.0, 1.0, 8000))
    with _asked(mode, rows, step_sizes.rules, FILE) as (master, plan), allocated() as peak:
        with suppress(DeniedError):
            master.play(plan, "lbfgs").ask(search)
        return master.ear.found(0, too_much(peak(), len(encode(search))))


class Unbounded(Giant, frozen=True, tag="Done"):
    """DONE as a Master may write it: with any number of iterations."""

    iterations: int = 40

    def local_direction(self, H: Any, g: Any) -> Any:
        """H^-1 g to so many Richardson iterations."""
        x = np.zeros_like(g)
        for _ in range(self.iterations):
            x = x + (g - H @ x) / np.linalg.norm(H)
        return x


@attack("bomb, iterations", "decoder", "approval", rows=60, modes=PLAIN)
def iterations(mode: Mode, rows: int) -> Found:
    """An algorithm whose local solve takes 30,000 iterations; 1 if the site carried them out."""
    solve = Solve(np.zeros(4), np.ones(4), np.array([1e-3]))
    known = patch.object(parts, "BUILT_IN", Unbounded) if mode == "rule off" else nullcontext()
    with _asked(mode, rows, iterations.rules, cover(mode, FILE)) as (master, plan), known:
        answers: list[Any] = []
        with suppress(DeniedError):
            answers = master.play(plan, Unbounded(iterations=MANY)).ask(solve)
        return master.ear.found(0, len(answers))


@contextmanager
def _asked(
    mode: Mode, rows: int, rules: tuple[str, ...], name: StudyFile | None
) -> Iterator[tuple[Master, Any]]:
    """A Master that has agreed with a site on the plan of an approved study."""
    with nodes({SITE: patients(rows)}, FILE, mode, rules) as site, unchecked(mode, "decoder"):
        master = Master(site, name)
        yield master, master.agree(STUDY)[0]
