"""The report while a run goes on: a simulation that can be paused and stopped, or the log of a deployment."""
