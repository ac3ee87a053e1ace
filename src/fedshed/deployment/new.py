"""`fedshed deploy new`: a folder with a whole study, of which each machine then gets its part."""

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
    from fedshed.deployment.plan import Kit

STUDY = """# The study, which every site is asked to approve; docs/preparation.md explains the model.
sites = [{sites}]
family = "logistic"          # {family}
target = "{target}"{modelled}
{columns}
l2 = 1e-3                    # {ridge}
algorithm = "auto"           # see `fedshed algorithms`
tolerance = 1e-9             # on the norm of the global gradient
# An exchange is one request of the Master with the answers of the sites.
deadline = {deadline}              # how many seconds the Master waits for the answers of an exchange
{faults}
"""
FAULTS = """# quorum = {count}                 # how many sites must answer an exchange; default: all
# patience = 5               # how many exchanges in a row a site may leave unanswered"""
PROTECTED_FAULTS = """# quorum = {count}                 # how many sites must take part; default: all
# patience = 5               # a site may be away for this many times {deadline} s"""
COLUMNS = """# columns = ["radius"]  # or formula = "{target} ~ radius + C(grade)"; default: all columns"""
CHANGE = "change this"  # what is said of each example value in the study of real sites
EXAMPLE = {
    "family": "see `fedshed families`",
    "modelled": "",
    "ridge": "ridge, not on the intercept",
    "listed": "",
    "classes": "of the target; the last one is the event",
}
TO_CHANGE = {
    "family": f"{CHANGE} if the target does not have two classes; see `fedshed families`",
    "modelled": f"         # {CHANGE}: the column to be modelled",
    "ridge": f"{CHANGE}: the ridge penalty, not on the intercept; 0 means none",
    "listed": f"  # {CHANGE}: the predictors",
    "classes": f"{CHANGE}: the classes of the target; the last one is the event",
}
PROTECTED = """
protected = true             # the Master sees only sums over all sites (docs/protected.md)
standardize = true
classes = ["no", "yes"]      # {classes}
# levels = {{ ward = ["a", "b"] }}  # of each category: give them here, as no site may send its own
"""
KEYS = """
[keys]                       # the public key of each site, as `fedshed site join` showed it at the site
{keys}
"""
SITE = """# Site {site}. This file, the table and the keys beside it stay at the site.
name = "{site}"

[table]                      # one of:
csv = "table.csv"             # sep, decimal and encoding can be added; by default they are detected
# parquet = "table.parquet"
# arrow = "table.arrow"       # its rows are not read into memory (docs/large.md)
# na_values = ["?"]          # marks of missing values in the CSV file, besides NA, NULL and similar
# sql = "SELECT ..."         # with url = "postgresql://..." (SQLAlchemy; $NAME is read from the environment),
#                            # or database = "file.duckdb", or neither: DuckDB reads files named in the query

# [columns]                  # the columns that are offered: the study's name = the table's name; default: all
# age = "AGE_YEARS"

# [uplink]                   # what the link carries: bytes_per_round or bytes_per_second; default: no limit
# bytes_per_round = 4096

[disclosure]                 # a request that breaks a rule is not answered; audit.jsonl records what left
min_rows = 10
min_rows_per_class = 5
min_rows_per_level = 5       # of a category, or of a column with two values
max_parameters_per_row = 0.2
effective_rows = 10          # that contribute to a sum, at every set of parameters that is asked about
max_deviance = 1.5           # of a logistic model there, as a multiple of the deviance without columns
max_scalars = 1_000_000      # numbers that are released in one study
max_curvature = 0.2          # entries of Hessians per row and column, over all studies of this table
max_numbers = 1.0            # the same for numbers of all kinds
max_refusals = 3             # refusals in one study; after them it ends
max_epsilon = 10.0           # of all private studies of the site together, with max_delta
max_delta = 1e-5

# Below this line `fedshed site approve study.toml` writes which studies the site answers.
"""
DEADLINE = {"flower": 120, "nvflare": 60}
NAME_TABLE = (
    "Put `study.toml`, as the Master sent it, beside `site.toml`. In `site.toml`, under `[table]`, set `csv` "
    "to the path of your table, or use `parquet`, `arrow` or `sql` instead. If your columns have other names "
    "than those of the study, map them under `[columns]`. Then type the commands for your site.\n"
)
EXAMPLE_TABLE = (
    "Put `study.toml`, as the Master sent it, beside `site.toml`. In `site.toml`, `csv` under `[table]` "
    "names the table; here it is `table.csv`, a part of the example. Then type the commands for your site.\n"
)
RESULTS = """When the study has ended, `results/` contains:

- `summary.txt`, `coefficients.csv`: the estimates, as text and as a table
- `model.json`, `plan.json`: the model, and how its columns are made from a table
- `report.html`: the report
- `report.json`: what the study cost; it is written last
- `trace.csv`, `run.jsonl`: the course of the fit
- `evaluation.txt`, `evaluation.csv`: only if rows are held out
- `survival.txt`, `curves.csv`, `survival.svg`: only if the study asks for survival curves

If the study failed, `error.txt` gives the reason.
"""
STILL_RUNNING = (
    "The programs of the Master and of the sites keep running, so that another study can follow. If none "
    "follows, stop them.\n"
)
SUPERVISED = (
    "Stop a program that runs under a supervisor with that supervisor, such as `systemctl stop`, and a "
    "container with `docker stop {site}` (with the name of the site); otherwise it is started again.\n"
)


