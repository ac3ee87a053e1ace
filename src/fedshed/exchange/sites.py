"""Sites that hold the rows of one problem: any conversation about it can be opened with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from fedshed.exchange.inprocess import Handler, InProcess
from fedshed.exchange.site import Site
from fedshed.exchange.transport import Transport, open_transport
from fedshed.objectives import LinearModel
from fedshed.protocol.codec import Codec, codec_of
from fedshed.protocol.conversation import Conversation

Connect: TypeAlias = Callable[[Mapping[str, Any]], Transport]


class Stage(Struct, frozen=True):
    """A conversation of a study: its number, by which both ends know it, and which model it is about."""

    number: int
    conversation: Conversation
    null: bool = False  # about the model without columns
    held: bool = False  # about the rows that were held out


class Sites(Protocol):
    """Where the rows of a problem are."""

    @property
    def stateless(self) -> bool:
        """Whether agents forget everything between two exchanges."""
        ...

    def open(self, stage: Stage) -> AbstractContextManager[Transport]:
        """A transport to sites that take part in a stage; it is closed at the end."""
        ...


class LocalSites:
    """Sites whose objectives are in this process; `connect` makes a transport from what answers for them."""

    def __init__(
        self, objectives: Mapping[str, LinearModel], connect: Connect = InProcess,
        held: Mapping[str, LinearModel] | None = None,
    ) -> None:  # fmt: skip
        self.objectives, self._connect, self._held = objectives, connect, held or {}
        self._open: dict[str, Site] = {}

    @property
    def stateless(self) -> bool:
        """As the transport's class says, before one is opened."""
        made = self._connect
        while isinstance(made, partial):
            made = made.func
        return bool(getattr(made, "stateless", False))

    @property
    def one_process(self) -> bool:
        """Unless a transport stands for others, such as sites that forget."""
        return self._connect is InProcess

    @contextmanager
    def open(self, stage: Stage) -> Iterator[Transport]:
        """One site for each objective, for its null model, or for its rows that were held out."""
        objectives = self._held if stage.held else self.objectives
        models = {i: model.null() if stage.null else model for i, model in objectives.items()}
        codec = codec_of(stage.conversation, next(iter(models.values())).dim)
        self._open = {i: Site(i, model, stage.conversation, codec) for i, model in models.items()}
        with open_transport(self._connect(self._answering(stage, codec))) as transport:
            yield transport
        if stage.null:
            self._open = {}  # a null model has its column and margins, some numbers for each row

    def _answering(self, stage: Stage, codec: Codec) -> Mapping[str, Handler]:
        """What answers to the Master: the sites themselves."""
        return self._open

    def kernels(self) -> Counter[str]:
        """The kernels that computed eigenpairs in the stage opened last, and at how many sites."""
        return Counter(site.kernel for site in self._open.values() if site.kernel is not None)
