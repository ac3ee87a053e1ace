"""Which columns matter: a lasso path.

The coefficients of thirty measurements at a hundred penalties, from the right to the left. Cross-validation,
whose folds share the exchanges of one path, chooses the penalty: the dashed line.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

import fedshed

data = load_breast_cancer(as_frame=True)
hospital = np.repeat(["north", "south", "west"], [60, 190, 319])
tables = {name: data.frame[hospital == name] for name in np.unique(hospital)}
study = fedshed.Study(family="logistic", target="target", standardize=True)
path = fedshed.path(tables, study, folds=5)

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
axes.plot([step.penalty for step in path.steps], path.scaled[:, :-1], linewidth=1)
axes.axvline(path.chosen.penalty, color="black", linestyle="--")
axes.set(xscale="log", xlabel="penalty", ylabel="coefficient of a standardised column")
axes.set_title(f"{path.chosen.nonzero} coefficients are not 0 at the chosen penalty")
figure.savefig("elastic_net_path.svg")
