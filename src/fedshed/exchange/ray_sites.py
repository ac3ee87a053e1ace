"""Sites at the workers of a Ray cluster, for simulations beyond one machine.

Ray pickles what it moves, and whoever reaches a cluster can run code in it: this is for simulations on a
trusted cluster, and deployments refuse it.  A cluster that is started here listens on 127.0.0.1 only.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from math import prod
from tempfile import TemporaryDirectory
from typing import Any, Self

from fedshed._utils.errors import ConfigError
from fedshed.exchange.bundles import Packed
from fedshed.exchange.site import Site
from fedshed.exchange.site_arrays import pack_sites
from fedshed.exchange.worker import Worker
from fedshed.exchange.workers import WorkerDiedError, WorkerSites, assign_sites

SIMULATION = "Ray pickles what it moves, so it is for simulations on a trusted cluster only"
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": a cluster of one machine, on 127.0.0.1, on Linux too
ENVIRONMENT = {
    LOOPBACK: "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray says it will be, or older versions warn
}  # fmt: skip
QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}


class RaySites:
    """Computes the sites of `fedshed.optimize` at the workers of a Ray cluster, for simulations.

    Pass it as `optimize(federation, transport=fedshed.RaySites(workers=2))`. Every worker is one process (an
    actor) that hosts thousands of sites; theta and the counted bytes are, bit for bit, those of a run in one
    process. A worker that dies is built again from its rows, which stay in Ray's object store, and the run
    goes on to the same theta. It is only for simulations on a trusted cluster, because Ray pickles what it
    moves.

    Used as a context manager (`with`), it keeps the cluster that it starts from one run to the next.

    Parameters
    ----------
    workers : int, optional
        The number of worker processes, each with one CPU of the cluster. Default: the number of CPUs of the
        cluster.
    address : str, optional
        A running cluster, such as "10.0.0.1:6379", or "auto" for the one on this machine. Default: the one
        that `ray.init` has connected this process to, or else a new one on this machine, which listens on
        127.0.0.1 only and ends with the run.
    deadline : float
        The number of seconds that an exchange waits, including the time to build a worker again. A site that
        has not answered by then is absent, and the run then differs from one in a single process.
    start_within : float
        The number of seconds that the start of all workers may take.

    Raises
    ------
    ConfigError
        If Ray is not installed, a parameter is out of range, or the cluster cannot be reached.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> there = fedshed.RaySites(workers=2)  # doctest: +SKIP
    >>> result = fedshed.optimize(federation, l2=1e-2, algorithm="newton", transport=there)  # doctest: +SKIP
    >>> result.converged, result.trace[-1].exchanges  # doctest: +SKIP
    (True, 13)
    """

    stateless = False
    simulation = SIMULATION

    def __init__(
        self, workers: int | None = None, address: str | None = None, *, deadline: float = 300.0,
        start_within: float = 120.0,
    ) -> None:  # fmt: skip
        _check(workers, address, deadline=deadline, start_within=start_within)
        if find_spec("ray") is None:
            raise ConfigError("running on Ray needs ray: pip install 'fedshed[ray]'")
        self._workers, self._cluster = workers, Cluster(address, workers)
        self._deadline, self._start_within = deadline, start_within

    def __call__(self, sites: Mapping[str, Site]) -> WorkerSites:
        """A transport to these sites, at workers; it ends the workers when it is closed."""
        for name, site in sites.items():
            if not isinstance(site, Site):
                raise ConfigError(
                    f"site {name!r}: Ray workers host the sites of fedshed.optimize only, "
                    f"not {type(site).__name__}; use RaySites as its transport"
                )
        self._cluster.join()
        try:
            sizes = {name: _entries(site) for name, site in sites.items()}
            parts = assign_sites(sizes, self._workers or self._cluster.cpus())
            pool = RayPool([[sites[name] for name in part] for part in parts], self._cluster)
        except BaseException:
            self._cluster.leave()
            raise
        return WorkerSites(
            parts, pool, deadline=self._deadline, start_within=self._start_within, simulation=SIMULATION
        )

    def __enter__(self) -> Self:
        self._cluster.join()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.leave()


class Cluster:
    """A connection to Ray, made when it is first needed and given up by the last who leaves."""

    def __init__(self, address: str | None, cpus: int | None) -> None:
        self._address, self._cpus, self._users = address, cpus, 0
        self._ours = False  # whether this made the connection
        self._idle: list[Any] = []  # actors for the next run
        self._folder: TemporaryDirectory[str] | None = None

    def join(self) -> None:
        """Connect to the cluster, or start one, unless that has been done."""
        if self._users == 0:
            self._connect()
        self._users += 1

    def leave(self) -> None:
        """Disconnect after the last; a cluster that was started here ends."""
        self._users -= 1
        if self._users == 0:
            for actor in self._idle:
                self.take_back(actor, usable=False)
            self._idle = []
            if self._ours:
                self._disconnect()

    def actor(self) -> Any:
        """A worker without sites: one that an earlier run has left, or a new one."""
        return self._idle.pop() if self._idle else self.new_actor()

    def new_actor(self) -> Any:
        """A worker in a process that has just been started."""
        kind = _ray().remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Worker)
        return kind.remote()

    def take_back(self, actor: Any, usable: bool) -> None:
        """Keep a worker for the next run, if there may be one; end any other."""
        if usable and self._users > 1:
            self._idle.append(actor)
        else:
            with suppress(_ray().exceptions.RayError, ValueError):
                _ray().kill(actor)

    def cpus(self) -> int:
        """CPUs of all machines of the cluster."""
        return max(int(_ray().cluster_resources().get("CPU", 1)), 1)

    def _connect(self) -> None:
        if _is_connected():
            self._same()
            self._ours = False
            return
        self._ours = True
        try:
            with _keep_sigterm():
                self._start() if self._address is None else self._attach(self._address)
        except BaseException:
            self._disconnect()
            raise

    def _same(self) -> None:
        """Refuse another cluster than the one that this process is connected to."""
        there = _ray().get_runtime_context().gcs_address
        if self._address not in (None, "auto", there):
            raise ConfigError(
                f"address {self._address!r}: this process is connected to the Ray cluster at {there!r}; "
                "leave address out to use that cluster, or call ray.shutdown() before"
            )

    def _attach(self, address: str) -> None:
        ray = _ray()
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"address {address!r}: no Ray cluster can be reached there ({error}); check the address, and "
                "start the cluster"
            ) from None

    def _start(self) -> None:
        """A cluster of this machine alone, whose files are in a folder that is removed at the end."""
        if "ray" in sys.modules and os.environ.get(LOOPBACK) != "0":
            raise ConfigError(
                "ray was imported before a RaySites could tell it to listen on 127.0.0.1 only; do not "
                "`import ray` before, or call ray.init() yourself to use its cluster"
            )
        # they stay set, as what Ray read of them when it was imported does
        os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
        self._folder = TemporaryDirectory(prefix="fedshed-", ignore_cleanup_errors=True)
        _ray().init(address="local", num_cpus=self._cpus, _temp_dir=self._folder.name, **QUIET)

    def _disconnect(self) -> None:
        _ray().shutdown()
        self._ours = False
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class RayPool:
    """Actors, each with the sites whose description and arrays one object reference holds."""

    def __init__(self, parts: Sequence[Sequence[Site]], cluster: Cluster) -> None:
        self._ray, self._cluster = _ray(), cluster
        self._data = [self._ray.put(pack_sites(part)) for part in parts]
        self.actors: dict[int, Any] = {}
        self._open: dict[Hashable, tuple[int, Any]] = {}  # the worker of each call, and what the call saves

    def start(self, worker: int, saved: Hashable | None = None) -> Hashable:
        """An actor with the sites of a worker; a new one in the place of one that died."""
        if worker in self.actors:
            self._open = {call: kept for call, kept in self._open.items() if kept[0] != worker}
            self._cluster.take_back(self.actors[worker], usable=False)
            self.actors[worker] = self._cluster.new_actor()
        else:
            self.actors[worker] = self._cluster.actor()
        memory = b"" if saved is None else saved
        call: Hashable = self.actors[worker].host.remote(self._data[worker], memory)
        self._open[call] = worker, None
        return call

    def ask(self, worker: int, bundle: bytes, save: bool) -> Hashable:
        """One call of the actor; what it saves stays where Ray puts it until it is needed."""
        call: Hashable
        call, saved = self.actors[worker].answer.options(num_returns=2).remote(bundle, save)
        self._open[call] = worker, saved
        return call

    def first(self, calls: Collection[Hashable], seconds: float) -> Hashable | None:
        """As `ray.wait` finds it."""
        ended, _ = self._ray.wait(list(calls), num_returns=1, timeout=seconds)
        return ended[0] if ended else None

    def result(self, call: Hashable) -> tuple[Packed, Hashable]:
        """As `ray.get` finds it: an error of the code is raised, any other means that the actor is gone."""
        _, saved = self._open.pop(call)
        try:
            return self._ray.get(call), saved
        except self._ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, self._ray.exceptions.RayError):
                raise error.cause from error  # a mistake of the program
            raise WorkerDiedError(" ".join(str(error.cause).split())) from None
        except self._ray.exceptions.RayError as error:
            raise WorkerDiedError(" ".join(str(error).split())) from None

    def close(self) -> None:
        """Give all actors back, but for those that still have something to do."""
        busy = {worker for worker, _ in self._open.values()}
        for worker, actor in self.actors.items():
            self._cluster.take_back(actor, usable=worker not in busy)
        self.actors, self._data, self._open = {}, [], {}
        self._cluster.leave()


def _check(workers: Any, address: Any, **seconds: Any) -> None:
    """Refuse what no cluster can be asked for."""
    if isinstance(workers, Mapping):
        raise ConfigError("transport takes RaySites(), with the parentheses, not the class RaySites")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers must be a whole number >= 1, not {workers!r}")
    if address is not None and not isinstance(address, str):
        raise ConfigError(f'address must be text such as "10.0.0.1:6379" or "auto", not {address!r}')
    for name, value in seconds.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ConfigError(f"{name} must be a number of seconds above 0, not {value!r}")


def _ray() -> Any:
    """The module, which nothing of fedshed imports before it is needed."""
    import ray

    return ray


def _is_connected() -> bool:
    """Whether this process is already part of a cluster."""
    return "ray" in sys.modules and bool(_ray().is_initialized())


def _entries(site: Site) -> int:
    X: Any = getattr(site.objective, "X", None)
    return int(getattr(X, "nnz", None) or prod(getattr(X, "shape", ())))


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM, which is the user's."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
