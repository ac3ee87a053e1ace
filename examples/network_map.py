"""Which algorithm is the fastest over which network.

Each cell is a network with a latency and a rate, and its colour the algorithm that would end first there. The
times follow from exchanges and bytes that were counted, and from CPU seconds that were measured.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedshed

federation = fedshed.datasets.load("digits", agents=10, partition="two-class")
names = ["newton", "fib-shed", "qn-shed", "lbfgs-coded"]
found = fedshed.compare(federation, names, l2=1e-4)
latencies, rates = np.geomspace(1e-4, 10, 40), np.geomspace(1e3, 1e9, 40)
times = [[found.time(latency, rate) for rate in rates] for latency in latencies]
winner = [[names.index(min(cell, key=cell.get)) for cell in row] for row in times]

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
colors = plt.get_cmap("Set2", len(names))
axes.pcolormesh(rates, latencies, winner, cmap=colors, vmin=0, vmax=len(names) - 1, rasterized=True)
for k in np.unique(winner):
    axes.plot([], [], "s", color=colors(int(k)), label=names[k])
axes.set(xscale="log", yscale="log", xlabel="rate in bits per second", ylabel="latency in seconds")
axes.legend(loc="lower left")
figure.savefig("network_map.svg")
