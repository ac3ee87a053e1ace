"""Tables behind one agent, "all", that answers with sums over them, as in a protected study without masks."""

from __future__ import annotations

from contextlib import nullcontext

from fedshed.exchange import InProcess
from fedshed.exchange.group import Relay
from fedshed.exchange.site import Site
from fedshed.exchange.sums import ALL, Scaling, scaling_of
from fedshed.fitting.conduct import conduct
from fedshed.fitting.sites import LocalTables
from fedshed.objectives.build import local_objective
from fedshed.preparation.protocol import Preparation, preparers_of
from fedshed.solve.goal import Goal


class GroupedTables(LocalTables):
    """The tables of a study, of which nobody sees more than sums."""

    names = (ALL,)
    one_process = False

    def __init__(self, tables):
        self._preparers, self.sites = preparers_of(tables), len(tables)

    def prepare(self):
        scalings = dict.fromkeys(self._preparers, Scaling(units=True))
        return nullcontext(InProcess({ALL: Relay(self._preparers, Preparation(), 1, scalings)}))

    def play(self, plan, problem, algorithm):
        study = plan.study
        models = {
            i: local_objective(i, preparer.table(plan), study.loss, plan.classes, plan.intercept)
            for i, preparer in self._preparers.items()
        }
        return GroupedSites(models, problem)


class GroupedSites:
    """The rows of a study, of which nobody sees more than sums."""

    stateless = False

    def __init__(self, models, problem):
        self._models, self._problem = models, problem

    def open(self, stage):
        models = {i: model.null() if stage.null else model for i, model in self._models.items()}
        members = {i: Site(i, model, stage.conversation) for i, model in models.items()}
        scalings = {i: scaling_of(self._problem, model.weight, stage.null) for i, model in models.items()}
        n = next(iter(models.values())).dim
        return nullcontext(InProcess({ALL: Relay(members, stage.conversation, n, scalings)}))


def grouped_fit(tables, study, algorithm="newton", errors=None, tol=1e-9, max_iterations=200):
    """The model of a study in sums."""
    goal = Goal(tol=tol, max_iterations=max_iterations)
    return conduct(study, GroupedTables(tables), goal, algorithm=algorithm, errors=errors).model
