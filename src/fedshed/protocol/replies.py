"""What reaches one agent, and what it sends back."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fedshed.protocol.links import Forgot
from fedshed.protocol.messages import Declined


class Request(Struct, frozen=True, array_like=True, gc=False):
    """What reaches one agent: the run and the number of the exchange, the common parts, and its own part."""

    run: bytes
    number: int
    parts: list[Any]
    mine: Any
    located: list[Any] = []  # the parts, each with its theta
    accuracy: float = 0.0  # of gradients in the reply


class Reply(Struct, frozen=True, array_like=True, gc=False):
    """What an agent sends back: the exchange it answers, the Hessians it computed for it, its answers."""

    run: bytes
    number: int
    hessians: int
    parts: list[Any]

    @property
    def answers(self) -> bool:
        """Whether the agent answers: it has not forgotten what the request goes on from, nor declines."""
        return not any(isinstance(part, NO_ANSWER) for part in self.parts)


NO_ANSWER = (Forgot, Declined)
