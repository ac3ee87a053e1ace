"""Ends of logarithmic axes, from one percent to hundreds of powers of ten."""

AXES = [
    (0.95, 1.05), (0.9, 3.6), (0.45, 4.2), (0.9, 60.0), (0.3, 300.0), (2.1, 9.9), (15.0, 1200.0), (2e6, 9e7),
    (5e-5, 0.3), (1e-16, 1.0), (1e-3, 1e61), (1e-250, 1e250),
]  # fmt: skip
