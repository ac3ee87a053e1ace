"""A site: it decodes a request, lets the conversation answer part by part, and encodes the reply."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError, Error, ProtocolError, SingularError
from fedshed.exchange.watched import WatchedModel
from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.objectives import Objective, Point
from fedshed.objectives.folds import WithoutRows
from fedshed.objectives.time_scale import TimeScale
from fedshed.privacy.points import ForbiddenPointError
from fedshed.protocol.codec import Codec, Decoder, codec_of, encode
from fedshed.protocol.conversation import Agent, AgentId, Conversation
from fedshed.protocol.links import Forgot
from fedshed.protocol.messages import Costs, Declined, Message, Search, Undefined, at_trial_point
from fedshed.protocol.replies import Reply, Request

log = logging.getLogger("fedshed")
FAILED = "it failed to answer; the site's own log says why"
WITHOUT_CURVATURE = ("value", "gradient", "fit")  # of a point; all else is computed from its Hessian


class UnanswerableError(ProtocolError):
    """An algorithm cannot answer a request at this point: its numbers leave what can be computed or sent."""


class Site:
    """One agent at work: bytes in, bytes out; its state is only a cache and may be lost at any time."""

    def __init__(
        self, name: AgentId, objective: Objective, conversation: Conversation, codec: Codec | None = None
    ) -> None:
        self.name, self.objective, self.conversation = name, objective, conversation
        self.codec = codec or codec_of(conversation, objective.dim)  # sites of one process may share one
        self._updates_sent = conversation.lossy and conversation.updates_cache_when_sent
        self._cache: Any = None  # may be lost at any time
        self.asked: tuple[Any, ...] = ()  # the last request in full: its parts, and the site's own
        self._watched: WatchedModel | None = None
        self._counter = _HessianCounter(objective)
        self.agent = Agent(name, self._counter)

    def watch(self, watched: WatchedModel) -> None:
        """Answer from now on only at points that the rules allow."""
        self._watched = watched
        self._counter = _HessianCounter(watched)
        self.agent = Agent(self.name, self._counter)

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request; the cache changes only if all parts were answered.

        A part that the algorithm cannot answer at this point is declined; the Master decides what follows.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is rejected, not warned of
            return self.encode_reply_to(self.codec.decode_request(payload))

    def encode_reply_to(self, request: Request) -> bytes:
        """The encoded reply to a request; numbers that overflow are those of NumPy."""
        reply, cache = self.reply_to(request)
        encoded = self.codec.encode_reply(reply, request.accuracy)
        self.keep(reply, cache, encoded)
        return encoded

    def keep(
        self, reply: Reply, cache: Any, encoded: bytes = b"", seen: Sequence[Message] | None = None
    ) -> None:
        """Take the cache after a reply; it continues from the answers as the Master sees them.

        `seen`: these answers, where they are known without decoding; an exact reply needs neither.
        """
        if self._updates_sent and (seen is not None or reply.answers):
            for answer in self.codec.decode_reply(encoded).parts if seen is None else seen:
                cache = self.conversation.sent(cache, answer)
        self._cache = cache

    def reply_to(self, request: Request) -> tuple[Reply, Any]:
        """The reply to a request, and the cache after it; what cannot be computed is declined."""
        try:
            return self.compute_reply(request)
        except UnanswerableError as error:
            return _decline(request, str(error)), self._cache

    def compute_reply(self, request: Request) -> tuple[Reply, Any]:
        """The reply to a request, and the cache after it; numbers that overflow are those of NumPy."""
        self._counter.start(None if self._cache is None else self.conversation.anchor(self._cache))
        if self._watched is not None:
            self._watched.start()
        located = self.conversation.located(self._cache, request.located, request.mine, self.objective.dim)
        if located is None:  # the cache has lost what the request goes on from
            self.asked = ()
            return Reply(request.run, request.number, 0, [Forgot() for _ in request.parts]), self._cache
        cache, parts, mine = located
        self.asked = (*parts, mine)
        answers: list[Message] = []
        for sent, part in zip(request.parts, parts, strict=True):
            if isinstance(part, Search):
                answers.append(self._costs(part))
            else:
                cache, answer = self._answer(cache, sent, part, mine)
                answers.append(answer)
        if self._watched is not None:
            answers = [self._limit_costs(*pair) for pair in zip(parts, answers, strict=True)]
        return Reply(request.run, request.number, self._counter.hessians, answers), cache

    def answer(self, payload: bytes) -> bytes:
        """The encoded reply, whatever happens: what cannot be answered is declined, with the reason.

        A mistake of the program is logged here with its traceback; the Master is told one constant sentence.
        """
        try:
            return self.handle(payload)
        except Error as error:
            return self.decline(payload, str(error))
        except Exception:
            log.exception("site %r: a request could not be answered", self.name)
            return self.decline(payload, FAILED)

    def decline(self, payload: bytes, why: str) -> bytes:
        """The reply to a request that is not answered; nothing for one that cannot be read."""
        try:
            request = self.codec.decode_request(payload)
        except CodecError:
            return b""
        return self.codec.encode_reply(_decline(request, why))

    def _costs(self, search: Search) -> Costs:
        """Costs along the direction; one that overflows is infinite, and will be rejected."""
        along = search.theta, search.direction, search.etas
        slopes = _or_infinite(self.objective.slopes_along(*along)) if search.slopes else None
        return Costs(_or_infinite(self.objective.along(*along)), slopes)

    def _limit_costs(self, part: Message, answer: Message) -> Message:
        """An answer to a search, infinite at the points that the rules forbid; any other as it is."""
        if self._watched is None or not (isinstance(part, Search) and isinstance(answer, Costs)):
            return answer
        return self._watched.limit_costs(part, answer)

    def _answer(self, cache: Any, sent: Any, part: Any, own_part: Any) -> tuple[Any, Message]:
        """The algorithm's answer; at a trial point it may be undefined, elsewhere it may not."""
        self._require_expected(part, own_part)
        try:
            return self.conversation.respond(self.agent, cache, part, own_part)
        except ForbiddenPointError as error:
            if at_trial_point(sent) and not error.fits and np.array_equal(error.theta, part.theta):
                return cache, Undefined()
            raise
        except (ValueError, ArithmeticError, SingularError, CodecError) as error:
            log.debug("site %r cannot answer at this point", self.name, exc_info=True)
            if at_trial_point(sent):
                return cache, Undefined()
            raise UnanswerableError(
                f"site {self.name!r} cannot answer {type(part).__name__}: {error}"
            ) from error

    def _require_expected(self, part: Message, own_part: Message | None) -> None:
        """Refuse a part, or an own part beside it, of a kind that the algorithm does not answer."""
        requests = self.conversation.requests
        if at_trial_point(part):
            raise ProtocolError(f"{type(part).__name__} came without theta and without a Search before it")
        kinds = type(part), None if own_part is None else type(own_part)
        if requests is not None and kinds not in requests:
            what = f"{type(part).__name__} with {type(own_part).__name__}"
            raise ProtocolError(
                f"site {self.name!r} cannot answer {what}, which {type(self.conversation).__name__} does not "
                "expect; run the same version of fedshed at both ends, or add it to its `requests`"
            )

    @property
    def kernel(self) -> str | None:
        """The kernel that computed the eigenpairs in the cache, where the algorithm has any."""
        return self.conversation.kernel_used(self._cache)

    def forget(self) -> None:
        """Lose the cache, as a restarted process would."""
        self._cache = None

    @property
    def cache(self) -> Any:
        """What the conversation remembers; another object once it has changed."""
        return self._cache

    def save(self) -> bytes:
        """The cache as bytes, for an engine that starts a process for each message."""
        return encode(self._cache)

    def load(self, saved: bytes) -> None:
        """Take a saved cache back."""
        self._cache = _cache_reader(self.conversation.cache, self.objective.dim)(saved)


