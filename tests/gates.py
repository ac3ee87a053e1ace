"""The gates of `make ci`: each in an environment of its own, as a stranger would have it.

    python tests/gates.py newcomer    a fresh clone without data: the README's two commands and the tutorials
    python tests/gates.py wheel       sdist and wheel, installed without constraints: core, [data], [data,ui]
    python tests/gates.py lowest      the lowest versions that pyproject.toml declares
    python tests/gates.py pythons     the newest versions on other Pythons, where they are installed
    python tests/gates.py ci          all that .ci/run runs, one after the other
    python tests/gates.py release     a clean tree, no stale result and one version; uploads nothing

It needs Python, pip, git and make, and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "-q")
OTHER_PYTHONS = ("3.12", "3.13")
MOST_BYTES = 1_650_000  # of the wheel, a third of it the plotting library of the report
# what the lowest versions must pass: everything that leans on a dependency
CORE = (
    "test_codec", "test_cli", "test_cli_fit", "test_csv_files", "test_disclosure", "test_doctor",
    "test_engine", "test_estimators", "test_examples", "test_federation", "test_fit", "test_inference",
    "test_linalg", "test_notebook", "test_objectives", "test_packaging", "test_preparation",
    "test_quantize", "test_report", "test_summary",
)  # fmt: skip
QUICK = ("test_cli_fit", "test_codec", "test_examples", "test_fit", "test_layout", "test_packaging")
MODULES = """
import importlib, pkgutil, sys
import fedshed
needed = {
    "fedshed.deployment.certificates": "flower", "fedshed.deployment.flower": "flower",
    "fedshed.deployment.join": "flower", "fedshed.deployment.renew": "flower",
    "fedshed.deployment.nvflare": "nvflare", "fedshed.ui.server": "ui",
}
installed = set(sys.argv[1:])
for module in pkgutil.walk_packages(fedshed.__path__, "fedshed."):
    extra = next((extra for name, extra in needed.items() if module.name.startswith(name)), "")
    if not module.name.endswith("__main__") and extra in {"", *installed}:
        importlib.import_module(module.name)
"""


def run(*command: object, folder: Path = ROOT, **environment: str | None) -> None:
    """A command that must succeed; None takes a variable out of its environment."""
    env = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    print("$", " ".join(str(word) for word in command), flush=True)
    subprocess.run([str(word) for word in command], cwd=folder, env=env, check=True)


@contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder far from this one: nothing here can help or harm."""
    with tempfile.TemporaryDirectory(prefix="fedshed-gate-") as name:
        yield Path(name)


def environment(folder: Path, *what: object, python: str = sys.executable) -> Path:
    """The Python of a new environment with these packages, the newest that suit."""
    run(python, "-m", "venv", folder)
    run(folder / "bin/python", *PIP, *what)
    return folder / "bin/python"


def newcomer() -> None:
    """The whole suite in a fresh clone: no data, nothing beside it, the README's commands only."""
    with empty_folder() as folder:
        run("git", "clone", "-q", ROOT, folder / "fedshed")
        clean = {"FEDSHED_DATA": None, "FEDSHED_NO_SKIP": None, "XDG_CACHE_HOME": str(folder / "cache")}
        began = time.monotonic()
        run("make", "demo", folder=folder / "fedshed", **clean)
        demo = time.monotonic() - began
        run("make", "test", "PYTEST=-rs --durations=60", folder=folder / "fedshed", **clean)
        run("make", "tutorials", folder=folder / "fedshed", **clean)
        rest = time.monotonic() - began - demo
        print(f"make demo took {demo:.0f} s, make test and the tutorials {rest:.0f} s")


def wheel() -> None:
    """What `pip install fedshed` gives: built here, installed without constraints."""
    with empty_folder() as folder:
        builder = environment(folder / "builder", "build")
        run(builder, "-m", "build", "-q", "--outdir", folder / "dist", ROOT)
        (built,), (source,) = folder.glob("dist/*.whl"), folder.glob("dist/*.tar.gz")
        print(f"{built.name}: {built.stat().st_size:,} bytes; {source.name}: {source.stat().st_size:,} bytes")
        assert built.stat().st_size < MOST_BYTES, f"the wheel has more than {MOST_BYTES:,} bytes"
        run(sys.executable, "-m", "venv", folder / "user")
        for extras in ("", "data", "data,ui"):  # one after the other, as a user adds them
            _used(folder, built, extras)
        user = folder / "user/bin"
        run(user / "python", *PIP, "--no-deps", "--force-reinstall", source)
        run(user / "fedshed", "doctor", folder=folder)


