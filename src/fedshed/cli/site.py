"""`fedshed site`: the data steward of a site checks, approves and revokes, and reads the record."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import printable_lines
from fedshed.cli.deploy import site
from fedshed.cli.show import Json, option, print_json, print_rows, say

if TYPE_CHECKING:
    from fedshed.deployment.approval import Approval
    from fedshed.deployment.config import SiteFile, StudyFile
    from fedshed.deployment.decision import Decision
    from fedshed.privacy.entry import Entry

SiteToml = Annotated[Path, option("The site's TOML file.")]
HERE = Path("site.toml")
WIDTH = 80
MASKED = "masked "  # the prefix in the record of what was added to a sum over all sites
SHORT = 8  # digits of a SHA-256 in a table


@site.command()
def check(
    file: Annotated[Path, typer.Argument(help="The site's TOML file.")],
    study: Annotated[Path | None, option("The study's TOML file, if you have received it.", "none")] = None,
    target: Annotated[
        str | None, option("The column to be modelled.", "the study's target, or the last column")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read a site's file and table, and print what would leave the site; nothing is sent.

    FILE is the site's TOML file.
    """
    from fedshed.deployment.config import read_study
    from fedshed.deployment.review import review

    found = review(file, None if study is None else read_study(study), target)
    if as_json:
        return print_json(found)
    notes = [f"algorithm: {found.algorithm}", "nothing was sent"]
    if found.eigenpairs is not None:
        notes.insert(1, f"the uplink carries {found.eigenpairs} eigenpairs per round")
    rows = [
        {"when": one.when, "what": one.what, "numbers": _or_dash(one.numbers), "bytes": one.size}
        for one in found.items
    ]
    notes += [f"the site's policy would refuse this study: it demands {rule}" for rule in found.broken]
    print_rows(rows, notes, f"site {found.name}, {found.rows} rows: what would leave it")
    if found.broken:
        raise typer.Exit(1)


