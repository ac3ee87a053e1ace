"""A site as a process of its own: `python -m fedshed.exchange.agent FOLDER`.

The folder holds the site's card and rows, which never leave it.  The process connects to the Master, answers,
and connects again when the connection is lost; it ends when its standard input does, so no site outlives
whoever started it.  It keeps nothing: killed and started again it is the same site.
"""

from __future__ import annotations

import io
import os
import select
import socket
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from threadpoolctl import threadpool_limits

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed._utils.files import write_atomically
from fedshed.exchange import frames
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.linalg.tall import Tall
from fedshed.objectives import LinearModel
from fedshed.objectives.build import LOSSES
from fedshed.privacy.audit import Audit
from fedshed.privacy.policy import Gate, Policy
from fedshed.protocol.codec import Decoder, raw
from fedshed.protocol.conversation import Conversation

PACKAGE = "fedshed"
RETRY_SECONDS = 0.05
TALL = "X.npy"  # the rows of a table that is not to be in memory


class Card(Struct, frozen=True):
    """Who a site is, where it finds the Master, what it computes, and what it lets out."""

    name: str
    token: bytes
    address: str  # the file with the Master's host and port
    loss: str
    kind: tuple[str, str]  # the module and the name of what it takes part in
    algorithm: msgspec.Raw
    policy: Policy | None = None
    study: str = ""


def write_site(
    folder: str | Path, site: Site, token: bytes, address: str | Path, policy: Policy | None = None,
    study: str = "",
) -> None:  # fmt: skip
    """A site's card and rows as files, without pickle."""
    model: Any = site.objective
    loss = next((name for name, kind in LOSSES.items() if kind is type(model)), None)
    if loss is None:
        raise ConfigError(f"site {site.name!r}: {type(model).__name__} is not one of {sorted(LOSSES)}")
    kind = (type(site.conversation).__module__, type(site.conversation).__qualname__)
    if not kind[0].startswith(f"{PACKAGE}."):
        raise ConfigError(f"site processes need one of fedshed's own algorithms, not {kind[0]}.{kind[1]}")
    place = str(Path(address).resolve())
    card = Card(site.name, token, place, loss, kind, raw(site.conversation), policy, study)
    rows = io.BytesIO()
    np.savez(rows, **_as_arrays(model))
    write_atomically(Path(folder) / "rows.npz", rows.getvalue(), private=True)
    (Path(folder) / TALL).unlink(missing_ok=True)
    if isinstance(model.X, Tall):
        _write_tall(Path(folder) / TALL, model.X)
    write_atomically(Path(folder) / "card", msgspec.msgpack.encode(card), private=True)


def read_site(folder: str | Path) -> tuple[Card, Site | Guarded]:
    """The site of a folder."""
    card = msgspec.msgpack.decode((Path(folder) / "card").read_bytes(), type=Card)
    with np.load(Path(folder) / "rows.npz", allow_pickle=False) as arrays:
        model = _from_arrays(LOSSES[card.loss], {**_read_tall(Path(folder) / TALL), **arrays})
    site = Site(card.name, model, Decoder(_kind(*card.kind), model.dim)(bytes(card.algorithm)))
    if card.policy is None:
        return card, site
    return card, Guarded(site, Gate(card.policy, Audit(Path(folder) / "audit.jsonl"), card.study))


def _kind(module: str, name: str) -> type[Conversation]:
    """The class of an algorithm of this package, as the card names it."""
    found = getattr(import_module(module), name) if module.startswith(f"{PACKAGE}.") else None
    if not (isinstance(found, type) and issubclass(found, Conversation)):
        raise ConfigError(f"{module}.{name} is not one of fedshed's own algorithms")
    return found


def _as_arrays(model: Any) -> dict[str, Any]:
    X, rest = model.X, {name: getattr(model, name, None) for name in ("y", "weights", "offset", "classes")}
    if isinstance(X, np.ndarray):
        rest["X"] = X
    elif not isinstance(X, Tall):
        rest |= {name: getattr(X, name) for name in ("data", "indices", "indptr", "shape")}
    return {name: value for name, value in rest.items() if value is not None}


def _write_tall(path: Path, X: Tall) -> None:
    """A table that may be larger than memory, block by block, for the owner alone.

    By rows or by columns as its blocks are: a product in another order ends in other bits.
    """
    by_columns = not X[:2].flags.c_contiguous
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    copy = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float64, shape=X.shape, fortran_order=by_columns
    )
    for part, block in X.blocks():
        copy[part] = block
    copy.flush()


def _read_tall(path: Path) -> dict[str, Any]:
    return {"X": Tall(np.load(path, mmap_mode="r", allow_pickle=False))} if path.exists() else {}


def _from_arrays(kind: type[LinearModel], arrays: dict[str, Any]) -> LinearModel:
    from scipy.sparse import csr_array

    if (X := arrays.get("X")) is None:
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        X = csr_array(parts, shape=tuple(arrays["shape"]))
    more: dict[str, Any] = {"classes": int(arrays["classes"])} if "classes" in arrays else {}
    return kind(X, arrays["y"], arrays.get("weights"), arrays.get("offset"), **more)


def serve(site: Site | Guarded, card: Card, connection: socket.socket) -> None:
    """Answer the newest request, again and again; those that were overtaken while it was away are left."""
    hello = msgspec.msgpack.encode((card.name, card.token))
    connection.sendall(frames.frame(0, hello))
    while True:
        number, request = frames.receive(connection)
        while select.select([connection], [], [], 0)[0]:
            number, request = frames.receive(connection)
        connection.sendall(frames.frame(number, site.answer(request)))


def run(folder: str | Path) -> None:
    """Connect and serve for ever."""
    card, site = read_site(folder)
    while True:
        try:
            host, port = Path(card.address).read_text().split()
            with socket.create_connection((host, int(port)), timeout=5.0) as connection:
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                serve(site, card, connection)
        except (OSError, ValueError, ProtocolError):
            time.sleep(RETRY_SECONDS)


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    with threadpool_limits(1):
        run(sys.argv[1])
