"""NVFlare carries the bytes: a transport over its Collab calls at the Master, a published method at a site.

A site's process lives as long as the job, so its node keeps the table and the cache in memory.  The job holds
no code: sites allow the two classes below by name and run those of their own installation.  A site is known
by the name in its certificate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

try:
    from nvflare.collab import collab
except ImportError:
    raise ImportError("the NVFlare transport needs nvflare: pip install 'fedshed[nvflare]'") from None

from fedshed.deployment.backoff import Backoff
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
        """Call every site with its own payload, all at once; those that miss the deadline are absent.

        A call that fails is repeated after a pause: the site may be back before the deadline.
        """
        replies, backoff = list[tuple[str, bytes]](), Backoff(payloads, self._deadline)
        waiting: dict[Future[list[Any]], tuple[str, Any]] = {}
        with ThreadPoolExecutor(len(payloads) + 1) as pool:
            while backoff.open or waiting:
                for site in backoff.due():
                    results = self._call(site, payloads[site], backoff.left)
                    waiting[pool.submit(list, results)] = site, results
                for done in _completed(waiting, backoff):
                    site, results = waiting.pop(done)
                    replies += _bytes(site, done.result())
                    if _failed(site, results):
                        backoff.failed(site)
        return replies

    def _call(self, site: str, payload: bytes, seconds: float) -> Any:
        """A call that does not wait: its results can be iterated over once they are there."""
        return self._job.get_clients([site])(blocking=False, timeout=seconds).handle(payload)


def _completed(waiting: Mapping[Future[list[Any]], Any], backoff: Backoff) -> Iterable[Future[list[Any]]]:
    """Wait for a call to end or for the next to be due; a call itself ends by the deadline."""
    if not waiting:
        time.sleep(backoff.seconds())
        return ()
    return wait(waiting, backoff.seconds() if backoff.open else None, FIRST_COMPLETED).done


def _bytes(site: str, results: list[Any]) -> Iterator[tuple[str, bytes]]:
    for _, data in results:
        yield site, data if isinstance(data, bytes) else b""


def _failed(site: str, results: Any) -> bool:
    """Whether a call brought no answer; why is written to the log."""
    for error in results.failures.values():
        log.warning("site %s: %s", site, error)
    return bool(results.failures)


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
