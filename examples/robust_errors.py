"""Model-based and robust standard errors.

A linear model of insurance claims in ten regions. It takes all rows to vary alike, but those of drivers with
many claims vary more. Robust errors (HC3) allow for that, and are larger where it matters.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedshed

rows = fedshed.datasets.example_tables("claims")["claims"]
region = np.array(rows.pop("region"))
tables = {
    name: {column: np.array(values)[region == name] for column, values in rows.items()}
    for name in set(region)
}
formula = "claims ~ age + bonus + C(fuel) + C(brand)"
study = fedshed.Study(family="linear", formula=formula)
model = fedshed.fit(tables, study, errors="HC3")

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
names, base = model.inference.names[:-1], model.inference.std_err()[:-1]
for k, (label, kind) in enumerate({"model": False, "HC3": "HC3"}.items()):
    errors = model.inference.std_err(kind)[:-1] / base
    axes.barh(np.arange(len(names)) + 0.25 * k, errors, height=0.22, label=label)
axes.set_yticks(np.arange(len(names)) + 0.25, names)
axes.set(xlabel="standard error, relative to that of the model")
axes.invert_yaxis()
axes.legend()
figure.savefig("robust_errors.svg")
