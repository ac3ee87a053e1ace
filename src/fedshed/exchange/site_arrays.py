"""Many sites as a description and a few large arrays, without pickle: what a worker is built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError
from fedshed._utils.version import __version__
from fedshed.exchange.site import Site
from fedshed.exchange.site_files import (
    arrays_of,
    conversation_of,
    kind_of,
    lies_by_columns,
    loss_of,
    model_of,
)
from fedshed.linalg.tall import Tall
from fedshed.objectives import LinearModel, stacked
from fedshed.objectives.batch import DeviceStack
from fedshed.protocol.codec import codec_of, raw

Array: TypeAlias = NDArray[Any]
NUMBERS = "biuf"  # kinds of arrays that are sent


class Place(Struct, frozen=True, array_like=True):
    """Where an array lies among all of its type: a product in another order would end in other bits."""

    kind: str
    start: int
    shape: tuple[int, ...]
    by_columns: bool = False


class Member(Struct, frozen=True, array_like=True):
    """One site: its loss, where its arrays are, and what else its model has been told.

    A model that was evaluated together with others is so again, and one that was not is not: the rows of a
    stack lie in an order of their own, and so do the bits.
    """

    name: str
    loss: str
    arrays: dict[str, Place]
    together: bool
    tall: bool = False
    least: int = 1
    held: bool = False


class Crew(Struct, frozen=True):
    """The sites of one worker, and the one conversation that all of them take part in."""

    version: str
    kind: tuple[str, str]
    conversation: msgspec.Raw
    members: list[Member]


def pack_sites(sites: Sequence[Site]) -> tuple[bytes, dict[str, Array]]:
    """The description of sites, and all of their arrays: one for each type of number."""
    first = sites[0].conversation
    if any(site.conversation != first for site in sites):
        raise ConfigError("the sites of one worker take part in one conversation")
    flat: dict[str, list[Array]] = {}
    ends: dict[str, int] = {}
    members = [_member(site, flat, ends) for site in sites]
    crew = Crew(__version__, kind_of(first), raw(first), members)
    return msgspec.msgpack.encode(crew), {kind: np.concatenate(parts) for kind, parts in flat.items()}


def unpack_sites(description: bytes, arrays: Mapping[str, Array]) -> dict[str, Site]:
    """The sites again; those of one shape are evaluated together if they were where they came from."""
    crew = msgspec.msgpack.decode(description, type=Crew)
    if crew.version != __version__:
        raise ConfigError(
            f"the worker has fedshed {__version__}, and the process that started it {crew.version}; "
            "install the same version on all machines of the cluster"
        )
    models = {member.name: _model(member, arrays) for member in crew.members}
    models |= stacked({member.name: models[member.name] for member in crew.members if member.together})
    for member in crew.members:
        models[member.name].least, models[member.name].held = member.least, member.held
    n = next(iter(models.values())).dim
    conversation = conversation_of(crew.kind, crew.conversation, n)
    codec = codec_of(conversation, n)
    return {name: Site(name, model, conversation, codec) for name, model in models.items()}


def _member(site: Site, flat: dict[str, list[Array]], ends: dict[str, int]) -> Member:
    """A site's entry; its arrays are appended to those of their type."""
    model: Any = site.objective
    if model.slot is not None and isinstance(model.slot.stack, DeviceStack):
        raise ConfigError(
            f"site {site.name!r} is on a device, but workers compute on CPUs: leave device= out"
        )
    tall = isinstance(model.X, Tall)
    arrays = {**arrays_of(model), **({"X": _whole(model.X)} if tall else {})}
    if model.clusters is not None:
        arrays["clusters"] = model.clusters
    places = {name: _append(site.name, np.asarray(a), flat, ends) for name, a in arrays.items()}
    together = model.slot is not None
    return Member(site.name, loss_of(site), places, together, tall, model.least, model.held)


def _append(site: str, array: Array, flat: dict[str, list[Array]], ends: dict[str, int]) -> Place:
    if array.dtype.kind not in NUMBERS:
        raise ConfigError(f"site {site!r}: an array of {array.dtype} cannot be sent to a worker")
    kind = array.dtype.str
    by_columns = array.ndim == 2 and abs(array.strides[0]) < abs(array.strides[1])
    place = Place(kind, ends.get(kind, 0), array.shape, by_columns)
    flat.setdefault(kind, []).append(array.ravel(order="F" if by_columns else "C"))
    ends[kind] = place.start + array.size
    return place


def _whole(X: Tall) -> Array:
    """A tall table in memory, in the order in which its blocks are."""
    whole = np.empty(X.shape, order="F" if lies_by_columns(X) else "C")
    for part, block in X.blocks():
        whole[part] = block
    return whole


def _model(member: Member, arrays: Mapping[str, Array]) -> LinearModel:
    found: dict[str, Any] = {name: _place(place, arrays) for name, place in member.arrays.items()}
    clusters = found.pop("clusters", None)
    if member.tall:
        found["X"] = Tall(found["X"])
    model = model_of(member.loss, found)
    model.clusters = clusters
    return model


def _place(place: Place, arrays: Mapping[str, Array]) -> Array:
    size = int(np.prod(place.shape))
    part = arrays[place.kind][place.start : place.start + size]
    return part.reshape(place.shape, order="F" if place.by_columns else "C")
