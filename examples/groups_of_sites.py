"""Groups of sites.

Forty sites answer the Master, or four relays, which each add up the answers of ten sites. The estimate is
the same to rounding; the Master receives a tenth of the bytes and sees no single site.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedshed

federation = fedshed.datasets.load("digits", agents=40, partition="iid")
groups = [fedshed.Group(f"region {k}", federation.sites[k::4]) for k in range(4)]
settings = {"l2": 1e-3, "algorithm": "newton"}
alone = fedshed.optimize(federation, **settings)
grouped = fedshed.optimize(federation, groups=groups, **settings)
print("largest difference:", np.abs(alone.theta - grouped.theta).max())

bars = {
    "40 sites\nto the Master": alone.traffic.uplink_bytes,
    "4 relays\nto the Master": grouped.traffic.uplink_bytes,
    "10 sites\nto each relay": np.mean([hop.uplink_bytes for hop in grouped.hops]),
}
figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
axes.bar(list(bars), [value / 1e6 for value in bars.values()], color=["C1", "C0", "C0"])
axes.set(ylabel="megabytes received")
figure.savefig("groups_of_sites.svg")
