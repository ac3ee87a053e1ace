"""An agent of PEN: the frame and copy it shares with the Master, and its answers."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from scipy.linalg.blas import ssyrk

from fedshed._utils.errors import CodecError
from fedshed.algorithms.pen.dither import Dither
from fedshed.algorithms.pen.frame import Frame, change_frame, congruence, identity, move_frame
from fedshed.algorithms.pen.innovation import (
    Copy,
    Steps,
    correct_copy,
    decode_first,
    first_answer,
    forget_copy,
    innovation,
    predict_copy,
)
from fedshed.algorithms.pen.messages import Beyond, First, Mine, Move
from fedshed.linalg.arrays import Matrix, Vector, pack, unpack
from fedshed.linalg.rows import Rows, gram
from fedshed.protocol.conversation import Agent
from fedshed.protocol.links import Forgot
from fedshed.protocol.messages import Message

FEW = 2  # rows per column up to which two products with F are less work than one with F and two with G


class Held(Struct, frozen=True):
    """A frame, a copy, and the point of the copy's Hessian if that was dithered."""

    frame: Frame
    copy: Copy
    anchor: Vector | None = None


class Cache(Struct, frozen=True):
    """What an agent holds, now and before its last answer, which may not have arrived."""

    now: Held
    previous: Held | None = None
    H: Matrix | None = None  # the agent's Hessian at `now.anchor`, which it can also compute again


def answer_first(agent: Agent, theta: Vector, steps: Steps, index: int) -> tuple[Cache, First]:
    """Cost, gradient and Hessian in the agent's own units, and the copy that both ends make of them."""
    point = agent.objective.at(theta)
    first = first_answer(point.value, point.gradient, gram(point.factor), steps, Dither(index, 0))
    return Cache(Held(identity(theta), decode_first(first, agent.objective.dim))), first


def answer_move(
    agent: Agent, cache: Cache | None, move: Move, mine: Mine, steps: Steps, limit: float
) -> tuple[Cache | None, Message]:
    """The innovation at the point of a move, from the copy that the Master means.

    Where it cannot be coded the agent stays where it was, and the Master takes a shorter step.
    """
    held = recall_copy(cache, mine)
    if held is None:
        return cache, Forgot()
    frame, prediction = move_frame(change_frame(held.frame, move.change), move), predict_copy(held.copy, move)
    try:
        return _encode_innovation(agent, cache, held, frame, prediction, move, mine.index, steps, limit)
    except (CodecError, ValueError, ArithmeticError):
        return cache, Beyond()


def _encode_innovation(
    agent: Agent, cache: Cache | None, held: Held, frame: Frame, prediction: Copy, move: Move, index: int,
    steps: Steps, limit: float,
) -> tuple[Cache, Message]:  # fmt: skip
    if cache is not None and cache.previous is not None and held is cache.now:
        forget_copy(cache.previous.copy)
    point, H, anchor = (
        agent.objective.at(frame.theta),
        _recall_anchor_hessian(agent, cache, held),
        held.anchor,
    )
    dither = _dither(frame, prediction, H, index) if move.dither else None
    W = None
    if move.curvature and move.dither:
        H, anchor = gram(point.factor), frame.theta
        W = whiten_hessian(frame.G, H)
    elif move.curvature:
        W = whiten_gram(frame.G, point.factor)
    answer = innovation(point.value, frame.G @ point.gradient, W, prediction, move, steps, limit, dither)
    copy = correct_copy(prediction, move, answer)
    if not move.dither:
        H, anchor = None, None
    return Cache(Held(frame, copy, anchor), held, H), answer


def whiten_hessian(G: Matrix, H: Matrix) -> Matrix:
    """G H G' in single precision: it is the agent's alone, and coded in steps of a tenth."""
    return congruence(G.astype(np.float32), H.astype(np.float32))


def whiten_gram(G: Matrix, factor: Rows) -> Matrix:
    """The upper triangle of G F'F G' in single precision, without F'F where F has few rows."""
    if not isinstance(factor, np.ndarray) or len(factor) > FEW * len(G):
        return whiten_hessian(G, gram(factor))
    rows = factor.astype(np.float32) @ G.T.astype(np.float32)
    return np.asarray(ssyrk(1.0, rows.T, lower=1).T)  # transposed, because BLAS counts by columns


def _recall_anchor_hessian(agent: Agent, cache: Cache | None, held: Held) -> Matrix | None:
    """The agent's Hessian at the anchor: remembered, or computed again, which gives the same."""
    if held.anchor is None:
        return None
    if cache is not None and held is cache.now and cache.H is not None:
        return cache.H
    return gram(agent.objective.at(held.anchor).factor)


def _dither(frame: Frame, prediction: Copy, H: Matrix | None, index: int) -> Dither:
    """How the agent rounds at random: by its index, and what its copy missed of the Hessian before."""
    error = None if H is None else pack(whiten_hessian(frame.G, H) - prediction.W)
    return Dither(index, prediction.digest % 2**63, error)


def recall_copy(cache: Cache | None, mine: Mine) -> Held | None:
    """What the Master means: sent along, or the newest, or the one before the last answer."""
    if mine.whole is not None:
        whole = mine.whole
        copy = Copy(mine.digest, unpack(whole.W, len(whole.g)), whole.g)
        return Held(Frame(whole.G, whole.theta), copy, whole.anchor)
    held = () if cache is None else (cache.now, cache.previous)
    return next((each for each in held if each is not None and each.copy.digest == mine.digest), None)
