"""What the code imports is what pyproject.toml declares, for the core and for each extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = sorted((ROOT / "src/fedshed").rglob("*.py"))
# distributions that are installed for an engine or a device only, by the module they bring
ABSENT = {
    "flwr": "flwr", "nvflare": "nvflare", "cryptography": "cryptography", "psutil": "psutil",
    "torch": "torch", "mlflow": "mlflow-skinny", "tensorboardX": "tensorboardx",
    "starlette": "starlette", "uvicorn": "uvicorn", "ray": "ray",
}  # fmt: skip
OF_USERS = [extra for extra in PROJECT["optional-dependencies"] if extra not in ("dev", "docs", "browser")]
ON_REQUEST = {"array-api-strict"}  # a device that only tests name
# modules that may import an extra at their top: nothing imports them without it
OF_AN_EXTRA = {
    "deployment/certificates.py": "flower",
    "deployment/flower.py": "flower",
    "deployment/flower_master.py": "flower",
    "deployment/flower_runtime.py": "flower",
    "deployment/flower_site.py": "flower",
    "deployment/join.py": "flower",
    "deployment/nvflare.py": "nvflare",
    "deployment/nvflare_rejoin.py": "nvflare",
    "ui/server.py": "ui",
}


def declared(*extras: str) -> set[str]:
    """The distributions of the core and of these extras."""
    texts = [*PROJECT["dependencies"], *(t for e in extras for t in PROJECT["optional-dependencies"][e])]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def imported(path: Path) -> list[tuple[str, bool]]:
    """Modules from elsewhere that a file imports, and whether it does so when it is imported itself."""
    tree, found = ast.parse(path.read_text()), []
    top = {id(node) for node in tree.body} | {
        id(node) for block in tree.body if isinstance(block, ast.Try) for node in block.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(name.name, id(node) in top) for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((str(node.module), id(node) in top))
    known = {*sys.stdlib_module_names, "fedshed"}
    return [(name.partition(".")[0], first) for name, first in found if name.partition(".")[0] not in known]


OWNERS = packages_distributions()


def distribution(module: str) -> str:
    owners = OWNERS.get(module) or [ABSENT[module]]
    return canonicalize_name(owners[0])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "src/fedshed")))
def test_every_import_is_of_a_declared_dependency(path):
    """Within a function of any extra; at the top of a module of the core, or of that module's own extra."""
    extra = OF_AN_EXTRA.get(str(path.relative_to(ROOT / "src/fedshed")))
    at_the_top = declared(*([extra] if extra else []))
    for module, first in imported(path):
        allowed = at_the_top if first else declared(*OF_USERS) | ON_REQUEST
        assert distribution(module) in allowed, f"{path.name} imports {module}, which is not declared"


def test_no_dependency_is_declared_that_nothing_imports():
    used = {distribution(module) for path in MODULES for module, _ in imported(path)}
    assert declared() <= used


def test_the_image_of_a_node_is_built_from_files_that_are_there_and_not_ignored():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), flags=re.M)
    sources = [source for line in copied for source in line.split()]
    assert {"pyproject.toml", "src", "constraints.txt"} <= set(sources)
    assert all((ROOT / source).exists() for source in sources)
    assert {f"!{source}" for source in sources} <= set((ROOT / ".dockerignore").read_text().split())


def test_the_engines_of_the_image_are_extras():
    assert {"flower", "nvflare", "sql", "protected"} <= PROJECT["optional-dependencies"].keys()
