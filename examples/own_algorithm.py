"""An algorithm of your own beside Newton's.

Gradient descent in ten lines: the sites send costs and gradients, and the Master takes a step that its line
search accepts. Line search, byte counting and the comparison come with the protocol.
"""

import matplotlib.pyplot as plt

import fedshed
from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.gradients import GradientAlgorithm
from fedshed.algorithms.linesearch import LineSearch, TwoExchange


class GradientDescent(GradientAlgorithm, frozen=True):
    line_search: LineSearch = TwoExchange()
    state = State

    def step(self, problem, state):
        g = gradient(problem, state)
        step = yield from self.line_search(self, problem, state, g, -g)
        return step.state, Info(step.eta, rounds=2, stopped=step.stopped)


federation = fedshed.datasets.load("digits", agents=10)
wanted = {"gradient descent": GradientDescent(), "lbfgs": "lbfgs", "newton": "newton"}
found = fedshed.compare(federation, wanted, l2=1e-2, max_iterations=100)

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
for name, result in found.results.items():
    axes.semilogy(result.trace.column("exchanges"), result.trace.column("gap").clip(1e-15), label=name)
axes.set(xlabel="exchanges", ylabel=r"$f - f^\star$", ylim=(1e-14, 1))
axes.legend()
figure.savefig("own_algorithm.svg")