def _used(folder: Path, built: Path, extras: str) -> None:
    """Every module imports and every command works with just these extras, or says what it needs."""
    python = folder / "user/bin/python"
    run(python, *PIP, f"{built}[{extras}]" if extras else built)
    fedshed, work = python.parent / "fedshed", folder / f"work-{extras.replace(',', '-') or 'core'}"
    work.mkdir()
    installed = extras.split(",") if extras else []
    run(python, "-c", MODULES, *installed, folder=work)
    run(fedshed, "--version", folder=work)
    run(fedshed, "doctor", folder=work)
    run(fedshed, "example", "hospitals", ".", folder=work)
    run(fedshed, "compare", "--agents", "4", "--algorithms", "newton,fib-shed", folder=work)
    run(fedshed, "reproduce", "rho", "--quick", folder=work, XDG_CACHE_HOME=str(work / "cache"))
    fit = (fedshed, "fit", "north.csv", "south.csv", "west.csv", "--target", "malignant")
    if "data" in installed:
        run(*fit, folder=work)
        run(fedshed, "predict", "results/fit/model.json", "west.csv", "--out", "p.csv", folder=work)
        run(
            fedshed,
            "compare",
            "north.csv",
            "west.csv",
            "--target",
            "malignant",
            "--algorithms",
            "newton",
            folder=work,
        )
    else:
        done = subprocess.run(fit, cwd=work, capture_output=True, text=True, check=False)
        said = "error: reading tables needs pyarrow: pip install 'fedshed[data]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said), done


def release() -> None:
    """What has to be so before a version is published; sdist and wheel in dist/, the site in site/."""
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    if changed.stdout:
        sys.exit(f"release: commit or remove these first:\n{changed.stdout}")
    if wrong := disagreeing(ROOT):
        sys.exit(f"release: {wrong}")
    run("make", "--no-print-directory", ".venv/.dev")
    run(ROOT / ".venv/bin/python", "-m", "benchmarks", "figures", "--check", "--strict")
    with empty_folder() as folder:
        builder = environment(folder / "builder", "build")
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        run(builder, "-m", "build", "-q", "--outdir", ROOT / "dist", ROOT)
    run("make", "--no-print-directory", "docs")
    print("release: all is ready in dist/ and site/; nothing was uploaded")


def disagreeing(root: Path, released: bool = True) -> str:
    """Which file has another version than the package, in a sentence; nothing where all agree."""
    version = _found(root / "src/fedshed/_utils/version.py", r'^__version__ = "(.+)"')
    cited = _found(root / "CITATION.cff", r"^version: (.+)")
    newest = _found(root / "CHANGELOG.md", r"^## (\S+)" if released else r"^## (\d\S*)")
    if cited != version:
        return f"CITATION.cff has version {cited}, the package {version}"
    if newest != version:
        return f"CHANGELOG.md begins with {newest!r}; its newest heading must be {version!r}, the package's"
    return ""


def _found(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text(), re.M)
    return found[1] if found else ""


def _uv(folder: Path) -> Path:
    return environment(folder / "uv", "uv").parent / "uv"


def lowest() -> None:
    """The lowest declared version of every direct dependency."""
    with empty_folder() as folder:
        uv = _uv(folder)
        run(sys.executable, "-m", "venv", folder / "lowest")
        python = folder / "lowest/bin/python"
        run(uv, "pip", "install", "-q", "--python", python, "--resolution", "lowest-direct",
            f"{ROOT}[data,ui,dev,tensorboard]")  # fmt: skip
        run(uv, "pip", "list", "--python", python)
        _tested(python, CORE)


def pythons() -> None:
    """The newest versions of everything on other Pythons, where they can be had."""
    with empty_folder() as folder:
        uv = _uv(folder)
        for version in OTHER_PYTHONS:
            found = _interpreter(version)
            if found is None:
                print(f"Python {version} is not installed here: not tried")
                continue
            python = folder / version / "bin/python"
            run(uv, "venv", "-q", "--python", found, folder / version)
            run(uv, "pip", "install", "-q", "--python", python, f"{ROOT}[data,ui,dev]")
            # lifelines, an oracle of tests that are not run here, holds pandas back
            run(uv, "pip", "install", "-q", "--python", python, "--upgrade", "pandas")
            _tested(python, QUICK)