TRIAL = (
    "The sites' keys were made here, at the Master: they are for a trial only; "
    "for a study each site makes its own with `fedshed site join`, and `deploy new --requests` collects them."
)


def write(
    root: Path, plan: Deployment, requests: Mapping[str, Joining] | None = None, *, protected: bool = False
) -> list[Path]:
    """Write everything: the plan, the study, the sites, the certificates and the commands.

    Without requests of sites it is a trial: the sites' keys are made here, and they get the tables of an
    example.
    """
    if root.exists() and any(root.iterdir()):
        raise ConfigError(f"the folder {root} is not empty; give the name of a new one")
    if protected:
        check_sites(plan.sites)
    from fedshed.deployment.example import write_tables
    from fedshed.deployment.renew import keep

    keep(root, plan.kit.write(root, requests or {}), plan, requests or {})
    keys = _identities(root, plan, requests or {}) if protected else None
    study = _study(plan, keys, TO_CHANGE if requests else EXAMPLE)
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


def _study(plan: Deployment, keys: Mapping[str, str] | None, notes: Mapping[str, str]) -> str:
    """The study's file, written for the tables of the example, with notes on the values."""
    from fedshed.datasets.examples import MEASURED, TARGET

    sites, named = (", ".join(f'"{name}"' for name in names) for names in (plan.sites, MEASURED))
    deadline, fewest = DEADLINE[plan.engine], 1 if keys is None else FEWEST_SITES
    faults = FAULTS if keys is None else PROTECTED_FAULTS
    text = STUDY.format(
        sites=sites, target=TARGET, deadline=deadline,
        columns=COLUMNS.format(target=TARGET) if keys is None else f"columns = [{named}]{notes['listed']}",
        **{name: notes[name] for name in ("family", "modelled", "ridge")},
        faults=faults.format(count=max(fewest, len(plan.sites) - 1), deadline=deadline),
    )  # fmt: skip
    if keys is None:
        return text
    lines = "\n".join(f'{site} = "{key}"' for site, key in keys.items())
    return text + PROTECTED.format(classes=notes["classes"]) + KEYS.format(keys=lines)


def commands(plan: Deployment, requests: Mapping[str, Joining] | None = None) -> str:
    """The text of COMMANDS.md: what to type on each machine, in order."""
    kit, engine = plan.kit, plan.engine
    steps = [
        f"# A study at {plan.host}:{plan.port} on {engine}, with the sites {', '.join(plan.sites)}\n",
        *([f"{kit.notice}\n"] if kit.notice else []),
        f"Run `pip install 'fedshed[{engine}]'` on each machine, in an environment whose `bin` is first on "
        "PATH.",
        *_handed_out(requests or {}),
        *_at_the_master(kit, f" (change what is marked `# {CHANGE}`)" if requests else ""),
        *_at_the_sites(plan, bool(requests)),
        "## 3. At the Master, in `master/`\n",
        "When all sites run, start the study:\n",
        _block(kit.start().line()),
        "This command shows how far the study has come, as soon as the fit has begun:\n",
        _block("fedshed watch results"),
        RESULTS,
        *_ended(plan),
        *_in_a_container(plan),
        "## Later\n",
        "`fedshed deploy renew .` makes new certificates. The folder `authority/` holds the key that signs "
        "them; keep it at the Master.\n",
    ]
    return "\n".join(steps)


