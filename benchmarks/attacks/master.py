"""A Master that is curious, or worse: it speaks the protocol, and counts what it asks and is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from benchmarks.attacks.shape import Found
from benchmarks.attacks.target import SITE, named
from fedshed._utils.errors import CodecError, Error
from fedshed.algorithms import build
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.deployment.config import StudyFile
from fedshed.exchange import Transport
from fedshed.exchange.sites import Sites, Stage
from fedshed.fitting.sites import HostedTables
from fedshed.preparation import DesignPlan, Study
from fedshed.preparation.messages import CODEC, Ready, Refused
from fedshed.preparation.protocol import negotiate
from fedshed.privacy.policy import scalars
from fedshed.protocol.codec import Codec, codec_of
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Declined, Message
from fedshed.solve.stages import fit_stage

RUN = b"none"
Twist: TypeAlias = Callable[[str, Any], Any]  # of a site's answer


class DeniedError(Exception):
    """A site did not answer."""


class Said(Struct, frozen=True):
    """One answer: in which stage, who, to what, and what."""

    stage: int  # -1: the preparation
    site: str
    asked: Any
    answer: Any


class Ear:
    """What has been asked and answered so far."""

    def __init__(self) -> None:
        self.requests = self.numbers = 0
        self.said: list[Said] = []

    def found(self, rows: int, recovered: int) -> Found:
        """What an attack found, at the cost so far."""
        return Found(rows, recovered, self.requests, self.numbers)


class Overheard:
    """A transport that keeps what is asked and answered through it; `twist` may change an answer."""

    def __init__(
        self,
        inner: Transport,
        codec: Codec,
        stage: int,
        ear: Ear,
        twist: Twist | None = None,
    ) -> None:
        self._inner, self._codec, self._stage, self._ear, self._twist = inner, codec, stage, ear, twist
        self.stateless = inner.stateless

    def agents(self) -> Sequence[str]:
        """Names of the sites."""
        return self._inner.agents()

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """One exchange; every site asked is a request."""
        self._ear.requests += len(payloads)
        return [
            (site, self._heard(site, payloads[site], data)) for site, data in self._inner.exchange(payloads)
        ]

    def _heard(self, site: str, payload: bytes, data: bytes) -> bytes:
        try:
            reply, asked = self._codec.decode_reply(data), self._codec.decode_request(payload).located
        except CodecError:
            return data
        self._ear.numbers += sum(map(scalars, reply.parts))
        pairs = zip(asked, reply.parts, strict=False)
        self._ear.said += [Said(self._stage, site, one, answer) for one, answer in pairs]
        if self._twist is None:
            return data
        return self._codec.encode_reply(_with_parts(reply, [self._twist(site, part) for part in reply.parts]))


def _with_parts(reply: Any, parts: list[Any]) -> Any:
    return type(reply)(reply.run, reply.number, reply.hessians, parts)


class Tables(HostedTables):
    """Tables at hosts, with an ear at every conversation."""

    def __init__(
        self, transport: Transport, names: Sequence[str], ear: Ear, file: StudyFile | None,
        twist: Twist | None = None,
    ) -> None:  # fmt: skip
        super().__init__(transport, names, named(file))
        self._ear, self._twist = ear, twist

    def prepare(self) -> AbstractContextManager[Transport]:
        """The stage of the preparation."""
        with super().prepare() as inner:
            return nullcontext(Overheard(inner, CODEC, -1, self._ear, self._twist))

    def play(self, plan: DesignPlan, problem: Problem, algorithm: AnyAlgorithm) -> Sites:
        """The stage of the fit."""
        contrasts = problem.n // len(plan.coefficients)
        return _Sites(super().play(plan, problem, algorithm), problem.n, contrasts, self._ear, self._twist)


class _Sites:
    def __init__(self, inner: Sites, n: int, null: int, ear: Ear, twist: Any) -> None:
        self._inner, self._n, self._null, self._ear, self._twist = inner, n, null, ear, twist

    def open(self, stage: Stage) -> AbstractContextManager[Transport]:
        """A part of the stage, overheard."""
        codec = codec_of(stage.conversation, self._null if stage.null else self._n)
        with self._inner.open(stage) as inner:
            return nullcontext(Overheard(inner, codec, stage.number, self._ear, self._twist))


class Master:
    """Asks one site what it likes, under the name of a study that the site may have approved, or of none."""

    def __init__(self, transport: Transport, file: StudyFile | None, ear: Ear | None = None) -> None:
        self.ear, self._site = ear or Ear(), SITE
        self._tables = Tables(transport, (SITE,), self.ear, file)

    def agree(self, study: Study) -> tuple[DesignPlan, Ready]:
        """The plan of a study, as an honest Master comes by it."""
        try:
            with self._tables.prepare() as transport:
                plan, ready, _ = negotiate(study, transport, (self._site,), patience=1)
        except Error as error:
            raise DeniedError(str(error)) from error
        return plan, ready[self._site]

    def prepare(self, part: Message) -> Any:
        """The answer to one request of the preparation."""
        with self._tables.prepare() as transport:
            return self._asked(transport, CODEC, [part])[0]

    def play(self, plan: DesignPlan, algorithm: str | AnyAlgorithm) -> Played:
        """The fit of a plan, in which any point may be asked for."""
        return Played(self, plan, build(algorithm) if isinstance(algorithm, str) else algorithm)

    def _asked(self, transport: Transport, codec: Codec, parts: Sequence[Message]) -> list[Any]:
        common = codec.encode_common(RUN, self.ear.requests + 1, parts)
        try:
            replies = list(transport.exchange({self._site: codec.encode_request(common, None)}))
            answers = codec.decode_reply(replies[0][1]).parts if replies else []
        except Error as error:
            raise DeniedError(str(error)) from error
        if not answers or isinstance(answers[0], Refused | Declined):
            raise DeniedError(str(answers))
        return answers


class Played:
    """A stage of the fit."""

    def __init__(self, master: Master, plan: DesignPlan, algorithm: AnyAlgorithm) -> None:
        n = len(plan.coefficients)
        problem = Problem(np.zeros(n), {master._site: 1.0}, plan.study.loss, plan.coefficients)
        self._master, self._stage = master, fit_stage(algorithm)
        self._sites, self._codec = master._tables.play(plan, problem, algorithm), codec_of(algorithm, n)

    def ask(self, *parts: Message) -> list[Any]:
        """The answers to the parts of one request; DeniedError if there are none."""
        with self._sites.open(self._stage) as transport:
            return self._master._asked(transport, self._codec, parts)
