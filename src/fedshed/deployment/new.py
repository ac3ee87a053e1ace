"""`fedshed deploy new`: a folder that holds a whole study, ready to be handed out machine by machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import secret_file, write_atomically
from fedshed.deployment.plan import Deployment
from fedshed.fitting.protected_study import check_sites
from fedshed.privacy.fixed_point import FEWEST_SITES

if TYPE_CHECKING:
    from fedshed.deployment.join import Joining

STUDY = """# The study, at the Master; docs/preparation.md has all that can be said of the model.
sites = [{sites}]
family = "logistic"          # see `fedshed families`
target = "{target}"
{columns}
l2 = 1e-3                    # ridge, not on the intercept
algorithm = "auto"           # see `fedshed algorithms`
tolerance = 1e-9             # on the norm of the global gradient
deadline = {deadline}              # seconds a round may take
{faults}
"""
FAULTS = """# quorum = {count}                 # sites that must answer in a round; default: all
# patience = 5               # rounds a site may stay silent"""
PROTECTED_FAULTS = """# quorum = {count}                 # sites that the sums must be over; default: all
# patience = 5               # times {deadline} s for which a site may be away"""
COLUMNS = (
    """# columns = ["radius"]  # or formula = "{target} ~ radius + C(grade)"; default: all that sites offer"""
)
PROTECTED = """
protected = true             # the Master sees only sums over all sites (docs/protected.md)
standardize = true
classes = ["no", "yes"]      # of the target, the last is the event
# levels = { ward = ["a", "b"] }  # of each category: nothing that a table alone knows may leave it
"""
KEYS = """
[keys]                       # of the sites, as `fedshed site join` showed them there
{keys}
"""
SITE = """# Site {site}: this file, the table and the keys beside it stay here.
name = "{site}"

[table]                      # one of:
csv = "table.csv"             # sep, decimal and encoding may be given beside it; else they are found out
# parquet = "table.parquet"
# arrow = "table.arrow"       # of which the rows are not read into memory (docs/large.md)
# na_values = ["?"]          # marks for missing values in the CSV, besides NA, NULL and the like
# sql = "SELECT ..."         # with url = "postgresql://..." (SQLAlchemy, $NAME from the environment),
#                            # or database = "file.duckdb", or neither: DuckDB reads files named in the query

# [columns]                  # what is offered, the study's name = the name here; default: all columns
# age = "AGE_YEARS"

# [uplink]                   # bytes_per_round, or bytes_per_second; default: no limit
# bytes_per_round = 4096

[disclosure]                 # what breaks a rule is not answered; audit.jsonl records what left
min_rows = 10
min_rows_per_class = 5
min_rows_per_level = 5       # of a column with two levels, or a category
max_parameters_per_row = 0.2
effective_rows = 10          # that count in a sum, at every point that is asked about
max_deviance = 1.5           # of a logistic model at such a point, times that without columns
max_scalars = 1_000_000      # numbers released in one study
max_curvature = 0.2          # entries of Hessians per row and column, over all studies of this table
max_numbers = 1.0            # the same of all numbers
max_refusals = 3             # in one study, which then ends
max_epsilon = 10.0           # of all private studies of the site together, with max_delta
max_delta = 1e-5

# `fedshed site approve study.toml` writes below this line which studies the site answers.
"""
DEADLINE = {"flower": 120, "nvflare": 60}


TRIAL = (
    "The sites' keys were made here, at the Master: they are for a trial only; "
    "for a study each site makes its own with `fedshed site join`, and `deploy new --requests` collects them."
)


def write(
    root: Path, plan: Deployment, requests: Mapping[str, Joining] | None = None, *, protected: bool = False
) -> list[Path]:
    """Everything: plan, study, sites, certificates, and the commands.

    Without requests of sites it is a trial: their keys are made here, and they get an example's tables.
    """
    if root.exists() and any(root.iterdir()):
        raise ConfigError(f"{root} is not empty; name a new folder")
    if protected:
        check_sites(plan.sites)
    from fedshed.deployment.example import write_tables
    from fedshed.deployment.renew import keep

    keep(root, plan.kit.write(root, requests or {}), plan, requests or {})
    study = _study(plan, _identities(root, plan, requests or {}) if protected else None)
    written = [
        write_atomically(root / "deployment.toml", plan.toml().encode()),
        write_atomically(root / "master" / "study.toml", study.encode()),
    ]
    for site in plan.sites:
        written.append(write_atomically(root / "sites" / site / "site.toml", SITE.format(site=site).encode()))
    if not requests:
        write_tables({site: root / "sites" / site / "table.csv" for site in plan.sites})
    return [*written, write_atomically(root / "COMMANDS.md", commands(plan, requests or {}).encode())]


