"""The tree as code, documentation and configuration name it: what is named exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"(?<![\w./@-])fedshed(?:\.[A-Za-z_]\w*)+")
FILES = ("toml", "svg", "html", "json", "org", "db", "ai")  # fedshed.toml is a file, not a module


def exists(name):
    """Whether a dotted name is a module, or leads from one to an attribute."""
    module, *attributes = name, []
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        module = ".".join(parts[:k])
        try:
            if find_spec(module) is None:
                continue
        except ModuleNotFoundError:
            continue
        except ImportError:  # an engine that is not installed
            return True
        attributes = parts[k:]
        break
    if not attributes:
        return True
    try:
        found = import_module(module)
    except ImportError:  # an engine that is not installed
        return True
    for attribute in attributes:
        fields = getattr(found, "__struct_fields__", ())
        if not hasattr(found, attribute) and attribute not in fields:
            return False
        found = getattr(found, attribute, None)
    return True


def strings(path):
    """The string constants of a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def named(text):
    """What looks like a name of this package in a text."""
    found = {match.group().rstrip(".") for match in NAME.finditer(text)}
    return sorted(name for name in found if name.split(".")[-1] not in FILES)


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "pyproject.toml",
    *sorted(ROOT.glob("docs/**/*.md")),
]
SOURCES = [*sorted(ROOT.glob("src/**/*.py")), *sorted(ROOT.glob("benchmarks/**/*.py"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_on_a_page_exist(path):
    assert [name for name in named(path.read_text(encoding="utf-8")) if not exists(name)] == []


def test_names_in_strings_exist():
    wrong = {
        str(path.relative_to(ROOT)): missing
        for path in SOURCES
        if (missing := [name for text in strings(path) for name in named(text) if not exists(name)])
    }
    assert wrong == {}


def test_a_name_that_is_nowhere_is_found():
    assert not exists("fedshed.transports.agent")
    assert not exists("fedshed.solve.engine.nothing")
    assert exists("fedshed.optimize")
    assert exists("fedshed.solve.engine.iterate")


CODE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_on_a_page_exist(path):
    files = CODE.findall(path.read_text(encoding="utf-8"))
    places = (ROOT, ROOT / "src", ROOT / "src/fedshed")
    assert [file for file in files if not any((place / file).exists() for place in places)] == []


EACH_ALONE = """
import ast, sys
from pathlib import Path
import fedshed
stub = ast.parse(Path(fedshed.__file__).with_suffix(".pyi").read_text())
imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
first = {node.module: node.names[0].name for node in imports if node.names[0].name in fedshed.__all__}
assert len(first) > 20
for name in first.values():
    for module in [module for module in sys.modules if module.partition(".")[0] == "fedshed"]:
        del sys.modules[module]
    import fedshed
    assert getattr(fedshed, name) is not None, name
"""


def test_every_public_name_can_be_had_first():
    """Modules are imported when a name of theirs is used; none may need that another was used before."""
    subprocess.run([sys.executable, "-c", EACH_ALONE], check=True)
