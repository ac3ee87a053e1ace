"""Flower carries the bytes: a transport over its Grid at the Master, a ClientApp around the node at a site.

Flower starts a process for each message, so a node keeps its table and cache on the site's disk; its clients'
state, strategies and aggregation are not used.  A site is known by the name its key was registered under.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise ImportError("the Flower transport needs flwr: pip install 'fedshed[flower]'") from None

log = logging.getLogger("fedshed")
PAUSE = 0.1  # seconds between two looks for replies
KIND = "query"  # of Flower's three kinds of message


class Flower:
    """A transport over a Flower Grid; replies that miss the deadline may come with a later exchange."""

    stateless = True

    def __init__(self, grid: Grid, deadline: float) -> None:
        self._grid, self._deadline = grid, deadline
        self._pending: dict[str, str] = {}  # the site asked, by the id of the message

    def agents(self) -> Sequence[str]:
        """Names of the sites that are connected."""
        return sorted(self._nodes())

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Push a message to each site, and pull until all have answered or the deadline has passed."""
        nodes = self._nodes()
        asked = [site for site in payloads if site in nodes]
        messages = [packed(payloads[site], dst_node_id=nodes[site]) for site in asked]
        ids = list(self._grid.push_messages(messages)) if messages else []
        waiting = {i for i in ids if i}
        self._pending |= {i: site for i, site in zip(ids, asked, strict=True) if i}
        replies, until = list[tuple[str, bytes]](), time.monotonic() + self._deadline
        while waiting & self._pending.keys() and time.monotonic() < until:
            replies += self._arrived()
            if waiting & self._pending.keys():
                time.sleep(PAUSE)
        return replies

    def _arrived(self) -> Iterator[tuple[str, bytes]]:
        """What has come since the last look; an error is told and otherwise silence."""
        for reply in self._grid.pull_messages(list(self._pending)):
            site = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if site is None:
                continue
            if reply.has_error():
                log.warning("site %s: %s", site, reply.error.reason)
            else:
                yield site, payload(reply)

    def _nodes(self) -> dict[str, int]:
        """The node of each site's name, as registered with its key."""
        return {node.name: node.node_id for node in self._grid.get_nodes() if node.name}


def packed(data: bytes, **where: object) -> Message:
    """A message that holds these bytes, in one object."""
    return Message(RecordDict({"fedshed": ConfigRecord({"payload": data})}), message_type=KIND, **where)


def payload(message: Message) -> bytes:
    """The bytes of a message; none of one that is not ours, which its reader then refuses."""
    record = message.content.config_records.get("fedshed", {})
    data = record.get("payload")
    return data if isinstance(data, bytes) else b""


client_app = ClientApp()


@client_app.query()
def answer(message: Message, context: Context) -> Message:
    """One message at a site: the node of the site.toml that the SuperNode's configuration names."""
    from fedshed.deployment.node import Node

    node = Node.at(str(context.node_config["site"]), keep=True)
    content = RecordDict({"fedshed": ConfigRecord({"payload": node.handle(payload(message))})})
    return Message(content, reply_to=message)


server_app = ServerApp()


@server_app.main()
def conduct(grid: Grid, context: Context) -> None:
    """The whole study, at the Master."""
    from fedshed.deployment.master import serve

    serve(Path(os.environ["FEDSHED_MASTER"]), lambda study: Flower(grid, study.deadline))
