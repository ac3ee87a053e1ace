"""Each site in a separate process on this machine: real connections, deadlines, sites that can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory
from typing import Self

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.exchange.agent import write_link
from fedshed.exchange.hub import Hub
from fedshed.exchange.site import Site
from fedshed.exchange.site_files import write_site
from fedshed.privacy.policy import Policy


class SiteProcess:
    """The process of one site: started, killed, started again; it ends with the process that started it."""

    def __init__(self, folder: str | Path, module: str = "fedshed.exchange.agent") -> None:
        self._folder, self._module = Path(folder), module
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """Its number, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process; it knows only what its folder holds."""
        self.kill()
        command = [sys.executable, "-m", self._module, str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the process at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None

    def last_words(self) -> str:
        """The end of what it wrote on standard error."""
        return (self._folder / "log").read_text(errors="replace")[-500:].strip()


class ProcessGroup:
    """A transport that starts a process for each site, and ends them all when the run does.

    `write` puts what a site needs into its folder, where `module`, run as a program, finds it.
    """

    stateless = False

    def __init__(
        self, names: Sequence[str], write: Callable[[str, Path], None], module: str, *,
        deadline: float = 10.0, start_within: float = 60.0,
    ) -> None:  # fmt: skip
        self._folder = TemporaryDirectory(prefix="fedshed-")
        root = Path(self._folder.name)
        tokens = {name: token_bytes(16) for name in names}
        self.processes: dict[str, SiteProcess] = {}
        self._hub = Hub(tokens, root / "address", deadline)
        try:
            for k, name in enumerate(sorted(names)):
                (folder := root / f"site-{k}").mkdir(mode=0o700)
                write_link(folder, name, tokens[name], root / "address")
                write(name, folder)
                self.processes[name] = SiteProcess(folder, module)
            self._hub.wait(start_within)
        except ProtocolError as error:
            words = {name: process.last_words() for name, process in self.processes.items()}
            self.close()
            raise ProtocolError(f"{error}; they wrote: {words}") from error
        except BaseException:
            self.close()
            raise

    def agents(self) -> Sequence[str]:
        """Names of the sites."""
        return self._hub.agents()

    def exchange(self, payloads: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
        """What came back by the deadline, and what came late from before."""
        return self._hub.exchange(payloads)

    def close(self) -> None:
        """End all processes and connections, and remove their files."""
        self._hub.close()
        for process in self.processes.values():
            process.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Processes(ProcessGroup):
    """A process for each site of an `optimize`: `optimize(..., transport=Processes)`.

    With another deadline: `functools.partial(Processes, deadline=2.0)`.
    """

    def __init__(
        self, sites: Mapping[str, Site], *, deadline: float = 10.0, policy: Policy | None = None,
        start_within: float = 60.0,
    ) -> None:  # fmt: skip
        for name, site in sites.items():
            if not isinstance(site, Site):
                raise ConfigError(f"{name!r} is a group, but each process has one site; leave groups out")
        super().__init__(
            tuple(sites), lambda name, folder: write_site(folder, sites[name], policy),
            "fedshed.exchange.agent", deadline=deadline, start_within=start_within,
        )  # fmt: skip
