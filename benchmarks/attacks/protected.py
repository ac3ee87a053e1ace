"""A Master that attacks a protected study: it asks in the open, or puts its requests into the masked sums.

What it is told is about the rows of all sites.  So the attacked rows are those of all three sites together:
each sum is what a single site with all of them would have answered in plain mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_bytes
from typing import Any

from msgspec.structs import replace

from benchmarks.attacks.master import DeniedError, Ear, Master, Played, Said
from benchmarks.attacks.shape import Mode
from benchmarks.attacks.target import SITE, Protected, as_protected
from fedshed._utils.errors import Error
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.deployment.config import StudyFile
from fedshed.exchange import Transport
from fedshed.exchange.sums import ALL
from fedshed.fitting.all_sites import PREPARATION
from fedshed.fitting.protected_study import MaskedTables, study_of
from fedshed.fitting.stages import PROTOCOL, RUN, Protect, StageSession
from fedshed.preparation import DesignPlan, Study
from fedshed.preparation.messages import Describe, Ready
from fedshed.preparation.protocol import negotiate
from fedshed.privacy.policy import scalars
from fedshed.protected.stores import MemoryStore
from fedshed.protocol.messages import Message
from fedshed.solve.stages import FIT


class AnsweredError(Exception):
    """The sites have answered what does not belong to the study."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__("a request of the Master's own was answered")
        self.parts = parts


class Sums(MaskedTables):
    """A new run of a protected study as the Master plays it, with an ear at the opened sums.

    With `instead`, these parts are asked in place of the first request of a conversation that is of their
    kind or of the fit: as like to the honest request as they can be.
    """

    def __init__(
        self, transport: Protected, ear: Ear, label: int | None = None, instead: Sequence[Any] = ()
    ) -> None:
        terms, run = transport.file.terms, token_bytes(RUN)
        session = StageSession(transport, terms.digest + run, Protect(PROTOCOL, terms))
        super().__init__(
            session.part(), terms.roster, terms.digest, run, terms.least, MemoryStore(),
            terms.most_iterations, session,
        )  # fmt: skip
        self._play, self._ear, self._label, self._instead = study_of(terms), ear, label, list(instead)

    def fit_all(self) -> Any:
        """Play the study to its end."""
        return self._play(self)

    def _summed(self, label: int, payload: bytes) -> bytes:
        codec = self.codec(label)
        request = codec.decode_request(payload)
        deviates = label == self._label and (label == FIT or type(request.parts[0]) is type(self._instead[0]))
        if deviates:
            common = codec.encode_common(request.run, request.number, self._alike(request.parts))
            payload = codec.encode_request(common, request.mine)
        self._ear.requests += len(self._sums.names)
        reply = super()._summed(label, payload)
        answers = codec.decode_reply(reply).parts
        self._ear.numbers += sum(map(scalars, answers))
        asked = codec.decode_request(payload).located
        pairs = zip(asked, answers, strict=True)
        self._ear.said += [Said(label, SITE, one, answer) for one, answer in pairs]
        if deviates:
            raise AnsweredError(answers)
        return reply

    def _alike(self, honest: Sequence[Any]) -> list[Any]:
        """The attack's parts, with the number of the iteration that the honest ones have."""
        first, count = self._instead[0], getattr(honest[0], "t", None)
        return [first if count is None or not hasattr(first, "t") else replace(first, t=count)]


class ProtectedMaster:
    """Asks all sites of a protected study what it likes, as `Master` asks one site of any other."""

    def __init__(self, transport: Protected, ear: Ear | None = None) -> None:
        self.ear, self._transport = ear or Ear(), transport
        self._openly = Master(transport, transport.file, self.ear)

    def agree(self, study: Study) -> tuple[DesignPlan, Ready]:
        """The plan of the approved study, as an honest Master comes by it; any other is described first."""
        approved = self._transport.file.study
        if as_protected(study) != approved:
            self.prepare(Describe(study))
        tables = Sums(self._transport, self.ear)
        try:
            with tables.prepare() as transport:
                plan, ready, _ = negotiate(approved, transport, (ALL,), patience=1)
        except Error as error:
            raise DeniedError(str(error)) from error
        return plan, ready[ALL]

    def prepare(self, part: Message) -> Any:
        """The answer of one site, or of all, to one request of the preparation."""
        try:
            return self._openly.prepare(part)
        except DeniedError:
            return self.instead(PREPARATION, part)[0]

    def play(self, plan: DesignPlan, algorithm: str | AnyAlgorithm) -> ProtectedPlay:
        """The fit of a plan, in which any point may be asked for."""
        return ProtectedPlay(self, self._openly.play(plan, algorithm))

    def instead(self, label: int, *parts: Message) -> list[Any]:
        """The answers to parts that are asked in place of honest ones, in a run of their own."""
        try:
            Sums(self._transport, self.ear, label, parts).fit_all()
        except AnsweredError as found:
            return found.parts
        except Error as error:
            raise DeniedError(str(error)) from error
        raise DeniedError("the study came to its end without such a request")


class ProtectedPlay:
    """A stage of the fit, in the open or within the masked sums."""

    def __init__(self, master: ProtectedMaster, openly: Played) -> None:
        self._master, self._openly = master, openly

    def ask(self, *parts: Message) -> list[Any]:
        """The answers to the parts of one request; DeniedError if there are none."""
        try:
            return self._openly.ask(*parts)
        except DeniedError:
            return self._master.instead(FIT, *parts)


def master_of(mode: Mode, transport: Transport, file: StudyFile | None, ear: Ear | None = None) -> Any:
    """The Master of a mode."""
    if mode == "protected":
        assert isinstance(transport, Protected)
        return ProtectedMaster(transport, ear)
    return Master(transport, file, ear)
