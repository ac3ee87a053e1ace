"""Attacks on our own sites, each with its rule switched off and on: `python -m benchmarks attacks`."""
