"""A site as files, without pickle: what it takes part in, its rows, and what it lets out."""

from __future__ import annotations

import io
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import write_atomically
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.linalg.tall import Tall
from fedshed.objectives import LinearModel
from fedshed.objectives.families import FAMILIES, family_of
from fedshed.privacy.audit import Audit
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import Decoder, raw
from fedshed.protocol.conversation import Conversation

PACKAGE = "fedshed"
TALL = "X.npy"  # the rows of a table that is not to be in memory


class SiteCard(Struct, frozen=True):
    """What a site computes, and what it lets out."""

    name: str
    loss: str
    kind: tuple[str, str]  # the module and the name of what it takes part in
    conversation: msgspec.Raw
    policy: Policy | None = None
    study: str = ""


def write_site(folder: Path, site: Site, policy: Policy | None = None, study: str = "") -> None:
    """A site's card and rows."""
    model: Any = site.objective
    loss, kind = loss_of(site), kind_of(site.conversation)
    rows = io.BytesIO()
    np.savez(rows, **arrays_of(model))
    write_atomically(folder / "rows.npz", rows.getvalue())
    (folder / TALL).unlink(missing_ok=True)
    if isinstance(model.X, Tall):
        _write_tall(folder / TALL, model.X)
    card = SiteCard(site.name, loss, kind, raw(site.conversation), policy, study)
    write_atomically(folder / "card", msgspec.msgpack.encode(card))


def read_site(folder: Path) -> Site | Guarded:
    """The site of a folder."""
    card = msgspec.msgpack.decode((folder / "card").read_bytes(), type=SiteCard)
    with np.load(folder / "rows.npz", allow_pickle=False) as arrays:
        model = model_of(card.loss, {**_read_tall(folder / TALL), **arrays})
    site = Site(card.name, model, conversation_of(card.kind, card.conversation, model.dim))
    if card.policy is None:
        return site
    return Guarded(site, Gate(card.policy, Audit(folder / "audit.jsonl"), card.study))


def loss_of(site: Site) -> str:
    """The name of the loss that a site's model has."""
    model: Any = site.objective
    named = (name for name, family in FAMILIES.items() if family.objective is type(model))
    loss = getattr(model, "loss", None) or next(named, None)
    if loss is None:
        raise ConfigError(f"site {site.name!r}: {type(model).__name__} is not one of {sorted(FAMILIES)}")
    return str(loss)


def kind_of(conversation: Conversation) -> tuple[str, str]:
    """The module and the name of an algorithm of this package, by which another process finds it."""
    kind = (type(conversation).__module__, type(conversation).__qualname__)
    if not kind[0].startswith(f"{PACKAGE}."):
        raise ConfigError(f"site processes need one of fedshed's own algorithms, not {kind[0]}.{kind[1]}")
    return kind


def conversation_of(kind: tuple[str, str], encoded: msgspec.Raw, n: int) -> Conversation:
    """The algorithm that another process described."""
    module, name = kind
    found = getattr(import_module(module), name) if module.startswith(f"{PACKAGE}.") else None
    if not (isinstance(found, type) and issubclass(found, Conversation)):
        raise ConfigError(f"{module}.{name} is not one of fedshed's own algorithms")
    conversation: Conversation = Decoder(found, n)(bytes(encoded))
    return conversation


def arrays_of(model: Any) -> dict[str, Any]:
    """The arrays that a model is made of; but for the rows of a table that is not to be in memory."""
    X, rest = model.X, {name: getattr(model, name, None) for name in ("y", "weights", "offset", "classes")}
    if isinstance(X, np.ndarray):
        rest["X"] = X
    elif not isinstance(X, Tall):
        rest |= {name: getattr(X, name) for name in ("data", "indices", "indptr", "shape")}
    return {name: value for name, value in rest.items() if value is not None}


def lies_by_columns(X: Tall) -> bool:
    """Whether the blocks of a table are in memory column by column."""
    return not X[:2].flags.c_contiguous


def _write_tall(path: Path, X: Tall) -> None:
    """A table that may be larger than memory, block by block, for the owner alone.

    By rows or by columns as its blocks are: a product in another order ends in other bits.
    """
    by_columns = lies_by_columns(X)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    copy = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float64, shape=X.shape, fortran_order=by_columns
    )
    for part, block in X.blocks():
        copy[part] = block
    copy.flush()


def _read_tall(path: Path) -> dict[str, Any]:
    return {"X": Tall(np.load(path, mmap_mode="r", allow_pickle=False))} if path.exists() else {}


def model_of(loss: str, arrays: dict[str, Any]) -> LinearModel:
    """The model of a loss with these arrays."""
    from scipy.sparse import csr_array

    if (X := arrays.get("X")) is None:
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        X = csr_array(parts, shape=tuple(arrays["shape"]))
    more: dict[str, Any] = {"classes": int(arrays["classes"])} if "classes" in arrays else {}
    return family_of(loss).objective(X, arrays["y"], arrays.get("weights"), arrays.get("offset"), **more)
