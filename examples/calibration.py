"""A model of two hospitals, validated at the third.

The model is fitted to North and South and evaluated at West, whose rows it has not seen; no row leaves West.
The model ranks the patients of West well, but points below the diagonal show that it overestimates the risk.
"""

import fedshed

tables = fedshed.datasets.example_tables("hospitals")
west = {"west": tables.pop("west")}
study = fedshed.Study(family="logistic", target="malignant")

model = fedshed.fit(tables, study)
found = fedshed.evaluate(model, west)
for name in ("auc", "brier", "calibration_intercept", "calibration_slope"):
    measure = found.pooled[name]
    print(f"{name:22} {measure.value:6.3f} (standard error {measure.std_err:.3f})")

figure = found.plot()
figure.savefig("calibration.svg")
