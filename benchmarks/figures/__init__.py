"""All figures and recorded pages of docs/, by one command: `make figures` (needs FEDSHED_DATA).

    python -m benchmarks figures                        all of it; one that was stopped goes on where it was
    python -m benchmarks figures --steps networks,demo  some steps only
    python -m benchmarks figures --check                which files would be other ones today
    python -m benchmarks figures --check --strict       the same, as an error

Every page says, and every figure has in its metadata, with which commit, versions, seeds and machine it was
made; docs/figures/recorded.json keeps what decides whether it is stale.  It is not among the benchmarks that
run where none is named.
"""

from benchmarks.figures.command import main

__all__ = ["main"]
