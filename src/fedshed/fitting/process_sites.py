"""Each site of a fit in its own process: `python -m fedshed.fitting.process_sites FOLDER` is one of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from fedshed._utils.errors import ConfigError, DataError, Error
from fedshed._utils.files import write_atomically
from fedshed.exchange.agent import main
from fedshed.exchange.processes import ProcessGroup
from fedshed.exchange.site import FAILED
from fedshed.fitting.host import Host
from fedshed.fitting.sites import HostedTables
from fedshed.fitting.stages import Refusal
from fedshed.protocol.codec import encode
from fedshed.tables.frozen import arrow_table, freeze_to, thaw

log = logging.getLogger("fedshed")


class ProcessSites(Struct, frozen=True):
    """Runs each site in a separate process on this machine: `fit(tables, study, over=ProcessSites())`.

    Parameters
    ----------
    deadline : float, default 10.0
        The number of seconds that a site may take for an answer; later answers are not used.
    start_within : float, default 60.0
        The number of seconds within which all processes must have started.

    Raises
    ------
    ConfigError
        If a number of seconds is not above 0.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.ProcessSites(deadline=2.0)
    ProcessSites(deadline=2.0, start_within=60.0)
    """

    deadline: float = 10.0
    start_within: float = 60.0

    def __post_init__(self) -> None:
        if not (self.deadline > 0 and self.start_within > 0):
            raise ConfigError(f"deadline and start_within must be numbers of seconds above 0, not {self}")

    @contextmanager
    def start(self, tables: Mapping[str, Any]) -> Iterator[HostedTables]:
        """The sites with their tables; the processes end with the block."""
        if not tables:
            raise DataError("a study needs at least one site; give the table of each site")
        arrow = {str(site): arrow_table(str(site), table) for site, table in tables.items()}

        def write(name: str, folder: Path) -> None:
            write_atomically(folder / "name", name.encode())
            freeze_to(folder / "table", arrow[name])

        times = {"deadline": self.deadline, "start_within": self.start_within}
        with ProcessGroup(tuple(arrow), write, __name__, **times) as transport:
            yield HostedTables(transport, tuple(arrow))


class TableHost(Host):
    """A host of one table on this machine, which answers every request without a policy."""

    def __init__(self, name: str, table: Any) -> None:
        super().__init__(name)
        self._table = table

    def frame(self, run: bytes, text: tuple[str, ...] = ()) -> Any:
        """The table."""
        return self._table

    def handle(self, data: bytes) -> bytes:
        """The reply to an envelope; an error is reported to the Master."""
        try:
            return super().handle(data)
        except Error as error:
            return encode(Refusal(str(error)))
        except Exception:
            log.exception("site %r: a request could not be answered", self.name)
            return encode(Refusal(FAILED))


def _read(folder: Path) -> Any:
    return TableHost((folder / "name").read_text(), thaw(folder / "table")).handle


if __name__ == "__main__":
    main(_read)