def _interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    there = [
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"versions/{version}*/bin/python{version}")),
    ]
    for one in filter(None, there):  # a shim may be there and lead nowhere
        if subprocess.run([one, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return str(one)
    return None


def _tested(python: Path, names: tuple[str, ...]) -> None:
    """These tests, of the package as installed; warnings of other packages among themselves do not matter."""
    files = [next((ROOT / "tests").rglob(f"{name}.py")) for name in names]
    quiet = (
        "-W",
        "ignore::DeprecationWarning",
        "-W",
        "ignore::PendingDeprecationWarning",
        "-W",
        "ignore::FutureWarning",
    )
    run(
        python,
        "-m",
        "pytest",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        *quiet,
        *files,
        FEDSHED_DATA=None,
        FEDSHED_NO_SKIP=None,
    )


GATES: dict[str, Callable[[], None]] = {
    "newcomer": newcomer, "wheel": wheel, "lowest": lowest, "pythons": pythons, "release": release,
}  # fmt: skip
# the quick figures of `make quick` are drawn by a test; the browser reads the site that `docs` has built
STEPS = ("newcomer", "data", "docs", "browser", "benchopt", "ray", "wheel", "lowest")
# steps that run beside others: the engines mostly wait, types are one process, environments mostly downloads
BESIDE = {
    "engines": ("docs", "browser", "benchopt", "ray", "wheel"),
    "lint": ("docs", "browser", "benchopt", "ray", "wheel"),
    "pythons": ("lowest",),
}
INSTALLED = tuple(
    f".venv/.{extra}" for extra in ("browser", "engines", "docs", "benchopt", "ray")
)  # not beside


def ci() -> None:
    """Every step with its time; the first that fails ends it."""
    took: dict[str, float] = {}
    beside: dict[str, _Beside] = {}
    start = time.monotonic()
    try:
        for step in STEPS:
            if "engines" in _beginning(step):
                run("make", "--no-print-directory", *INSTALLED)
            beside |= {other: _Beside(other) for other in _beginning(step)}
            took[step] = _step(step)
            for other in _ending(step):
                took[other] = beside[other].ended()
        _step("stale")  # a warning only: `make release` makes it an error
    finally:
        print("\n=== times")
        for step, seconds in took.items():
            print(f"{step:10} {seconds:6.0f} s")
        print(f"{'in all':10} {time.monotonic() - start:6.0f} s", flush=True)


def _beginning(step: str) -> list[str]:
    """The steps that begin with this one, and run beside it."""
    return [other for other, steps in BESIDE.items() if step == steps[0]]


def _ending(step: str) -> list[str]:
    """The steps that are waited for after this one."""
    return [other for other, steps in BESIDE.items() if step == steps[-1]]


def _step(step: str) -> float:
    """How long a step took."""
    began = time.monotonic()
    print(f"\n=== {step}", flush=True)
    run("make", "--no-print-directory", step)
    return time.monotonic() - began


class _Beside:
    """A step that runs beside others; what it printed is shown when it has ended."""

    def __init__(self, step: str) -> None:
        self._step, self._began = step, time.monotonic()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - read when the step has ended
        command = ["make", "--no-print-directory", step]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=self._said, stderr=subprocess.STDOUT)

    def ended(self) -> float:
        """How long it took, once it has ended; a failure is an error."""
        code = self._process.wait()
        self._said.seek(0)
        print(f"\n=== {self._step}\n{self._said.read().decode(errors='replace')}", flush=True)
        if code:
            raise subprocess.CalledProcessError(code, ["make", self._step])
        return time.monotonic() - self._began


def main() -> None:
    """Run the gate that is named."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    gate = {**GATES, "ci": ci}.get(name)
    if gate is None:
        sys.exit(str(__doc__))
    for tool in ("git", "make"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed")
    try:
        gate()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{name} failed: {' '.join(map(str, error.cmd))} ended with {error.returncode}")


if __name__ == "__main__":
    main()
