"""What each site sent.

The Master counts the bytes from and to each site. With a channel for each link, a site on a slow link sends
fewer eigenpairs, and the others need not wait for it. A channel limits only eigenpairs: the gradient and the
costs of the line search come in addition.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedshed

federation = fedshed.datasets.load("digits", agents=8)
rates = {site: fedshed.ByteRate(600 * (k + 1)) for k, site in enumerate(federation.sites)}
channel = fedshed.PerAgent(rates, fedshed.Constant(1))
result = fedshed.optimize(federation, l2=1e-4, algorithm="fib-shed", budget=channel)

places = np.arange(len(result.sites))
up = [contact.uplink_bytes / 1000 for contact in result.sites.values()]
down = [contact.downlink_bytes / 1000 for contact in result.sites.values()]
figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
axes.bar(places - 0.2, up, width=0.4, label="sent")
axes.bar(places + 0.2, down, width=0.4, label="received")
axes.set_xticks(places, [f"{600 * (k + 1)} B" for k in places])
axes.set(xlabel="eigenpairs that a link may carry per round, in bytes", ylabel="kilobytes")
axes.legend(title=f"{result.trace[-1].exchanges} exchanges")
figure.savefig("bytes_per_site.svg")
