"""`fedshed site check`: what a site would send, found out by asking its own node here, with nothing sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, DataError
from fedshed.algorithms.base import Algorithm
from fedshed.deployment import tables
from fedshed.deployment.config import SiteFile, StudyFile, read_site
from fedshed.deployment.envelope import FIT, INSPECT, START, Greeting, Link, Play, Room
from fedshed.deployment.master import chosen, playing, posed
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.exchange.wire import Traffic, Wire
from fedshed.objectives.build import local_objective
from fedshed.preparation import Plan, Study
from fedshed.preparation.agreement import agree
from fedshed.preparation.describe import describe, rarest
from fedshed.preparation.messages import Ready, Schema
from fedshed.privacy.policy import objections
from fedshed.protocol.codec import codec_of, encode
from fedshed.protocol.conversation import Conversation
from fedshed.protocol.messages import Message
from fedshed.solve.inspection import Inspection
from fedshed.solve.null_start import NullStart
from fedshed.tables.frames import Frame


class Item(Struct, frozen=True):
    """One thing that leaves the site."""

    when: str
    what: str
    numbers: int | None
    size: int


class Review(Struct, frozen=True):
    """A site, and what it would let out in a study."""

    name: str
    rows: int
    algorithm: str
    eigenpairs: int | None  # d_t, where the link has a budget and the algorithm follows it
    items: list[Item]
    broken: list[str]  # rules of the site's policy: it would not answer


def review(path: Path, file: StudyFile | None = None, target: str | None = None) -> Review:
    """Play a study's first exchanges with the node of a site's file, alone and in this process."""
    site = read_site(path)
    frame = tables.read(site, path.resolve().parent)
    file = file or StudyFile(Study(family="logistic", target=target or _last(path, frame)), (site.name,))
    if site.name not in file.sites:
        raise ConfigError(f"site {site.name!r} is not one of the study's sites {list(file.sites)}")
    schema, plan, ready, broken = _alone(file.study, site, frame)
    problem = posed(plan, {site.name: ready}, stateless=False)
    sites = dict.fromkeys(file.sites, Greeting(site.name, site.uplink.channel() if site.uplink else None))
    algorithm, why = chosen(file, sites, problem, stateless=False)
    items = [_of_schema(schema), Item("before", "rows used, and their weight", 2, len(encode(ready)))]
    if file.study.standardize:
        count = 3 * len(plan.names)
        items.append(Item("before", "sums of columns, deviations and squares", count, 8 * count))
    if not broken:
        items += _rehearsed(path, site, playing(plan, algorithm), problem, algorithm)
    return Review(site.name, ready.rows, why, _pairs(site, algorithm, problem.n), items, broken)


def _rehearsed(
    path: Path, site: SiteFile, stage: Play, problem: Any, algorithm: Algorithm[Any]
) -> list[Item]:
    """The node's answers; what is only rehearsed goes on no record."""
    with TemporaryDirectory() as aside:
        private = replace(site, audit=str(Path(aside) / "audit.jsonl"), state=str(Path(aside) / "state"))
        alone: dict[str, Any] = {site.name: Node(private, path.resolve().parent)}
        return _played(Room(InProcess(alone), b"here", stage), problem, algorithm)


def _alone(study: Study, site: SiteFile, frame: Any) -> tuple[Schema, Plan, Ready, list[str]]:
    """The plan as it would be if this site were the only one, and the rules of its policy that it breaks."""
    schema = describe(study, Frame(frame))
    plan = agree(study, {site.name: _with_two_classes(study, schema)})
    table, design = plan.build(Frame(frame))
    rows = len(table.y)
    ready = Ready(rows, schema.rows - rows, float(rows), design.names, design.terms)
    objective = local_objective(site.name, table, study.loss, plan.classes, plan.intercept)
    found = site.disclosure.unnameable(rarest(study, Frame(frame), schema), study.target)
    found += objections(site.disclosure, objective, design.names)
    broken = [f"{one.rule}: {one.detail}" for one in found]
    return schema, replace(plan, names=design.names, terms=design.terms), ready, broken


def _played(room: Room, problem: Any, algorithm: Algorithm[Any]) -> list[Item]:
    """The answers to one exchange of each part, field by field."""
    theta = np.zeros(problem.n)
    start, fit, inspect = (_Kept(room.part(k)) for k in (START, FIT, INSPECT))
    Wire(NullStart(), problem, start, Traffic()).play(NullStart().flow(problem))
    Wire(algorithm, problem, fit, Traffic()).play(algorithm.observe(problem, algorithm.start(problem, theta)))
    Wire(Inspection(), problem, inspect, Traffic()).play(Inspection().flow(problem, theta))
    candidates = int(getattr(getattr(algorithm, "line_search", None), "candidates", 0))
    return [
        *_items("before", start, NullStart(), problem.n),
        *_items("each round", fit, algorithm, problem.n),
        Item("each round", "costs along the step", candidates, 8 * candidates),
        *_items("at the end", inspect, Inspection(), problem.n),
    ]


class _Kept:
    """A transport that keeps the payloads of the last exchange."""

    def __init__(self, link: Link) -> None:
        self._link, self.stateless = link, link.stateless
        self.last: Sequence[tuple[str, bytes]] = ()

    def agents(self) -> Sequence[str]:
        return self._link.agents()

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        self.last = list(self._link.exchange(payloads))
        return self.last


def _items(when: str, kept: _Kept, conversation: Conversation, n: int) -> list[Item]:
    ((_, data),) = kept.last
    (answer,) = codec_of(conversation, n).decode_reply(data).parts
    return [Item(when, what, count, 8 * count) for what, count in _numbers(answer)]


def _numbers(message: Message) -> list[tuple[str, int]]:
    """The fields of a message that hold numbers, and how many."""
    found = []
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, Message):
            found += _numbers(value)
        elif isinstance(value, np.ndarray | float):
            found.append((f"{name} ({type(message).__name__})", int(np.size(value))))
    return found


def _of_schema(schema: Schema) -> Item:
    levels = sum(len(field.levels) for field in schema.fields)
    labels = f", the classes {', '.join(map(str, schema.labels))}" if schema.labels else ""
    what = f"names, kinds and missing values of {len(schema.fields)} columns, {levels} levels{labels}"
    return Item("before", what, None, len(encode(schema)))


def _with_two_classes(study: Study, schema: Schema) -> Schema:
    """A site may hold one class of two: another stands for the one that other sites hold."""
    if not study.classified or len(schema.labels) != 1:
        return schema
    (label,) = schema.labels
    return replace(schema, labels=(label, f"not {label}" if isinstance(label, str) else label + 1))


def _pairs(site: SiteFile, algorithm: Algorithm[Any], n: int) -> int | None:
    channel = getattr(algorithm, "channel", None) if site.uplink else None
    return None if channel is None else channel.eigenpairs(1, site.name, 8 * (n + 1))


def _last(path: Path, frame: Any) -> str:
    if len(frame.column_names) < 2:
        raise DataError(
            f"{path}: the table has {len(frame.column_names)} columns; a study needs at least two"
        )
    return str(frame.column_names[-1])
