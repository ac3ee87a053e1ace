"""Solving one problem: the engine, when it ends, what it records, and how far the result can be off."""
