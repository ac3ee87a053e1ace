"""What five algorithms send.

The distance to the pooled optimum against the bytes that a site has sent. Newton's method needs the fewest
rounds and the most bytes; the order on a slow link is another one.
"""

import matplotlib.pyplot as plt

import fedshed

federation = fedshed.datasets.load("digits", agents=10, partition="two-class")
names = ["newton", "fib-shed", "lbfgs", "qn-shed", "pen"]
found = fedshed.compare(federation, names, l2=1e-4)

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
for name, result in found.results.items():
    gap, sent = result.trace.column("gap"), result.trace.column("uplink_bytes")
    axes.plot(sent / found.agents / 1000, gap.clip(1e-15), marker=".", label=name)
axes.set(xscale="log", xlabel="kilobytes sent per site")
axes.set(yscale="log", ylabel=r"$f - f^\star$", ylim=(1e-14, 1))
axes.legend()
figure.savefig("gap_and_bytes.svg")
