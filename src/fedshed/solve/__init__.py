"""Solving one problem: the engine, its stopping rules, its records, and bounds on the error."""
