"""What `fedshed doctor` finds: packages, BLAS and threads, data, and whether a small fit is right."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

import numpy as np
from msgspec import Struct
from packaging.requirements import Requirement

from fedshed._utils.errors import DataError
from fedshed._utils.version import __version__

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Finding(Struct, frozen=True):
    """One check: whether it passed, what was found, and what can be done about it."""

    what: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = True  # fedshed does not work without it


def examine() -> list[Finding]:
    """All checks: what fedshed always needs first, then what is optional."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    found = [
        Finding("fedshed", True, f"{__version__} on {system}, {os.cpu_count()} CPUs"),
        *packages(),
        *blas(),
        *data(),
        self_test(),
    ]
    return sorted(found, key=lambda one: (not one.needed, not one.ok))


MAKERS = ("dev", "docs", "browser", "benchopt")  # extras for development, which `make` installs


def packages() -> list[Finding]:
    """The packages that fedshed needs, then those of each extra, without the extras for development."""
    try:
        wanted = [Requirement(text) for text in requires("fedshed") or ()]
    except PackageNotFoundError:
        return [
            Finding(
                "packages", True, "not known, because fedshed runs from its source tree and is not installed"
            )
        ]
    groups: dict[str, list[Requirement]] = {"": []}
    for one in wanted:
        groups.setdefault(_extra(one), []).append(one)
    return [_group(extra, members) for extra, members in groups.items() if extra not in MAKERS]


def _extra(requirement: Requirement) -> str:
    """The extra a requirement belongs to; "" if it is always needed."""
    marker = str(requirement.marker or "")
    return marker.partition("extra == ")[2].strip("\"'") if "extra == " in marker else ""


def _group(extra: str, members: list[Requirement]) -> Finding:
    found = {one.name: _version(one.name) for one in members}
    missing = [one.name for one in members if not _fits(one, found[one.name])]
    said = ", ".join(f"{name} {have or 'missing'}" for name, have in found.items())
    remedy = (
        f"to install it: pip install 'fedshed[{extra}]'"
        if extra
        else "to install them: pip install --upgrade fedshed"
    )
    title = f"extra {extra}" if extra else "packages"
    return Finding(title, not missing, said, remedy if missing else "", needed=not extra)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _fits(requirement: Requirement, have: str | None) -> bool:
    return have is not None and requirement.specifier.contains(have, prereleases=True)


def blas() -> list[Finding]:
    """The BLAS libraries and their threads."""
    import scipy.linalg  # noqa: F401  brings its own
    from threadpoolctl import threadpool_info

    pools: list[dict[str, Any]] = threadpool_info()
    found = [f"{one['internal_api']} {one['version'] or '?'}, {one['num_threads']} threads" for one in pools]
    given = ", ".join(f"{name}={os.environ[name]}" for name in THREADS if name in os.environ)
    note = f" ({given})" if given else ""
    return [Finding("BLAS", bool(found), "; ".join(dict.fromkeys(found)) + note + "; a run uses one thread")]


def data() -> list[Finding]:
    """The data sets that were found, and those that are missing."""
    from fedshed.datasets.files import cache
    from fedshed.datasets.loaders import DATASETS

    missing = []
    for name, dataset in DATASETS.items():
        try:
            dataset.find_files()
        except DataError:
            missing.append(name)
    folders = f"FEDSHED_DATA={os.environ.get('FEDSHED_DATA') or 'not set'}, cache {cache()}"
    here = [name for name in DATASETS if name not in missing]
    remedy = f"`fedshed datasets` explains how to get {', '.join(missing)}" if missing else ""
    return [Finding("data", not missing, f"{', '.join(here)} ({folders})", remedy, needed=False)]


def self_test() -> Finding:
    """Compare a small fit across three sites with the pooled optimum."""
    from fedshed import Federation, optimize, optimum

    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    y = np.where(X @ [1.0, -1.0, 0.5, 0.0] + rng.logistic(size=90) > 0, 1, -1)
    sites = Federation.from_arrays(X, y, sites=np.repeat(list("abc"), [10, 30, 50]))
    theta, _ = optimum(sites, l2=1e-3)
    result = optimize(sites, l2=1e-3, algorithm="fib-shed")
    error = float(np.abs(result.theta - theta).max())
    found = f"a fit across three sites is within {error:.0e} of the pooled one"
    return Finding("self-test", result.converged and error < 1e-6, found, "please report this as a bug")