def _at_the_master(kit: Kit, note: str) -> list[str]:
    """The first step: the study is written, then the Master is started."""
    steps = [
        "## 1. At the Master, in `master/`\n",
        f"Write the study into `study.toml`{note} and send this file to every site; each site must approve "
        "it. Then start the Master:\n",
        _block(kit.master().line()),
    ]
    if kit.admissions():
        steps += [
            "Then, in another shell in the same folder:\n",
            _block(*(one.line() for one in kit.admissions())),
        ]
    return steps


def _at_the_sites(plan: Deployment, real: bool) -> list[str]:
    """The second step: each site names its table, approves the study and starts its program."""
    steps = ["## 2. At each site\n", NAME_TABLE if real else EXAMPLE_TABLE]
    for site in plan.sites:
        steps += [
            f"### At site {site}, in {'its folder' if real else f'`sites/{site}/`'}\n",
            _block("fedshed site approve study.toml  # as the Master sent it", plan.kit.site(site).line()),
        ]
    return steps


def _ended(plan: Deployment) -> list[str]:
    """How to stop the programs, which do not end with the study."""
    kit, steps = plan.kit, ["## 4. When the study has ended\n", STILL_RUNNING]
    if (everything := kit.stop()) is None:
        steps.append("Press Ctrl-C in the shell of the Master and in that of each site.\n")
    else:
        steps += [
            "Ctrl-C is not enough. This command stops the Master and all sites; type it at the Master, in "
            "another shell in `master/`:\n",
            _block(everything.line()),
            "A site can also stop its own program, in another shell in the site's folder:\n",
            _block(kit.stop_site()),
        ]
    return [*steps, SUPERVISED.format(site=plan.sites[0])]


def _handed_out(requests: Mapping[str, Joining]) -> list[str]:
    """How the sites get their folders, and which fingerprints must be compared."""
    if not requests:
        return [
            TRIAL,
            "`fedshed deploy local .` runs the whole study on this machine; docs/deploy.md has the details.",
            "Send the folder `sites/NAME/` to site NAME over a secure channel and keep no copy: it holds "
            "the site's key.\n",
        ]
    keys = [
        f"- {site}: `{one.fingerprint}`; for protected studies `{one.identity}`"
        for site, one in requests.items()
    ]
    return [
        "The sites made their own keys. Before anything else, compare these fingerprints by telephone with "
        "those that `fedshed site join` printed at each site:\n",
        *keys,
        "\nSend the folder `sites/NAME/` to site NAME over a channel on which nobody can change it; it holds "
        "no key. The site copies the contents into the folder that `fedshed site join` made.\n",
    ]


def _in_a_container(plan: Deployment) -> list[str]:
    """The commands of a site in a container, which runs as the owner of the site's folder."""
    run = 'docker run --init --user "$(id -u):$(id -g)" -v "$PWD:/site"'
    site = plan.sites[0]
    return [
        "## In a container instead\n",
        "A site can run in a container. Build its image once, in a clone of fedshed:\n",
        _block(f"docker build -t fedshed-node --build-arg ENGINE={plan.engine} ."),
        f"Then, in the folder of the site (here {site}):\n",
        _block(
            f"{run} --rm -it fedshed-node fedshed site approve study.toml",
            f"{run} -d --restart unless-stopped --name {site} fedshed-node sh -c "
            f"{quote(plan.kit.site(site).line())}",
        ),
    ]


def _block(*lines: str) -> str:
    return "\n".join(["```sh", *lines, "```\n"])
