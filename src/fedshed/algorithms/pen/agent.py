"""An agent of PEN: the frame and copy it shares with the Master, and its answers."""

from __future__ import annotations

from msgspec import Struct

from fedshed.algorithms.pen.frame import Frame, changed, identity, moved
from fedshed.algorithms.pen.innovation import (
    Copy,
    corrected_copy,
    decoded_first,
    first_answer,
    innovation,
    predicted,
)
from fedshed.algorithms.pen.messages import First, Forgot, Mine, Move
from fedshed.linalg.arrays import Vector, unpack
from fedshed.linalg.rows import gram
from fedshed.protocol.conversation import Agent
from fedshed.protocol.messages import Message


class Cache(Struct, frozen=True):
    """What an agent holds: frame and copy, now and before its last answer, which may not have arrived."""

    frame: Frame
    copy: Copy
    previous: tuple[Frame, Copy] | None = None


def first_answered(agent: Agent, theta: Vector, step: float) -> tuple[Cache, First]:
    """Cost, gradient and Hessian in the agent's own units, and the copy that both ends make of them."""
    point = agent.objective.at(theta)
    first = first_answer(point.value, point.gradient, gram(point.factor), step)
    return Cache(identity(theta), decoded_first(first, agent.objective.dim)), first


def innovated(
    agent: Agent, cache: Cache | None, move: Move, mine: Mine, step: float, limit: float
) -> tuple[Cache | None, Message]:
    """The innovation at the point of a move, from the copy that the Master means."""
    held = recalled(cache, mine)
    if held is None:
        return cache, Forgot()
    frame = moved(changed(held[0], move.change), move)
    prediction = predicted(held[1], move)
    point = agent.objective.at(frame.theta)
    W = frame.G @ gram(point.factor) @ frame.G.T if move.curvature else None
    answer = innovation(point.value, frame.G @ point.gradient, W, prediction, move, step, limit)
    return Cache(frame, corrected_copy(prediction, move, answer), held), answer


def recalled(cache: Cache | None, mine: Mine) -> tuple[Frame, Copy] | None:
    """The frame and copy the Master means: sent along, or the newest, or the one before the last answer."""
    if mine.whole is not None:
        whole = mine.whole
        return Frame(whole.G, whole.theta), Copy(mine.digest, unpack(whole.W, len(whole.g)), whole.g)
    if cache is not None and cache.copy.digest == mine.digest:
        return cache.frame, cache.copy
    if cache is not None and cache.previous is not None and cache.previous[1].digest == mine.digest:
        return cache.previous
    return None
