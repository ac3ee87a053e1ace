"""A site behind its gate: where it is decided what leaves a site."""

from __future__ import annotations

from collections.abc import Sequence

from fedshed._utils.errors import DisclosureError, Error
from fedshed.exchange.site import Site
from fedshed.privacy.policy import Gate, objections, scalars
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Message


class Guarded:
    """A site behind its gate: over any transport it answers as the site would, or not at all."""

    def __init__(self, site: Site, gate: Gate) -> None:
        self._site, self._gate = site, gate
        self._codec = codec_of(site.conversation, site.objective.dim)
        self._objections = objections(gate.policy, site.objective)

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply, if the policy allows it."""
        what = _kinds(self._codec.decode_request(payload).parts)
        try:
            if self._objections:
                return self._gate.release(what, b"", 0, self._objections)
            reply = self._site.handle(payload)
            parts = self._codec.decode_reply(reply).parts
            return self._gate.release(f"{what} -> {_kinds(parts)}", reply, sum(map(scalars, parts)))
        except DisclosureError as error:
            raise DisclosureError(f"site {self._site.name!r}: {error}") from None

    def answer(self, payload: bytes) -> bytes:
        """The encoded reply, whatever happens: what is refused is declined, with the rule."""
        try:
            return self.handle(payload)
        except Error as error:
            return self._site.declined(payload, str(error))

    def forget(self) -> None:
        """Lose the cache, as a restarted process would; the record stays."""
        self._site.forget()


def _kinds(parts: Sequence[Message]) -> str:
    return "+".join(type(part).__name__ for part in parts)