@site.command(epilog="Example: fedshed site approve study.toml")
def approve(
    study: Annotated[
        Path, typer.Argument(help="The study's TOML file, as received from the Master's operator.")
    ],
    file: Annotated[Path, typer.Option("--site", help="The site's TOML file.")] = HERE,
    days: Annotated[float, option("The number of days for which the approval is valid.")] = 90.0,
    by: Annotated[str, option("The name of the person who approves.", "your user name")] = "",
    budget: Annotated[
        float, option("A factor by which the budget of the site's policy is multiplied for this study.")
    ] = 1.0,
    plan: Annotated[
        Path | None,
        option("Answer only if the Master sends exactly this design plan (a JSON file).", "any plan"),
    ] = None,
    yes: Annotated[
        str, option("Approve without a question, if this is the SHA-256 of the study.", "ask")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what a study would use and send, ask for approval, and record the approval; nothing is sent.

    STUDY is the study's TOML file, as received from the Master's operator.
    """
    from fedshed.deployment import approval
    from fedshed.deployment.config import read_site, read_study
    from fedshed.deployment.decision import decision

    approval.check_days(days)
    approval.check_budget(budget)
    by, pinned = approval.decided_by(by), "" if plan is None else approval.pinned_plan(plan)
    asked = read_study(study)
    new_peers = approval.check_peers(*_own_key(file, asked), asked.keys, read_site(file).peers)
    found = decision(file, asked, budget)
    if as_json:
        print_json(found)
    else:
        say(printable_lines("\n".join(_decision(found, days, budget))))
    if found.broken:
        raise typer.Exit(1)
    if not _agreed(found.sha256, yes, study):
        say("The study was not approved; the site will not answer it.")
        raise typer.Exit(1)
    entry = approval.approve_study(file, found.sha256, found.model, days, by, budget=budget, plan=pinned)
    approval.pin_peers(file, new_peers)
    if not as_json:
        say(f"Approved by {entry.by} until {entry.until:%Y-%m-%d}.")


@site.command()
def revoke(
    study: Annotated[str, typer.Argument(help="The SHA-256 of the study, or its first digits.")],
    file: Annotated[Path, typer.Option("--site", help="The site's TOML file.")] = HERE,
    by: Annotated[str, option("The name of the person who revokes.", "your user name")] = "",
) -> None:
    """Revoke an approval; a study that is running gets no further answers.

    STUDY is the SHA-256 of the study, or at least its first four digits.
    """
    from fedshed.deployment.approval import revoke_study
    from fedshed.deployment.config import read_site

    entry = _named(study, read_site(file))
    revoke_study(file, entry, by)
    say(f"The approval of {entry.name} ({entry.model}) is revoked; the site no longer answers this study.")


@site.command()
def studies(
    file: Annotated[Path, typer.Option("--site", help="The site's TOML file.")] = HERE,
    as_json: Json = False,
) -> None:
    """List the studies approved at this site: when each was last approved, and how often it was answered."""
    from fedshed.deployment.approval import latest
    from fedshed.deployment.config import read_site
    from fedshed.deployment.review import ledger_of

    given = read_site(file)
    ledger = ledger_of(file, given)
    rows = [_study(one, given, ledger.studies.get(one.name)) for one in latest(given.studies)]
    if as_json:
        return print_json(rows)
    if not rows:
        return say("No study has been approved at this site; see `fedshed site approve --help`.")
    notes = (
        ["This site also answers studies that nobody has approved (any_study)."] if given.any_study else []
    )
    short = [{**row, "study": row["study"][:SHORT]} for row in rows]
    print_rows(short, notes, f"studies of site {given.name}", ("approved", "by", "answers", "refusals"))


@site.command()
def audit(
    file: Annotated[Path, typer.Option("--site", help="The site's TOML file.")] = HERE,
    study: Annotated[
        str, option("Show only this study, named by the first digits of its SHA-256.", "all studies")
    ] = "",
    last: Annotated[int, option("How many of the latest entries to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Verify the record of what the site was asked and what left it, and show its last entries."""
    from fedshed.deployment.config import read_site
    from fedshed.privacy.audit import all_entries, set_aside

    given = read_site(file)
    path = file.resolve().parent / given.audit
    if not path.exists() and not set_aside(path):
        return say(f"{path} does not exist: the site has not been asked anything yet.")
    record = list(all_entries(path))
    shown = [one for one in record if one.study.startswith(study)]
    if as_json:
        return print_json(shown[-last:])
    if not shown:
        return say(
            f"The record has no entry for a study {study!r}; it has {len(record)} entries for other studies."
        )
    notes = [
        f"{len(record)} entries, {len(shown[-last:])} shown; the chain of hashes is whole",
        f"last hash, to be noted elsewhere: {record[-1].hash}",
    ]
    rows = list(map(_entry, shown[-last:]))
    print_rows(rows, notes, f"record of site {given.name}", ("plan", "request", "study"))


def _agreed(digest: str, yes: str, study: Path) -> bool:
    """Whether the steward agrees; if there is no terminal to ask, the digest must be given."""
    if yes:
        if yes != digest:
            raise ConfigError(
                f"--yes names another study than {study}, whose SHA-256 is {digest} (of its content, not of "
                "the file); read that study and give its SHA-256"
            )
        return True
    if not sys.stdin.isatty():
        say("To approve it without a terminal, add these words to the same command:")
        say(f"--yes {digest}")
        return False
    return typer.prompt("Approve this study? Type yes or no", default="no").lower() in ("yes", "y")


def _decision(found: Decision, days: float, budget: float) -> Iterator[str]:
    """A decision in words, for a terminal of 80 columns."""
    from fedshed.deployment.decision import leaving

    most = found.ceilings
    yield f"Site {found.site} is asked to take part in a study; nothing has been sent."
    yield from _part("The model", [found.model, f"fitted by {found.algorithm}"])
    yield from _part(
        "Columns of your table that are used", [f"{one.column}: {one.use}" for one in found.uses]
    )
    if found.protected:
        yield from _protected(found)
    else:
        yield from _part(f"What leaves, computed from {found.rows} rows", leaving(found.items))
        yield from _part(
            "How much leaves at most",
            [
                f"{most.numbers:,} numbers, of which {most.curvature:,} entries of Hessians or eigenvectors",
                f"sums at {most.points} sets of parameters; for standard errors, Hessians at {most.hessians}",
                f"{most.numbers_before:,} numbers have left of this table in earlier studies",
            ],
        )
    master = f", whose authority has the SHA-256 {found.authority}" if found.authority else ""
    yield from _part("Who receives it", [f"the Master{master}, for the sites {', '.join(found.sites)}"])
    ends = f"{days:g} days from now, or earlier with `fedshed site revoke {found.sha256[:16]}`"
    yield from _part("Until when", [ends])
    if not found.protected:
        yield from _part("What a curious Master could learn", [found.exposure.sentence])
        yield from _part("Advice", found.advice)
    if found.broken:
        yield from _part("The site's policy would refuse; it demands", found.broken)
    yield f"\nSHA-256 of the study: {found.sha256}"


def _protected(found: Decision) -> Iterator[str]:
    """What a protected study discloses, and the assumptions that it needs."""
    from fedshed.deployment.decision import leaving

    few = len(found.sites) - found.least
    who = f"all {len(found.sites)} sites" + (
        f", or all but {few} that go away before the first sum" * bool(few)
    )
    yield from _part(
        "What leaves",
        [
            "numbers that look random; only their sums over the sites have a meaning",
            f"the Master sees these sums, over {who}, and nothing of this site alone",
            "this site computes the only request that may come next, and answers no other",
        ],
    )
    yield from _part("What the Master sees, as sums over the sites", leaving(found.items))
    yield from _part(
        "What this assumes",
        [
            "no site helps the Master: with the help of one site, it learns the sums over the other sites",
            "the keys below really belong to the sites: ask each site by telephone",
            *(f"{name}: {key}" for name, key in sorted(found.keys.items())),
        ],
    )


def _own_key(file: Path, asked: StudyFile) -> tuple[str, str]:
    """The name and the public key of a site, which a protected study must name."""
    from fedshed.deployment.config import read_site
    from fedshed.privacy.masks import identity_public

    given = read_site(file)
    path = file.resolve().parent / given.identity
    if asked.keys and not path.is_file():
        raise ConfigError(f"{path} does not exist; run `fedshed site join` once to make it")
    return given.name, identity_public(path.read_bytes()).hex() if asked.keys else ""


def _part(title: str, lines: list[str]) -> Iterator[str]:
    yield f"\n{title}"
    for line in lines:
        yield textwrap.fill(
            line, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
        )


def _study(one: Approval, given: SiteFile, record: Any) -> dict[str, Any]:
    return {
        "study": one.name,
        "model": one.model,
        "state": one.state(given.revoked),
        "approved": f"{one.approved:%Y-%m-%d}",
        "until": f"{one.until:%Y-%m-%d}",
        "by": one.by,
        "answers": record.answers if record else 0,
        "numbers": record.numbers if record else 0,
        "refusals": record.refusals if record else 0,
    }


def _entry(one: Entry) -> dict[str, Any]:
    return {
        "time": one.time[:16].replace("T", " "),
        "study": one.study[:SHORT] or "-",
        "what": _said(one) if not one.rule else f"refused: {one.rule}",
        "numbers": one.scalars,
        "total": one.total,
        "plan": one.plan[:SHORT] or "-",
        "request": one.request[:SHORT] or "-",
        "leverage": "-" if one.leverage is None else f"{one.leverage:.2f}",
    }


ANSWERS = {
    "Costs": "costs along a step", "Local": "gradient", "LocalHessian": "gradient and Hessian",
    "LocalScale": "gradient and diagonal", "LocalWhole": "gradient and Hessian", "Inspected": "inspection",
    "Moments": "sums of the target", "Scattered": "squared scores", "Schema": "columns and levels",
    "Ready": "rows and means", "Deviations": "sums of columns", "Values": "constant columns",
    "Tallies": "sums and histograms", "Undefined": "no answer at this point", "Scores": "comparison of sites",
    "Leverages": "leverages times columns",
}  # fmt: skip


def _said(one: Entry) -> str:
    """The answer in words; the Master sees only the sum over all sites of what is masked."""
    from fedshed.privacy.entry import WITNESSED

    if one.what == WITNESSED:
        return f"masked study: record {one.record} is on disk"
    answered = one.what.rpartition("-> ")[2].split("+")
    said = ", ".join(ANSWERS.get(kind, kind) for kind in answered)
    return f"masked: {said}" if one.what.startswith(MASKED) else said


def _named(study: str, given: SiteFile) -> Approval:
    """The only approval of a study whose SHA-256 begins with these digits."""
    found = {one.sha256: one for one in given.studies if one.sha256.startswith(study)}
    if len(found) != 1 or len(study) < 4:
        known = ", ".join(one.name for one in given.studies) or "none"
        raise ConfigError(
            f"{study!r} does not name exactly one study that was approved here; give at least four digits of "
            f"one of these: {known}"
        )
    return next(iter(found.values()))


def _or_dash(value: int | None) -> Any:
    return "-" if value is None else value
