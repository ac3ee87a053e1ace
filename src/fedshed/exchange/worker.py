"""A worker: thousands of sites in one process, which one call asks and one piece of bytes answers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from threadpoolctl import ThreadpoolController

from fedshed._utils.errors import Error
from fedshed.exchange.bundles import Packed, Packer, pack_error, unpack_requests
from fedshed.exchange.inprocess import answer_in_batches
from fedshed.exchange.site import Site
from fedshed.exchange.site_arrays import Array, unpack_sites

_CACHES = msgspec.msgpack.Decoder(list[bytes])


class Worker:
    """A process that hosts sites built from their description and arrays; all it keeps can be built again."""

    def __init__(self) -> None:
        import scipy.linalg  # noqa: F401  brings threads of its own

        self._threads = ThreadpoolController()
        self._sites: dict[str, Site] = {}

    def host(self, shipment: tuple[bytes, Mapping[str, Array]], saved: bytes = b"") -> Packed:
        """Build sites in the place of those it had, which remember what was saved; it has nothing to say."""
        self._sites = unpack_sites(*shipment)
        if saved:
            for site, cache in zip(self._sites.values(), _CACHES.decode(saved), strict=True):
                site.load(cache)
        return b"", []

    def answer(self, bundle: bytes, save: bool = False) -> tuple[Packed, bytes]:
        """The replies of all sites that are asked, and what all sites remember if that is to be saved.

        One BLAS thread, for the same bits anywhere.  What has not changed is not saved.
        """
        payloads = unpack_requests(bundle, tuple(self._sites))
        before = [site.cache for site in self._sites.values()]
        packer = Packer()
        try:
            with self._threads.limit(limits=1):
                for _, replies in answer_in_batches(self._sites, payloads):
                    for reply in replies:
                        packer.add(reply)
        except Error as error:
            return pack_error(error), b""
        changed = any(site.cache is not old for site, old in zip(self._sites.values(), before, strict=True))
        saved = self._save() if save and changed else b""
        return packer.packed(changed, bool(saved)), saved

    def _save(self) -> bytes:
        return msgspec.msgpack.encode([site.save() for site in self._sites.values()])
