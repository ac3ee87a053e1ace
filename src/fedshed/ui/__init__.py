"""The live page of a run: a simulation that can be paused and stopped, or the log of a deployment."""