def _identities(root: Path, plan: Deployment, requests: Mapping[str, Joining]) -> dict[str, str]:
    """The public keys of the sites; in a trial they are made here."""
    from fedshed.deployment.join import IDENTITY
    from fedshed.privacy.masks import identity_public

    if requests:
        return {site: requests[site].identity for site in plan.sites}
    return {site: identity_public(secret_file(root / "sites" / site / IDENTITY)).hex() for site in plan.sites}


def _study(plan: Deployment, keys: Mapping[str, str] | None) -> str:
    """The study's file, for the example's tables."""
    from fedshed.datasets.examples import MEASURED, TARGET

    sites, named = (", ".join(f'"{name}"' for name in names) for names in (plan.sites, MEASURED))
    deadline, fewest = DEADLINE[plan.engine], 1 if keys is None else FEWEST_SITES
    faults = FAULTS if keys is None else PROTECTED_FAULTS
    text = STUDY.format(
        sites=sites, target=TARGET, deadline=deadline,
        columns=COLUMNS.format(target=TARGET) if keys is None else f"columns = [{named}]",
        faults=faults.format(count=max(fewest, len(plan.sites) - 1), deadline=deadline),
    )  # fmt: skip
    if keys is None:
        return text
    lines = "\n".join(f'{site} = "{key}"' for site, key in keys.items())
    return text + PROTECTED + KEYS.format(keys=lines)


def commands(plan: Deployment, requests: Mapping[str, Joining] | None = None) -> str:
    """What is typed on each machine, in order."""
    kit, engine = plan.kit, plan.engine
    steps = [
        f"# {plan.host}:{plan.port} on {engine}, sites {', '.join(plan.sites)}\n",
        *([f"{kit.notice}\n"] if kit.notice else []),
        f"All machines: `pip install 'fedshed[{engine}]'` in an environment whose `bin` is first on PATH.",
        *_handed_out(requests or {}),
        "## 1. At the Master, in `master/`\n",
        _block(kit.master().line()),
    ]
    if kit.admissions():
        steps += ["then, in another shell there:\n", _block(*(one.line() for one in kit.admissions()))]
    steps += ["Write the study into `study.toml`, and send it to every site: each has to approve it.\n"]
    for site in plan.sites:
        steps += [
            f"## 2. At site {site}, in {'its folder' if requests else f'`sites/{site}/`'}\n",
            _block("fedshed site approve study.toml  # as the Master sent it", kit.site(site).line()),
        ]
    steps += [
        "## 3. At the Master, in `master/`\n",
        _block(kit.start().line()),
        "`results/` then has `summary.txt`, `model.json`, `trace.csv` and `report.json`, or `error.txt`.\n",
        *_in_a_container(plan),
        "## Later\n",
        "`fedshed deploy renew .` makes new certificates; `authority/` holds the key that signs them and "
        "stays at the Master.\n",
    ]
    return "\n".join(steps)


def _handed_out(requests: Mapping[str, Joining]) -> list[str]:
    """How the sites get their folders, and what has to be compared."""
    if not requests:
        return [
            TRIAL,
            "`fedshed deploy local .` runs all of it here; docs/deploy.md says more.",
            "Give `sites/NAME/` to site NAME over a safe channel and keep no copy: it holds its key.\n",
        ]
    keys = [
        f"- {site}: `{one.fingerprint}`, in protected studies `{one.identity}`"
        for site, one in requests.items()
    ]
    return [
        "The sites made their own keys. Compare these fingerprints by telephone with those that "
        "`fedshed site join` printed at each site, before anything else:\n",
        *keys,
        "\nGive `sites/NAME/` to site NAME over a channel on which nobody can change it; it holds no key. "
        "The site copies its content into the folder that `fedshed site join` made.\n",
    ]


def _in_a_container(plan: Deployment) -> list[str]:
    """The lines of a site in a container of the Dockerfile, which runs as the owner of the site's folder."""
    run = 'docker run --init --user "$(id -u):$(id -g)" -v "$PWD:/site"'
    site = plan.sites[0]
    return [
        "## In a container instead\n",
        "A site can run in a container. Build its image once, in a clone of fedshed:\n",
        _block(f"docker build -t fedshed-node --build-arg ENGINE={plan.engine} ."),
        f"Then, in the folder of the site, here {site}:\n",
        _block(
            f"{run} --rm -it fedshed-node fedshed site approve study.toml",
            f"{run} -d --restart unless-stopped --name {site} fedshed-node sh -c "
            f"{quote(plan.kit.site(site).line())}",
        ),
    ]


def _block(*lines: str) -> str:
    return "\n".join(["```sh", *lines, "```\n"])
