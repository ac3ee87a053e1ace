"""A site behind its gate: where it is decided what leaves a site."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np

from fedshed._utils.errors import DisclosureError, Error
from fedshed.exchange.site import Site
from fedshed.exchange.watched import WatchedModel
from fedshed.objectives import LinearModel
from fedshed.privacy.audit import digests
from fedshed.privacy.gate import Asked, DesignFacts, Gate
from fedshed.privacy.ledger import BESIDE, SEARCH
from fedshed.privacy.leverage import Leverage
from fedshed.privacy.points import ForbiddenPointError, PointRules, quadratic
from fedshed.privacy.policy import Objection, Policy, curvature, scalars
from fedshed.privacy.tables import objections
from fedshed.protocol.codec import codec_of, encode
from fedshed.protocol.messages import Declined, Message, Search
from fedshed.protocol.replies import Reply, Request

# what a Master chooses, of all that a request holds
FREE = ("theta", "anchor", "inverse", "g", "grid", "line")
UNANSWERABLE = "an answer that can be computed at this point"

log = logging.getLogger("fedshed")
LARGE = 0.5  # a leverage that is noted


class Guarded:
    """A site behind its gate: over any transport it answers as the site would, or not at all."""

    watches: ClassVar[bool] = True  # the points that are asked about

    def __init__(
        self, site: Site, gate: Gate, design: DesignFacts | None = None, found: Sequence[Objection] = (),
        ledger: Leverage | None = None,
    ) -> None:  # fmt: skip
        """Behind a gate; `found` is what the policy has against the plan that made the site's rows.

        The stages of a study may share a ledger, in which the leverage of rows is kept.
        """
        self._site, self._gate = site, gate
        self._codec = codec_of(site.conversation, site.objective.dim)
        self._design = DesignFacts(parameters=site.objective.dim) if design is None else design
        self._objections = [*objections(gate.policy, site.objective), *found]
        self._watched = _watch_model(gate.policy, site) if self.watches else None
        self._ledger = ledger or Leverage(len(getattr(site.objective, "y", ())))

    @property
    def withheld(self) -> int:
        """Points at which an answer was held back by a rule at points."""
        return 0 if self._watched is None else self._watched.withheld

    @property
    def leverage(self) -> float | None:
        """The largest leverage of a row in what was released (`fedshed.privacy.leverage`)."""
        return None if self._watched is None else self._ledger.largest

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply, if the policy allows it."""
        request = self._codec.decode_request(payload)
        try:
            if self._objections:
                return self._refuse(request, self._objections)
            return self._release(request, self._answer(request, payload))
        except DisclosureError as error:
            raise DisclosureError(f"site {self._site.name!r}: {error}") from None

    def _release(self, request: Request, encoded: bytes) -> bytes:
        """A reply that the gate lets out; what a site could not compute is refused without a word of why."""
        reply = self._codec.decode_reply(encoded)
        what = f"{_kinds(request.parts)} -> {_kinds(reply.parts)}"
        for part in reply.parts:
            if isinstance(part, Declined):
                self._refuse(request, [Objection(UNANSWERABLE, part.why)])
        return self._gate.release(
            what, encoded, sum(map(scalars, reply.parts)), (), self._record_request(request, reply)
        )

    def _record_request(self, request: Request, reply: Reply) -> Asked:
        """The request as it goes on record."""
        digest, design = _digest((request.parts, request.mine)), self._design
        return self._design.asked(
            kind=_kind(request) if design.plan else "",
            request=digest,
            points=_points(self._site.asked, digest, design.parameter),
            answer=_digest((design.plan, request.parts, request.mine, reply.parts)),
            curvature=sum(map(curvature, reply.parts)),
            leverage=self._enter_leverage(),
        )

    def _answer(self, request: Request, payload: bytes) -> bytes:
        """The site's reply; at a point that a rule forbids, none, and the refusal is on record."""
        try:
            return self._site.handle(payload)
        except ForbiddenPointError as error:
            return self._refuse(request, [error.objection])

    def _refuse(self, request: Request, objections: Sequence[Objection]) -> bytes:
        """No answer, which is on record."""
        asked = Asked(kind=_kind(request), request=_digest((request.parts, request.mine)))
        return self._gate.release(_kinds(request.parts), b"", 0, objections, asked)

    def _enter_leverage(self) -> float | None:
        """The leverage with what is about to be released; a large one is noted in the site's log, once."""
        if self._watched is None:
            return None
        found: float | None = None
        for weights in self._watched.weighed:
            found = self._ledger.add(weights)
        if found is not None and found > LARGE and not self._ledger.warned:
            self._ledger.warned = True
            log.warning(
                "site %r: one row's share of what was released in this study is above one half (its leverage "
                "is %.2f); whoever has all answers may learn much about that row", self._site.name, found,
            )  # fmt: skip
        return found

    def answer(self, payload: bytes) -> bytes:
        """The encoded reply, whatever happens: what is refused is declined, with the rule."""
        try:
            return self.handle(payload)
        except Error as error:
            return self._site.decline(payload, str(error))

    def forget(self) -> None:
        """Lose the cache, as a restarted process would; the record stays."""
        self._site.forget()


def _watch_model(policy: Policy, site: Site) -> WatchedModel | None:
    """The site's model, whose points are looked at from now on.

    All answers of a quadratic one are alike, but for squared scores and sums of |errors|.
    """
    model = site.objective
    squared = any(message.__name__ in ("Scatter", "Evaluate") for message in site.conversation.messages)
    if not isinstance(model, LinearModel) or (quadratic(model) and not squared):
        return None
    watched = WatchedModel(model, PointRules(policy, model))
    site.watch(watched)
    return watched


def _points(asked: Sequence[Any], digest: str, parameter: float | None = None) -> tuple[str, ...]:
    """What a request asks about: each theta, the end of each search, each matrix that came along.

    A theta that only the site's memory completes is one of them; a request in the algorithm's own code too.
    At another value of a parameter that is searched for, theta is another point.
    """
    at = b"" if parameter is None else np.float64(parameter).tobytes()
    found, searches = list[bytes](), list[bytes]()
    for part in asked:
        if isinstance(part, Search):
            searches.append(encode(part))
            found.append((part.theta + part.direction).tobytes())
        arrays = (getattr(part, name) for name in getattr(part, "__struct_fields__", ()) if name in FREE)
        found += [value.tobytes() for value in arrays if value is not None]
    named = [digest] * (not found) + [SEARCH + name for name in digests(searches)]
    anchors = (getattr(getattr(part, "whole", None), "anchor", None) for part in asked)
    found += [anchor.tobytes() for anchor in anchors if anchor is not None]  # of what an agent lost
    return tuple(dict.fromkeys([*digests([one + at for one in found]), *named]))


def _kind(request: Request) -> str:
    """How a record calls a request of a fit: what is asked once, or a few times, is told apart."""
    names = {type(part).__name__ for part in request.parts}
    return next((kind for kind in BESIDE if kind in names), "Play")


def _digest(value: Any) -> str:
    return sha256(encode(value)).hexdigest()


def _kinds(parts: Sequence[Message]) -> str:
    return "+".join(type(part).__name__ for part in parts)
