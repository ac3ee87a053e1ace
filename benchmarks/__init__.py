"""Measured figures, each against a yardstick in the same run; `make bench` runs them all."""