@lru_cache(maxsize=8)  # sites of one process share one, which takes long to make
def _cache_reader(kind: Any, n: int) -> Decoder:
    return Decoder(Optional[kind], n)


def _decline(request: Request, why: str) -> Reply:
    return Reply(request.run, request.number, 0, [Declined(why[:2000])])


def _or_infinite(values: Scalars) -> Scalars:
    """Numbers; infinity for what is none."""
    return values if isfinite(sum(values.tolist())) else np.where(np.isfinite(values), values, np.inf)


class _HessianCounter:
    """An objective that counts at how many points its curvature was computed, whichever algorithm asks.

    A Hessian at the anchor of the cache is not counted again, because it was counted when it was computed.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = self.counted = objective
        self.slot = getattr(objective, "slot", None)  # its place among those that are evaluated together
        self.weight, self.dim = objective.weight, objective.dim
        self.start(None)

    def start(self, anchor: Vector | None) -> None:
        """Count from 0 again, with the anchor of the Hessian in the cache."""
        self._anchor, self.hessians = anchor, 0

    def at(self, theta: Vector) -> Point:
        point: Any = _CountedPoint(self, theta, self._objective.at(theta))
        return point  # type: ignore[no-any-return]

    def count(self, theta: Vector) -> None:
        """A Hessian taken at theta."""
        anchor = self._anchor
        self.hessians += anchor is None or not (theta is anchor or np.array_equal(theta, anchor))

    def proportionality(self, theta: Vector, scale: TimeScale) -> tuple[Vector, Matrix, Matrix]:
        self.count(theta)
        return self._objective.proportionality(theta, scale)

    def without(self, theta: Vector, left_out: NDArray[np.bool_] | None) -> WithoutRows:
        self.count(theta)
        return self._objective.without(theta, left_out)

    def __getattr__(self, name: str) -> Any:
        """All else is the objective's own, and computes no Hessian."""
        return getattr(self.__dict__["counted"], name)


class _CountedPoint:
    """A point that counts as a Hessian once something of its curvature is asked for."""

    value, gradient = property(attrgetter("_point.value")), property(attrgetter("_point.gradient"))

    def __init__(self, counter: _HessianCounter, theta: Vector, point: Point) -> None:
        self._counter, self._theta, self._point, self._counted = counter, theta, point, False

    def __getattr__(self, name: str) -> Any:
        if name not in WITHOUT_CURVATURE and not self._counted:
            self._counter.count(self._theta)
            self._counted = True
        return getattr(self.__dict__["_point"], name)
