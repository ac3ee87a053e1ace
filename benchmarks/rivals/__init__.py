"""Every rival against ours: exchanges and bytes until f - f* < 1e-11, on two lists of problems.

    python -m benchmarks rivals                 all of it: resumable, printed as Markdown
    python -m benchmarks rivals --write docs    the same, written to docs/figures/rivals*.md and *.svg

Constants of ours were chosen on F5, F6, F8 and W5 with seed 0 and nothing else; every rival takes the best
setting of a printed grid on F5 and W5; the second list played no part in either choice.
"""

from benchmarks.rivals.report import main

__all__ = ["main"]
