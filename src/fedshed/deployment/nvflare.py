"""NVFlare carries the bytes: a transport over its Collab calls at the Master, a published method at a site.

A site's process lives as long as the job, so its node keeps the table and the cache in memory.  The job holds
no code: sites allow the two classes below by name and run those of their own installation.  A site is known
by the name in its certificate.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    from nvflare.collab import collab
except ImportError:
    raise ImportError("the NVFlare transport needs nvflare: pip install 'fedshed[nvflare]'") from None

from fedshed.deployment.node import Node

log = logging.getLogger("fedshed")


class NVFlare:
    """A transport over the clients of a running job, as NVFlare's facade shows them."""

    stateless = False

    def __init__(self, job: Any, deadline: float) -> None:
        self._job, self._deadline = job, deadline

    def agents(self) -> Sequence[str]:
        """Names of the sites that take part in the job."""
        return sorted(client.name for client in self._job.clients)

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Call every site with its own payload, all at once; those that miss the deadline are absent."""
        calls = {site: self._call(site, payload) for site, payload in payloads.items()}
        given = [(site, data) for site, results in calls.items() for _, data in results]
        replies = [(site, data if isinstance(data, bytes) else b"") for site, data in given]
        for site, results in calls.items():
            for error in results.failures.values():
                log.warning("site %s: %s", site, error)
        return replies

    def _call(self, site: str, payload: bytes) -> Any:
        """A call that does not wait: its results can be iterated over once they are there."""
        return self._job.get_clients([site])(blocking=False, timeout=self._deadline).handle(payload)


class Master:
    """The component at the server: the whole study, from the files in its workspace."""

    @collab.main
    def run(self) -> None:
        """Conduct the study."""
        from fedshed.deployment.master import serve

        folder = Path(collab.workspace.get_root_dir())
        serve(folder, lambda study: NVFlare(collab, study.deadline))


class Agent:
    """The component at a site: its node, made from the site.toml in the workspace when it is first called."""

    def __init__(self) -> None:
        self._node: Node | None = None

    @collab.publish
    def handle(self, payload: bytes) -> bytes:
        """The reply to an envelope."""
        if self._node is None:
            self._node = Node.at(Path(collab.workspace.get_root_dir()) / "site.toml")
        return self._node.handle(payload)
