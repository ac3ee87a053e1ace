"""Sends the numbers of a run to TensorBoard or MLflow; their packages are imported only here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from fedshed.solve.watching import Begin, Observer, end_of, news

if TYPE_CHECKING:
    from fedshed.solve.engine import Progress
    from fedshed.solve.run import Result


def numbers(study: Begin, progress: Progress) -> dict[str, float]:
    """The numbers of a round by name; a site's are below its own."""
    round_ = news(study, progress)
    whole = {
        name: value for name, value in asdict(round_).items() if name not in ("time", "iteration", "sites")
    }
    sites = {
        f"sites/{i}/{name}": getattr(site, name)
        for i, site in round_.sites.items()
        for name in ("uplink_bytes", "downlink_bytes", "silent", "pairs")
    }
    return {name: float(value) for name, value in {**whole, **sites}.items() if value is not None}


class TensorBoard(Observer):
    """Scalars in an event file that TensorBoard reads (`pip install 'fedshed[tensorboard]'`)."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ImportError(
                "TensorBoard logs need tensorboardX: pip install 'fedshed[tensorboard]'"
            ) from None
        self._writer: Any = SummaryWriter(str(folder))
        self._study: Begin | None = None

    def begin(self, study: Begin) -> None:
        """What is being fitted, as text."""
        self._study = study
        self._writer.add_text("study", f"{study.algorithm}, {study.loss}, n = {study.n}, tol = {study.tol:g}")

    def __call__(self, progress: Progress) -> None:
        """One point of every curve."""
        assert self._study is not None
        for name, value in numbers(self._study, progress).items():
            self._writer.add_scalar(name, value, progress.rows[-1].iteration)
        self._writer.flush()

    def end(self, result: Result) -> None:
        """The reason it ended."""
        self._writer.add_text("end", result.reason)
        self._writer.close()


class MLflow(Observer):
    """Parameters, metrics and tags of one MLflow run (`pip install 'fedshed[mlflow]'`).

    MLflow's settings decide where it is logged (`mlflow.set_tracking_uri`, `MLFLOW_TRACKING_URI`).
    """

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError:
            raise ImportError("MLflow logs need mlflow: pip install 'fedshed[mlflow]'") from None
        self._mlflow: Any = mlflow
        self._study: Begin | None = None

    def begin(self, study: Begin) -> None:
        """The parameters; a run that is open already is used, as MLflow's users expect."""
        self._study = study
        if self._mlflow.active_run() is None:
            self._mlflow.start_run()
        named = asdict(study)
        self._mlflow.log_params({name: named[name] for name in ("algorithm", "loss", "n", "tol")})

    def __call__(self, progress: Progress) -> None:
        """One step of every metric."""
        assert self._study is not None
        self._mlflow.log_metrics(numbers(self._study, progress), step=progress.rows[-1].iteration)

    def end(self, result: Result) -> None:
        """How it ended."""
        end = end_of(result)
        self._mlflow.set_tags({"converged": str(end.converged), "reason": end.reason})
        self._mlflow.end_run()
