"""Flower carries the bytes: a transport over its Grid at the Master, a ClientApp around the node at a site.

A node keeps its table and cache on the site's disk too, where a site that is started again finds them.
Flower's apps, clients' state, strategies and aggregation are not used (flower_runtime.py).  A site is known
by its key and name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

try:
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError:
    raise ImportError("the Flower transport needs flwr: pip install 'fedshed[flower]'") from None

from fedshed.deployment.backoff import Backoff

if TYPE_CHECKING:
    from fedshed.deployment.node import Node

log = logging.getLogger("fedshed")
PAUSE = 0.1  # seconds between two looks for replies
KIND = "query"  # of Flower's three kinds of message


class Flower:
    """A transport over a Flower Grid; replies that miss the deadline may come with a later exchange."""

    stateless = True

    def __init__(self, grid: Grid, deadline: float, keys: Mapping[str, bytes] | None = None) -> None:
        self._grid, self._deadline, self._keys = grid, deadline, keys
        self._pending: dict[str, str] = {}  # the site asked, by the id of the message

    def agents(self) -> Sequence[str]:
        """Names of the sites that are connected."""
        return sorted(self._nodes())

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Push a message to each site, and pull until all have answered or the deadline has passed.

        A site that is not connected, or answers with an error, is asked again after a pause.
        """
        replies, backoff = list[tuple[str, bytes]](), Backoff(payloads, self._deadline)
        waiting = set[str]()
        while (backoff.open or waiting & self._pending.keys()) and backoff.left > 0:
            waiting |= self._pushed(backoff, payloads)
            for i, site, data in self._arrived():
                if data is not None:
                    replies.append((site, data))
                elif i in waiting:
                    backoff.failed(site)
            if backoff.open or waiting & self._pending.keys():
                time.sleep(min(PAUSE, backoff.left))
        return replies

    def _pushed(self, backoff: Backoff, payloads: Mapping[str, bytes]) -> set[str]:
        """Send what is due; the ids of the messages that the engine took."""
        due = backoff.due()
        nodes = self._nodes() if due else {}
        asked = [site for site in due if site in nodes]
        messages = [packed(payloads[site], dst_node_id=nodes[site]) for site in asked]
        ids = list(self._grid.push_messages(messages)) if messages else []
        taken = {i: site for i, site in zip(ids, asked, strict=False) if i}  # none of what is too large
        self._pending |= taken
        for site in set(due) - set(taken.values()):
            log.warning("site %s is not connected", site)
            backoff.failed(site)
        return set(taken)

    def _arrived(self) -> Iterator[tuple[str, str, bytes | None]]:
        """The message, the site and its answer, for all that has arrived; an error is only logged."""
        for reply in self._grid.pull_messages(list(self._pending)):
            message = reply.metadata.reply_to_message_id
            site = self._pending.pop(message, None)
            if site is None:
                continue
            if reply.has_error():
                log.warning("site %s: %s", site, reply.error.reason)
            yield message, site, None if reply.has_error() else payload(reply)

    def _nodes(self) -> dict[str, int]:
        """The node of each site's name; with `keys`, only the node that has the site's key."""
        nodes = [node for node in self._grid.get_nodes() if node.name]
        if self._keys is not None:  # anybody who reaches the port can register a node under any name
            nodes = [node for node in nodes if self._keys.get(node.name) == node.public_key]
        return {node.name: node.node_id for node in nodes}


def packed(data: bytes, **where: object) -> Message:
    """A message that holds these bytes, in one object."""
    return Message(RecordDict({"fedshed": ConfigRecord({"payload": data})}), message_type=KIND, **where)


def payload(message: Message) -> bytes:
    """The bytes of a message; none if the message is not ours, and its reader then refuses it."""
    record = message.content.config_records.get("fedshed", {})
    data = record.get("payload")
    return data if isinstance(data, bytes) else b""


class Answering:
    """A site's node, made once, because in a protected study a new one must replay everything."""

    def __init__(self, site: Path) -> None:
        self._site = site
        self._node: Node | None = None

    def replied(self, message: Message) -> Message:
        """The reply to one message."""
        from fedshed.deployment.node import Node

        if self._node is None:
            self._node = Node.at(str(self._site), keep=True)
        data = self._node.handle(payload(message))
        return Message(RecordDict({"fedshed": ConfigRecord({"payload": data})}), reply_to=message)
