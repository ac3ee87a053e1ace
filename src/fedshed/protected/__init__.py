"""Protected mode: the Master sees only sums over all sites, at points that every site computed itself."""

from fedshed.protected.member import Steps, Store

__all__ = ["Steps", "Store"]
