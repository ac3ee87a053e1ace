"""A site's approvals: which studies it answers, by their SHA-256, until when, and who decided.

They are at the end of site.toml, as [[studies]] and, for those that were revoked, [[revoked]].  Lines are
only appended, so that what a steward wrote there stays unchanged.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import append_whole
from fedshed.preparation import DesignPlan
from fedshed.privacy.audit import Audit
from fedshed.privacy.entry import APPROVED, REVOKED

NOT_APPROVED = "this site has not approved the study"
A_DAY = 20  # requests of other studies per day that are answered with that sentence; the rest get no answer
DAYS = 90  # for which an approval is valid, unless it says otherwise
MOST_DAYS = 3650
MOST_BUDGET = 100.0  # times the policy's ceilings
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Approval(Struct, frozen=True, forbid_unknown_fields=True):
    """A study that a site answers."""

    sha256: str  # the SHA-256 of the study: 64 digits from 0 to f
    approved: datetime  # when it was approved
    until: datetime  # when the approval ends
    by: str  # who decided
    model: str = ""  # the model in words, for readers of the file
    budget: float = 1.0  # the factor by which the policy's limits over all studies are raised
    plan: str = ""  # the SHA-256 of the only plan of the design that is answered, if one is fixed

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.sha256):
            raise ConfigError(
                "[[studies]] sha256 must have 64 digits from 0 to f; `fedshed site approve` writes it"
            )
        if self.approved.tzinfo is None or self.until.tzinfo is None:
            raise ConfigError("[[studies]] approved and until need a time zone, as in 2027-01-31T12:00:00Z")
        check_budget(self.budget)

    @property
    def name(self) -> str:
        """The name of the study in the site's record."""
        return self.sha256[:16]

    def state(self, revoked: Sequence[Revocation], when: datetime | None = None) -> str:
        """ "approved", "revoked" or "expired"."""
        if any(one.sha256 == self.sha256 and one.revoked >= self.approved for one in revoked):
            return "revoked"
        return "approved" if (when or datetime.now(UTC)) < self.until else "expired"


class Peer(Struct, frozen=True, forbid_unknown_fields=True):
    """Another site's public key, as it was when a study with that site was first approved."""

    name: str  # the name of the other site
    key: str  # its public key: 64 digits from 0 to f


class Revocation(Struct, frozen=True, forbid_unknown_fields=True):
    """A study that a site no longer answers."""

    sha256: str  # the SHA-256 of the study
    revoked: datetime  # when it was revoked
    by: str  # who decided


def latest(approvals: Sequence[Approval]) -> list[Approval]:
    """The last approval of each study, which replaces the earlier ones."""
    ordered = sorted(approvals, key=lambda one: one.approved)
    return sorted({one.sha256: one for one in ordered}.values(), key=lambda one: one.approved)


def approval_of(digest: str, approvals: Sequence[Approval], revoked: Sequence[Revocation]) -> Approval | None:
    """The latest approval of a study that is valid now, if there is one."""
    found = [one for one in approvals if one.sha256 == digest and one.state(revoked) == "approved"]
    return max(found, key=lambda one: one.approved, default=None)


def check_budget(budget: float) -> None:
    """Refuse a budget that no study can have, with a ConfigError."""
    if not 0 < budget <= MOST_BUDGET:
        raise ConfigError(
            f"the budget of a study must be above 0 and at most {MOST_BUDGET:g}, not {budget:g}"
        )


def check_days(days: float) -> None:
    """Refuse a time for which no approval can be valid, with a ConfigError."""
    if not 0 < days <= MOST_DAYS:
        raise ConfigError(f"an approval is valid for more than 0 and at most {MOST_DAYS} days, not {days:g}")


def decided_by(by: str) -> str:
    """Who decides: as given, or the user who runs this; a name that cannot be printed is refused."""
    by = by or _user()
    if not (by.strip() and by.isprintable() and len(by) <= 100):
        raise ConfigError("the name of who decides (--by) must have 1 to 100 characters that can be printed")
    return by


