"""Do the hospitals agree?

A meta-analysis combines the estimates of the single hospitals; the last line of each panel is the estimate of
all rows together. Where the squares of the hospitals lie far apart, one common coefficient says little.
"""

import fedshed

tables = fedshed.datasets.example_tables("survival")
study = fedshed.Study(
    family="cox", time="time", event="death", columns=("age", "sex", "ecog"), missing="drop"
)
found = fedshed.meta_analysis(tables, study)

for coefficient in found.coefficients:
    combined = found.combined(coefficient)
    print(f"{coefficient:12} {combined.estimate:6.3f}, I2 = {combined.i2:.0%}")

figure = found.plot(("sex[male]", "ecog"), exp=True)
figure.savefig("forest_plot.svg")
