"""An extension of Griffe: each Struct or dataclass of the reference has one table of its fields.

Griffe reads source code and does not know that the fields of a msgspec Struct are the parameters of its
class.  A field is described in the docstring or by the comment beside it, in the class or in a base class.
It is then shown in the table and nowhere else, with its type and its default.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import griffe

SECTIONS = re.compile(r"^(Parameters|Attributes)\n-+$", flags=re.M)
KINDS = (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)


class ParameterTables(griffe.Extension):
    """Gives classes a constructor and a table of parameters, as the package has been read."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Go through all classes of the package."""
        classes = [one for one in _classes(pkg) if one.docstring is not None]
        fields = {one.path: _fields(one) for one in classes if _is_struct(one) or "dataclass" in one.labels}
        for found in classes:
            if found.path in fields:
                _tabulate(found, fields[found.path])
            if _is_result(found):  # its reader does not make it
                _complete(_table(found), {})
                found.members.pop("__init__", None)


def _classes(parent: griffe.Module | griffe.Class) -> list[griffe.Class]:
    """All classes that are written in a module, its submodules or a class."""
    written = [one for one in parent.members.values() if not one.is_alias]
    inner = [each for one in written if one.is_module or one.is_class for each in _classes(one)]
    return [*(one for one in written if one.is_class), *inner]


def _bases(one: griffe.Class) -> list[griffe.Class]:
    """The classes of this package that a class is derived from."""
    return [base for base in one.resolved_bases if base.is_class]


def _is_struct(one: griffe.Class) -> bool:
    own = any(getattr(base, "canonical_path", "") == "msgspec.Struct" for base in one.bases)
    return own or any(_is_struct(base) for base in _bases(one))


def _is_result(one: griffe.Class) -> bool:
    """Whether only attributes are described, as for what a function returns."""
    return set(SECTIONS.findall(one.docstring.value)) == {"Attributes"}


def _is_field(one: griffe.Object | griffe.Alias) -> bool:
    if not one.is_attribute or one.is_alias or one.annotation is None or one.name.startswith("_"):
        return False
    return "property" not in one.labels and "instance-attribute" in one.labels


def _fields(one: griffe.Class) -> dict[str, griffe.Parameter]:
    """The parameters of the constructor, those of base classes first."""
    found = {name: field for base in _bases(one) if _is_struct(base) for name, field in _fields(base).items()}
    beside = field_comments(one.filepath).get(one.name, {})
    by_name = str(one.keywords.get("kw_only")) == "True"
    kind = griffe.ParameterKind.keyword_only if by_name else griffe.ParameterKind.positional_or_keyword
    for member in filter(_is_field, one.members.values()):
        name = member.name
        inherited = found[name].docstring.value if name in found else ""
        said = griffe.Docstring(beside.get(name, inherited), parent=one)
        annotation = _without_limits(member.annotation)
        found[name] = griffe.Parameter(
            name, annotation=annotation, kind=kind, default=member.value, docstring=said
        )
    return found


def _without_limits(annotation: Any) -> Any:
    """A type without what Annotated adds to it."""
    if isinstance(annotation, griffe.ExprBinOp):
        left, right = _without_limits(annotation.left), _without_limits(annotation.right)
        return replace(annotation, left=left, right=right)
    if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Annotated":
        return annotation.slice.elements[0]
    return annotation


def _tabulate(one: griffe.Class, fields: dict[str, griffe.Parameter]) -> None:
    """A constructor, and a table with a row for each field."""
    if "__init__" not in one.members:
        itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        parameters = griffe.Parameters(itself, *fields.values())
        one.set_member("__init__", griffe.Function("__init__", parent=one, parameters=parameters))
    if fields:
        _complete(_table(one), fields)
    for name in [name for name in fields if name in one.members and _is_field(one.members[name])]:
        one.del_member(name)


def _table(one: griffe.Class) -> Any:
    """The table of the docstring, with types and defaults of the constructor; an empty one if it has none."""
    parsed = one.docstring.parsed
    for part in parsed:
        if part.kind in KINDS:
            return part
    table = griffe.DocstringSectionParameters([])
    parsed.insert(next((k for k, part in enumerate(parsed) if part.kind.value != "text"), 1), table)
    return table


def _complete(table: Any, fields: dict[str, griffe.Parameter]) -> None:
    """Split rows of several names, and add the fields that have none."""
    rows = [(name, row) for row in table.value for name in row.name.split(", ")]
    described = {name: _row(table, name, row.description, row.annotation, fields) for name, row in rows}
    beside = {name: sentence(field.docstring.value) for name, field in fields.items()}
    rest = {name: _row(table, name, beside[name], None, fields) for name in fields if name not in described}
    table.value[:] = [*described.values(), *rest.values()]


def _row(table: Any, name: str, meaning: str, kind: Any, fields: dict[str, griffe.Parameter]) -> Any:
    """One row; a result has no column of defaults."""
    field = fields.get(name)
    annotation = kind or (field and field.annotation)
    if table.kind is griffe.DocstringSectionKind.attributes:
        return griffe.DocstringAttribute(name, annotation=annotation, description=meaning)
    default = None if field is None or field.default is None else str(field.default)
    return griffe.DocstringParameter(name, annotation=annotation, description=meaning, value=default)


def sentence(words: str) -> str:
    """A comment as a sentence."""
    return words and f"{words[0].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


@cache
def field_comments(path: Path) -> dict[str, dict[str, str]]:
    """What is said of each annotated field of each class of a file, by class and field."""
    others = elsewhere().get("/".join(path.parts[-2:]), {})
    return {name: others.get(name, {}) | beside for name, beside in of_file(path).items()}


@cache
def elsewhere() -> dict[str, dict[str, dict[str, str]]]:
    """Descriptions of fields that have no comment beside them, by file and class."""
    return tomllib.loads((Path(__file__).parent / "descriptions.toml").read_text(encoding="utf-8"))


def source_of(file: str) -> Path:
    """A file of the package, by its path in it."""
    return Path(__file__).parents[2] / "src" / "fedshed" / file


def of_file(path: Path) -> dict[str, dict[str, str]]:
    """The comments beside fields, by class and field."""
    source = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    beside = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return {each.name: _of_class(each, beside) for each in classes}


def _of_class(node: ast.ClassDef, beside: dict[int, str]) -> dict[str, str]:
    fields = (part for part in node.body if isinstance(part, ast.AnnAssign))
    found = {ast.unparse(field.target): _of_lines(field, beside) for field in fields}
    return {name: text for name, text in found.items() if text}


def _of_lines(field: ast.AnnAssign, beside: dict[int, str]) -> str:
    lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
    words = (beside[line].lstrip("# ") for line in lines if line in beside)
    return " ".join(word for word in words if not word.startswith(("noqa", "type:", "fmt:")))
