"""The gap, or the gradient's norm, against rounds, exchanges, bits and seconds."""

from typing import ClassVar

from benchopt import BasePlot


class Plot(BasePlot):
    """One curve a solver."""

    name = "What it costs"
    type = "scatter"
    options: ClassVar = {
        "dataset": ..., "objective": ...,
        "shown": ["value", "grad_norm"],
        "cost": ["rounds", "exchanges", "bits_up", "bits_down", "seconds"],
    }  # fmt: skip

    def plot(self, df, dataset, objective, shown, cost):
        """Points in the order of the run; medians over repetitions."""
        chosen = df[(df["dataset_name"] == dataset) & (df["objective_name"] == objective)]
        x, y = "time" if cost == "seconds" else f"objective_{cost}", f"objective_{shown}"
        curves = []
        for solver, runs in chosen.groupby("solver_name"):
            points = runs.groupby("stop_val")[[x, y]].median()
            curves.append(
                {"x": points[x].tolist(), "y": points[y].tolist(), "label": solver, **self.get_style(solver)}
            )
        return curves

    def get_metadata(self, df, dataset, objective, shown, cost):
        """Titles."""
        names = {"value": "f - f*", "grad_norm": "norm of the gradient"}
        return {"title": f"{objective}\n{dataset}", "xlabel": cost, "ylabel": names[shown]}
