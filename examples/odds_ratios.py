"""Odds ratios of three hospitals.

One logistic regression of all patients, with a 95 % interval for each odds ratio. Each measurement is
divided by about its standard deviation, so that the odds ratios can be compared.
"""

import matplotlib.pyplot as plt

import fedshed

SPREAD = {"radius": 3.5, "texture": 4.3, "smoothness": 0.014, "compactness": 0.053, "symmetry": 0.027}

tables = fedshed.datasets.example_tables("hospitals")
terms = " + ".join(f"I({name} / {size})" for name, size in SPREAD.items())
study = fedshed.Study(family="logistic", formula=f"malignant ~ {terms}")
model = fedshed.fit(tables, study)

*rows, _ = model.summary(exp=True).to_rows()  # the last row is the intercept
places = range(len(rows))
ratios, low, high = ([row[name] for row in rows] for name in ("odds ratio", "[0.025", "0.975]"))

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.hlines(places, low, high, color="black")
axes.plot(ratios, places, "s", color="C0")
axes.axvline(1, color="grey", linestyle=":")
axes.set(xscale="log", xlabel="odds ratio of a malignant tumour, per standard deviation")
axes.set_yticks(places, SPREAD)
axes.invert_yaxis()
figure.savefig("odds_ratios.svg")
