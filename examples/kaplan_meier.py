"""Survival curves over all sites.

Kaplan-Meier curves of women and men from three hospitals, with their bands. The thin lines are the curves of
each hospital alone: they scatter, because no hospital has enough patients.
"""

import matplotlib.pyplot as plt

import fedshed

tables = fedshed.datasets.example_tables("survival")
curves = fedshed.survival(tables, time="time", event="death", by="sex")
test = curves.logrank(stratified=True)

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
for color, (group, curve) in zip(("C0", "C1"), curves.curves.items(), strict=True):
    low, high = curve.band()
    axes.step(curve.times, curve.survival, where="post", color=color, label=group)
    axes.fill_between(curve.times, low, high, step="post", color=color, alpha=0.2)
    for hospital in curves.sites:
        alone = curves.of_site(hospital)[group]
        axes.step(alone.times, alone.survival, where="post", color=color, linewidth=0.6)
axes.set(xlabel="days", ylabel="survival", ylim=(0, 1), xlim=0)
axes.legend(title=f"log-rank test within hospitals: P = {test.p:.3f}")
figure.savefig("kaplan_meier.svg")
