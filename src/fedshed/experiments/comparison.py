"""What a comparison found: the runs of each algorithm, and what they cost, as tables, figure and report."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.notebook import html_table
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.costs import Network
from fedshed.experiments.summaries import KB, Summary, over_repeats, shown
from fedshed.experiments.times import Spent, TimeMap, fastest_of, mapped, spent_by
from fedshed.linalg.arrays import Vector
from fedshed.report.recorder import Recorder
from fedshed.solve.run import Result
from fedshed.solve.trace import COLUMNS, Row, frame_of
from fedshed.tables import Federation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE_REACHED = "no algorithm reached the tolerance; raise max_iterations or tol"


class Trial(Struct, frozen=True):
    """Every algorithm on one partition of the rows, and f*, which all gaps are measured from."""

    federation: Federation
    f_star: float
    results: dict[str, Result]
    recorders: dict[str, Recorder] = {}  # what the Master held of each agent
    cpu: dict[str, float] = {}  # seconds of each run, all sites and the Master together


class Setting(Struct, frozen=True):
    """The problem that all algorithms solve, and how it is called."""

    loss: str
    l2: float | Vector
    intercept: bool = False
    seed: int = 0
    title: str = ""
    command: str = ""  # that makes it again


class Comparison(Struct, frozen=True):
    """The runs of each algorithm, in the order asked for, on one partition of the rows or on several.

    With a `target_gap`, the summary and the times count up to the first iterate whose gap is below it.

    Examples
    --------
    >>> import fedshed
    >>> found = fedshed.compare(fedshed.datasets.load("digits", agents=4), ["newton"], l2=1e-2)
    >>> found.summary()[0].exchanges, found.to_csv().partition(",")[0]
    (13, 'algorithm')
    """

    trials: tuple[Trial, ...]
    algorithms: dict[str, AnyAlgorithm]  # as they were run
    setting: Setting
    target_gap: float | None = None

    @property
    def federation(self) -> Federation:
        """The rows, as first dealt to the sites."""
        return self.trials[0].federation

    @property
    def results(self) -> dict[str, Result]:
        """The result of each algorithm, on the first partition."""
        return self.trials[0].results

    @property
    def f_star(self) -> float:
        """f* of the first partition."""
        return self.trials[0].f_star

    @property
    def agents(self) -> int:
        """The number of sites."""
        return len(self.federation.tables)

    @property
    def title(self) -> str:
        """The data and the problem in one line."""
        if self.setting.title:
            return self.setting.title
        data, setting = self.federation, self.setting
        size = f"{self.agents} sites, {sum(data.rows.values())} rows, n = {data.dim + setting.intercept}"
        ridge = f", l2 = {setting.l2:g}" if isinstance(setting.l2, float | int) else ""
        return f"{data.name}: {size}, {setting.loss}{ridge}"

    def __repr__(self) -> str:
        rows = [shown(one) for one in self.summary()]
        repeats = len(self.trials)
        title = f"{self.title}; median (least-most) of {repeats} partitions" if repeats > 1 else self.title
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
        lines = [{name: name for name in widths}, *rows]
        body = ["  ".join(f"{row[name]:<{width}}" for name, width in widths.items()) for row in lines]
        return "\n".join([title, *(line.rstrip() for line in body)])

    def _repr_html_(self) -> str:
        return html_table([shown(one) for one in self.summary()], self.title)

    def summary(self) -> list[Summary]:
        """One row per algorithm: what it needed, as medians over the repeats."""
        return [over_repeats([self._summary(name, trial) for trial in self.trials]) for name in self.results]

    def time(self, latency: float, rate: float) -> dict[str, float]:
        """Seconds to the optimum over a network, for each algorithm whose runs all reached the tolerance.

        With a `target_gap` they are the seconds until that gap.

        T = exchanges x latency + 8 bytes / rate + CPU. Bytes are those of the busiest link, up and down, as
        sites send at the same time; CPU is that of all sites and the Master in this process (docs/cost.md).
        Several repeats enter with their medians.

        Parameters
        ----------
        latency : float
            Seconds per exchange.
        rate : float
            Bits per second of each site's link; `math.inf` where bytes take no time.

        Returns
        -------
        dict
            The seconds of each algorithm.

        Raises
        ------
        ConfigError
            Unless latency >= 0 and rate > 0.

        Examples
        --------
        >>> import fedshed
        >>> found = fedshed.compare(fedshed.datasets.load("digits", agents=4), ["newton"], l2=1e-2)
        >>> near, far = found.time(0.1, 1e6)["newton"], found.time(1.1, 1e6)["newton"]
        >>> round(far - near, 6) == found.summary()[0].exchanges
        True
        """
        network = Network(latency, rate)
        return {name: one.seconds(network) for name, one in self._spent().items()}

    def fastest(self, latency: float, rate: float) -> tuple[str, float]:
        """The algorithm that `time` finds to end first over a network, and its seconds.

        Parameters
        ----------
        latency, rate : float
            As in `time`.

        Returns
        -------
        tuple of str and float
            The name of the algorithm, and its seconds to the optimum.

        Raises
        ------
        ConfigError
            If no algorithm reached the tolerance in every repeat.

        Examples
        --------
        >>> import fedshed
        >>> data = fedshed.datasets.load("digits", agents=4)
        >>> found = fedshed.compare(data, ["newton", "qn-shed"], l2=1e-2)
        >>> found.fastest(latency=10.0, rate=1e9)[0], found.fastest(latency=0.0, rate=10.0)[0]
        ('newton', 'qn-shed')
        """
        times = self.time(latency, rate)
        if not times:
            raise ConfigError(NONE_REACHED)
        return fastest_of(times)

    def time_map(self) -> TimeMap | None:
        """The fastest algorithm at some latencies and rates; None if none reached the tolerance.

        Returns
        -------
        TimeMap or None
            With `latencies`, `rates`, the fastest algorithm of each `cells[latency][rate]`, the `times` of
            all, those in one process (`here`), and which algorithms are `left_out`.

        Examples
        --------
        >>> import fedshed
        >>> found = fedshed.compare(fedshed.datasets.load("digits", agents=4), ["newton"], l2=1e-2)
        >>> found.time_map().cells[0][0] == found.fastest(latency=0.001, rate=1e4)
        True
        """
        spent = self._spent()
        left_out = [name for name in self.results if name not in spent]
        return mapped(spent, left_out, self.target_gap) if spent else None

    def _spent(self) -> dict[str, Spent]:
        """What each algorithm spent that reached the tolerance, or the target gap, in every repeat."""
        found = {
            name: spent_by([(trial.results[name], trial.cpu[name]) for trial in self.trials], self.target_gap)
            for name in self.results
        }
        return {name: one for name, one in found.items() if one is not None}

    def traces(self) -> dict[str, list[dict[str, Any]]]:
        """The trace of each algorithm as plain dictionaries, ready for JSON; several repeats are numbered."""
        return {
            name: [
                {**({"repeat": k} if len(self.trials) > 1 else {}), **record}
                for k, trial in enumerate(self.trials)
                for record in trial.results[name].trace.to_records()
            ]
            for name in self.results
        }

    def to_csv(self) -> str:
        """All traces in one table, the column `algorithm` first; what is unknown is empty."""
        out = io.StringIO()
        several = len(self.trials) > 1
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("algorithm", *(["repeat"] if several else []), *COLUMNS))
        for name in self.results:
            for k, trial in enumerate(self.trials):
                start = [name, k] if several else [name]
                writer.writerows(
                    [*start, *(getattr(row, column) for column in COLUMNS)]
                    for row in trial.results[name].trace
                )
        return out.getvalue()

    def to_pandas(self) -> Any:
        """All traces in one pandas DataFrame, with the columns `algorithm` and `repeat` first."""
        runs = [
            (name, k, trial.results[name].trace)
            for name in self.results
            for k, trial in enumerate(self.trials)
        ]
        frame = frame_of([row for _, _, trace in runs for row in trace])
        frame.insert(0, "algorithm", [name for name, _, trace in runs for _ in trace])
        frame.insert(1, "repeat", [k for _, k, trace in runs for _ in trace])
        return frame

    def plot(self) -> Figure:
        """A matplotlib figure: the gap against rounds, vectors, bytes and Hessians.

        With several repeats the lines are medians, and bands reach from the least gap to the largest.
        """
        from fedshed.experiments.figure import draw

        return draw(self, self.title)

    def plot_times(self) -> Figure:
        """A map of networks as a matplotlib figure: the fastest algorithm at each latency and rate.

        Returns
        -------
        matplotlib.figure.Figure
            A cell for each latency and rate of `time_map`, in the colour of the fastest algorithm, with its
            name and its seconds.

        Raises
        ------
        ConfigError
            If no algorithm reached the tolerance in every repeat.

        Examples
        --------
        >>> import fedshed
        >>> found = fedshed.compare(fedshed.datasets.load("digits", agents=4), ["newton"], l2=1e-2)
        >>> found.plot_times().axes[0].get_ylabel()
        'latency of an exchange'
        """
        from fedshed.experiments.networks import draw

        found = self.time_map()
        if found is None:
            raise ConfigError(NONE_REACHED)
        return draw(found, self.title)

    def report(self, path: str | Path) -> Path:
        """Write the interactive report, one HTML file that needs no network."""
        from fedshed.experiments.sources import of_comparison
        from fedshed.report import write

        return write(path, of_comparison(self))

    def _summary(self, name: str, trial: Trial) -> Summary:
        result = trial.results[name]
        row, reached, reason = self._counted(result)
        scale = KB * len(trial.federation.tables)
        return Summary(
            name, row.iteration, row.rounds, row.exchanges,
            row.uplink_bytes / scale, row.downlink_bytes / scale, row.uplink_vectors, row.hessians,
            row.f - trial.f_star, reached, reason, row.seconds,
        )  # fmt: skip

    def _counted(self, result: Result) -> tuple[Row, bool, str]:
        """The row up to which costs are counted, whether it is what was aimed at, and how the run ended."""
        last: Row = result.trace[-1]
        if self.target_gap is None:
            return last, result.converged, result.reason
        row = result.trace.first_below(self.target_gap)
        if row is None:
            return last, False, f"gap not below {self.target_gap:g}; {result.reason}"
        return row, True, f"gap below {self.target_gap:g}"
