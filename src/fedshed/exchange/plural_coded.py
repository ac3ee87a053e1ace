"""Many sites of one process whose replies are lossy: each answers for itself, and all are coded together.

`Site.handle` stays the reference: the bytes are the same, and so is what each site remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedshed._utils.errors import Error
from fedshed.exchange.site import Site, UnanswerableError
from fedshed.protocol.codec import Reply, Request
from fedshed.protocol.coded_replies import encode_together, heard


def coded_replies(sites: Sequence[Site], payloads: Sequence[bytes]) -> list[bytes]:
    """The replies of sites of one conversation and codec to requests that differ in their own parts."""
    try:
        requests = [site.codec.decode_request(payload) for site, payload in zip(sites, payloads, strict=True)]
        if all(request.located is requests[0].located for request in requests):
            return _together(sites, requests, payloads)
    except Error:  # no cache has changed; whose error it is, its own call says
        pass
    return [site.handle(payload) for site, payload in zip(sites, payloads, strict=True)]


def _together(sites: Sequence[Site], requests: Sequence[Request], payloads: Sequence[bytes]) -> list[bytes]:
    found = [_replied(*each) for each in zip(sites, requests, payloads, strict=True)]
    answered = [place for place, one in enumerate(found) if not isinstance(one, bytes)]
    pairs: list[tuple[Reply, Any]] = [one for one in found if not isinstance(one, bytes)]
    precision = sites[0].conversation.precision
    coded, parts = encode_together([reply for reply, _ in pairs], precision, requests[0].accuracy)
    replies = [one if isinstance(one, bytes) else b"" for one in found]
    caches = [
        _heard(sites[place], reply, cache, data, fields)
        for place, (reply, cache), data, fields in zip(answered, pairs, coded, parts, strict=True)
    ]
    for place, data, cache in zip(answered, coded, caches, strict=True):
        replies[place] = data
        sites[place].keep(cache)
    return replies


def _replied(site: Site, request: Request, payload: bytes) -> tuple[Reply, Any] | bytes:
    """The reply and the cache after it; bytes where the site declines."""
    try:
        return site.replied(request)
    except UnanswerableError as error:
        return site.declined(payload, str(error))


def _heard(site: Site, reply: Reply, cache: Any, data: bytes, parts: list[list[Any]]) -> Any:
    """The cache after the site has seen what the Master sees: only what it looks at is decoded."""
    talk = site.conversation
    if not site.listens or reply.forgot:
        return cache
    if talk.hears is None:
        seen = site.codec.decode_reply(data).parts
    else:
        each = zip(reply.parts, parts, strict=True)
        seen = [heard(*pair, talk.hears, talk.precision, site.objective.dim) for pair in each]
    for answer in seen:
        cache = talk.sent(cache, answer)
    return cache
