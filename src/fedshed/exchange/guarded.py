"""A site behind its gate: where it is decided what leaves a site."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from fedshed._utils.errors import DisclosureError, Error
from fedshed.exchange.site import Site
from fedshed.exchange.watched import WatchedModel
from fedshed.objectives import LinearModel
from fedshed.privacy.leverage import Leverage
from fedshed.privacy.points import ForbiddenPointError, PointRules, quadratic
from fedshed.privacy.policy import Gate, Objection, Policy, scalars
from fedshed.privacy.tables import objections
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Message

log = logging.getLogger("fedshed")
LARGE = 0.5  # a leverage that is noted


class Guarded:
    """A site behind its gate: over any transport it answers as the site would, or not at all."""

    watches: ClassVar[bool] = True  # the points that are asked about

    def __init__(
        self, site: Site, gate: Gate, found: Sequence[Objection] = (), ledger: Leverage | None = None
    ) -> None:
        """Behind a gate; `found` is what the policy has against the plan that made the site's rows.

        The stages of a study may share a ledger, in which the leverage of rows is kept.
        """
        self._site, self._gate = site, gate
        self._codec = codec_of(site.conversation, site.objective.dim)
        self._objections = [*objections(gate.policy, site.objective), *found]
        self._watched = _watched(gate.policy, site) if self.watches else None
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
        what = _kinds(self._codec.decode_request(payload).parts)
        try:
            if self._objections:
                return self._gate.release(what, b"", 0, self._objections)
            reply = self._answered(what, payload)
            parts = self._codec.decode_reply(reply).parts
            count = sum(map(scalars, parts))
            leverage = self._entered()
            return self._gate.release(f"{what} -> {_kinds(parts)}", reply, count, leverage=leverage)
        except DisclosureError as error:
            raise DisclosureError(f"site {self._site.name!r}: {error}") from None

    def _answered(self, what: str, payload: bytes) -> bytes:
        """The site's reply; at a point that a rule forbids, none, and the refusal is on record."""
        try:
            return self._site.handle(payload)
        except ForbiddenPointError as error:
            return self._gate.release(what, b"", 0, [error.objection])

    def _entered(self) -> float | None:
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
            return self._site.declined(payload, str(error))

    def forget(self) -> None:
        """Lose the cache, as a restarted process would; the record stays."""
        self._site.forget()


def _watched(policy: Policy, site: Site) -> WatchedModel | None:
    """The site's model, whose points are looked at from now on; all answers of a quadratic one are alike."""
    model = site.objective
    if not isinstance(model, LinearModel) or quadratic(model):
        return None
    watched = WatchedModel(model, PointRules(policy, model))
    site.watch(watched)
    return watched


def _kinds(parts: Sequence[Message]) -> str:
    return "+".join(type(part).__name__ for part in parts)