def new_approval(
    digest: str, model: str, days: float = DAYS, by: str = "", *, budget: float = 1.0, plan: str = ""
) -> Approval:
    """An approval that is valid from now on."""
    check_days(days)
    now = datetime.now(UTC)
    return Approval(digest, now, now + timedelta(days=days), decided_by(by), model, float(budget), plan)


def new_revocation(digest: str, by: str = "") -> Revocation:
    """A revocation that is valid from now on."""
    return Revocation(digest, datetime.now(UTC), decided_by(by))


def approve_study(
    path: Path, digest: str, model: str, days: float = DAYS, by: str = "", *, budget: float = 1.0,
    plan: str = "",
) -> Approval:  # fmt: skip
    """Write an approval into a site's record and then into its file; no approval is without a record."""
    entry = new_approval(digest, model, days, by, budget=budget, plan=plan)
    _recorded(path, entry.name, APPROVED, _in_words(entry), model)
    append(path, "studies", entry)
    return entry


def _in_words(entry: Approval) -> str:
    """What the record says about an approval."""
    return (
        f"SHA-256 {entry.sha256} by {entry.by} until {entry.until.isoformat()}, budget {entry.budget:g}, "
        f"plan {entry.plan or 'any'}"
    )


def check_peers(site: str, own: str, keys: Mapping[str, str], pinned: Sequence[Peer]) -> list[Peer]:
    """The keys of other sites that are new here; a key that has changed, or is not ours, is refused."""
    if keys and keys.get(site) != own:
        raise ConfigError(
            f"the study has a key for site {site!r} that is not the key of this site, {own}; "
            "ask the Master's operator to correct it"
        )
    known = {one.name: one.key for one in pinned}
    for name, key in keys.items():
        if known.get(name, key) != key:
            raise ConfigError(
                f"site {name!r} had the key {known[name]} in a study that was approved here before, but has "
                f"{key} in this one; ask site {name!r} by telephone, and if its key is new, remove its old "
                "[[peers]] entry from site.toml"
            )
    return [Peer(name, key) for name, key in keys.items() if name != site and name not in known]


def pin_peers(path: Path, peers: Sequence[Peer]) -> None:
    """Write the keys of other sites into a site's file."""
    for peer in peers:
        append(path, "peers", peer)


def revoke_study(path: Path, approval: Approval, by: str = "") -> None:
    """Revoke an approval, in a site's file and its record."""
    entry = new_revocation(approval.sha256, by)
    append(path, "revoked", entry)
    _recorded(path, approval.name, REVOKED, f"SHA-256 {entry.sha256} by {entry.by}", approval.model)


def _recorded(path: Path, study: str, what: str, detail: str, model: str) -> None:
    named = msgspec.toml.decode(path.read_bytes()).get("audit", "audit.jsonl")
    Audit(path.resolve().parent / named).append(study, what, detail=detail, model=model)


def pinned_plan(path: Path) -> str:
    """The SHA-256 of the plan in a file, as a fit sends it."""
    return DesignPlan.from_json(path.read_bytes()).digest


def append(path: Path, table: str, entry: Approval | Revocation | Peer) -> None:
    """Write an entry at the end of a site's file, unless the result would not be valid TOML."""
    text = path.read_text(encoding="utf-8")
    fields = {k: v for k, v in msgspec.to_builtins(entry, builtin_types=(datetime,)).items() if v != ""}
    block = "\n".join(f"{name} = {_toml(value)}" for name, value in fields.items())
    more = ("" if text.endswith("\n") else "\n") + f"\n[[{table}]]\n{block}\n"
    msgspec.toml.decode((text + more).encode())
    append_whole(path, more.encode())


def _toml(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return msgspec.json.encode(value).decode()  # TOML writes text and numbers in the same way


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
