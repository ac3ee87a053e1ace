"""Sites behind slow links.

Two of ten sites can send one eigenpair per round, the others ten. The others need not wait: one number stands
for the eigenpairs that the slow sites have not sent yet. All runs end at the same optimum.
"""

import matplotlib.pyplot as plt

import fedshed

federation = fedshed.datasets.load("digits", agents=10)
_, f_star = fedshed.optimum(federation, l2=1e-5)
fast, slow = fedshed.Constant(10), fedshed.Constant(1)
links = {
    "all slow": slow,
    "two slow": fedshed.PerAgent(dict.fromkeys(federation.sites[:2], slow), fast),
    "all fast": fast,
}

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
for name, budget in links.items():
    result = fedshed.optimize(federation, l2=1e-5, algorithm="fib-shed", budget=budget, f_star=f_star)
    axes.semilogy(result.trace.column("rounds"), result.trace.column("gap").clip(1e-15), label=name)
axes.set(xlabel="rounds", ylabel=r"$f - f^\star$", ylim=(1e-14, 1))
axes.legend()
figure.savefig("slow_links.svg")
