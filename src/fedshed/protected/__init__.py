"""Protected mode: the Master sees only sums over all sites, at points that every site computed itself."""

from fedshed.protected.master import MaskedSums
from fedshed.protected.member import Member, Steps, Store, Witness

__all__ = ["MaskedSums", "Member", "Steps", "Store", "Witness"]
