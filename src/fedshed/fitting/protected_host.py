"""A host's end of a protected study: who it is among the sites, and what its record says of each exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from fedshed.exchange.sums import ALL
from fedshed.fitting.all_sites import PREPARATION, AllTables
from fedshed.fitting.protected_site import SiteSteps
from fedshed.preparation.cells import computed_column_objections
from fedshed.preparation.messages import Tally
from fedshed.preparation.site import Preparer
from fedshed.privacy.addends import Addends
from fedshed.privacy.audit import digests
from fedshed.privacy.gate import Asked, Gate
from fedshed.privacy.policy import Objection, Policy, curvature, scalars
from fedshed.protected.comparing import points_of
from fedshed.protected.member import Member
from fedshed.protocol.codec import encode
from fedshed.protocol.replies import Request


class ProtectedSite:
    """A site among the others of a protected study, with the replay it goes by: bytes in, bytes out."""

    def __init__(self, steps: SiteSteps, member: Member) -> None:
        self._steps, self._member = steps, member

    def handle(self, payload: bytes) -> bytes:
        """The reply to a message of the Master."""
        return self._member.handle(payload)

    def forget(self) -> None:
        """Do nothing, because there is no cache to forget."""

    def close(self) -> None:
        """End the replay and its thread."""
        self._steps.close()


class MaskedRecord:
    """Puts on record what is about to be added to a sum, which the Master will see over all sites.

    The rules of a site's policy are for what leaves it.  Here that is random numbers, so they hold for the
    sums: the rows of all sites count, and numbers are counted as they are opened.  A column that a formula
    computes must not be about a few rows of this site, for a sum over all sites would then be theirs.
    """

    def __init__(self, gate: Callable[[int], Gate | None], run: str, preparer: Preparer) -> None:
        self._gate, self._run, self._preparer = gate, run, preparer

    def __call__(
        self, tables: AllTables, label: int, request: Request, parts: Sequence[Any], addends: Addends
    ) -> None:
        """Record an exchange; DisclosureError names the rule that forbids it."""
        playing = tables.playing if label != PREPARATION else None
        rows = 0 if playing is None else playing.problem.sizes[ALL].rows  # unknown in the preparation
        gate = self._gate(rows)
        if gate is None:
            return
        private = None if playing is None else playing.private
        if private is not None:
            gate.charge(private.plan.privacy.rho, self._run)
        names = "+".join(type(part).__name__ for part in request.parts)
        answers = "+".join(type(part).__name__ for part in parts)
        if playing is None:
            objections = self._about_few(gate.policy, request)
        else:
            objections = _objections(gate.policy, rows, playing.problem.n)
        asked = Asked(
            request=_digest(request.parts),
            points=digests([theta.tobytes() for theta in points_of(request)]),
            plan="" if playing is None or playing.plan is None else playing.plan.digest,
            columns=() if playing is None else playing.problem.columns,
            parameters=1 if playing is None else playing.problem.n,
            answer=_digest((request.parts, parts)),  # the same answer in another run reveals nothing new
            curvature=0 if private else sum(map(curvature, parts)),
        )
        count = (
            0 if private else sum(map(scalars, parts))
        )  # noised numbers are charged to the privacy budget instead
        gate.release(f"masked {names} -> {answers}", b"", count, objections, asked)

    def _about_few(self, policy: Policy, request: Request) -> list[Objection]:
        """What the policy has against the columns that a plan computes; where noise is added, nothing."""
        found = list[Objection]()
        for part in request.parts:
            plan = getattr(part, "plan", None)
            if plan is not None and plan.study.privacy is None:
                made = self._preparer.stand_in if isinstance(part, Tally) else self._preparer.built
                found += computed_column_objections(policy, plan, self._preparer.frame, made(plan)[1])
        return found


def _digest(value: Any) -> str:
    return sha256(encode(value)).hexdigest()


def _objections(policy: Policy, rows: int, n: int) -> list[Objection]:
    """What the policy has against a fit of n parameters to the rows of all sites."""
    found = []
    if rows < policy.min_rows:
        found.append(
            Objection(f"at least {policy.min_rows} rows of all sites together (min_rows)", f"{rows}")
        )
    if n > policy.max_parameters_per_row * rows:
        most = f"at most {policy.max_parameters_per_row:g} parameters per row (max_parameters_per_row)"
        found.append(Objection(most, f"{n} parameters, {rows} rows"))
    return found
