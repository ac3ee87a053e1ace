"""From the schemas of all sites to one plan, or to an error that names the site, the column and a remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, DataError, ProtocolError
from fedshed._utils.names import closest, printable
from fedshed.objectives.build import check_no_intercept
from fedshed.objectives.families import family_of
from fedshed.objectives.targets import common_classes
from fedshed.preparation import filling, formulas
from fedshed.preparation.counts import shown
from fedshed.preparation.describe import identifier, is_category, looks_like_identifier
from fedshed.preparation.messages import Field, Ready, Schema
from fedshed.preparation.notices import sites_without_positive
from fedshed.preparation.objections import Objections, by_sentence, in_short
from fedshed.preparation.plan import REMEDY, DesignPlan, Label
from fedshed.preparation.spellings import say_positive, spellings_of_yes
from fedshed.preparation.study import Study
from fedshed.tables.columns import level_text
from fedshed.tables.frames import LONGEST, bare, common_order, difference, in_order

Schemas = Mapping[str, Schema]
LONGEST_REASON = 1000  # characters of a sentence from a site
_CODE = re.compile(r"0\d+")  # digits with a zero in front
_SAID = {"number": "numbers", "category": "text", "boolean": "booleans"}


def agree(study: Study, schemas: Schemas) -> DesignPlan:
    """The plan that suits every site's table; order of sites and columns does not matter."""
    fields = {site: {field.name: field for field in schemas[site].fields} for site in sorted(schemas)}
    objections = Objections()
    columns = objections.check(_common_columns, study, fields)
    objections.check(_check_missing, study, schemas)
    if objections.found:
        _check_problems(fields, objections)
    objections.raise_all()
    assert columns is not None
    fields = _with_values(study, columns, schemas, fields)
    mixed = set[str]()  # of several kinds, which is why some sites find them wrong
    for column in (*(c for c in study.beside if c not in study.any_kind), *columns):
        alike = {site: mine[column] for site, mine in fields.items() if column in mine}
        objections.check(_same_kind, study, column, alike, schemas)
        mixed |= {column} if len({field.kind for field in alike.values()}) > 1 else set()
    _check_problems(fields, objections, mixed)
    objections.check(_check_excluded, study, schemas)
    objections.check(_check_positive, study, schemas)
    objections.check(_check_other_spellings, study, schemas)
    first = {name: field for mine in reversed(fields.values()) for name, field in mine.items()}
    objections.check(_check_kinds_of_numbers, study, first)
    categories = [column for column in columns if first[column].kind != "number"]
    told = {c: [mine[c] for mine in fields.values() if c in mine] for c in categories}
    sound = {c for c in categories if not any(field.problem for field in told[c])}
    levels = {}
    for column in (c for c in categories if c in sound and len({field.kind for field in told[c]}) == 1):
        objections.check(_no_identifiers, study, schemas, {column: told[column]})
        alike = {site: mine[column] for site, mine in fields.items() if column in mine}
        objections.check(_no_lost_zeros, column, alike)
        objections.check(_no_mixed_booleans, column, alike)
        levels[column] = objections.check(_levels, study, column, told[column]) or ()
    if len({mine[study.target].kind for mine in fields.values()}) == 1:  # else that is the objection
        objections.check(_classes, study, schemas)
    objections.raise_all()
    lost = {field.name for schema in schemas.values() for field in schema.fields if field.missing}
    levels = filling.agreed_levels(study, levels, lost)
    _known_references(study, categories)
    classes = _classes(study, schemas)
    _known_reference_class(study, classes or ())
    intercept = study.intercept if study.formula is None else formulas.formula_of(study).intercept
    intercept = intercept and study.has_intercept
    if intercept:
        check_no_intercept(columns)
    curves_only = study.columns == () and study.event is not None
    if not columns and not intercept and not curves_only:
        raise ConfigError("no column is left for the model; name at least one, or let it have an intercept")
    marked = filling.agreed_indicators(study, columns, lost)
    return DesignPlan(study, columns, levels, classes, intercept, indicators=marked)


def with_names(plan: DesignPlan, ready: Mapping[str, Ready]) -> DesignPlan:
    """The plan with the names of the design's columns, which all sites must have alike."""
    first, *others = sorted(ready)
    for site in others:
        if (ready[site].names, ready[site].terms) != (ready[first].names, ready[first].terms):
            raise ProtocolError(
                f"sites {first!r} and {site!r} built different columns; run the same version of fedshed at "
                "all sites"
            )
    plan = replace(plan, names=ready[first].names, terms=ready[first].terms)
    plan.l2(), plan.l1()  # these name only what there is
    return plan


def _common_columns(study: Study, fields: Mapping[str, Mapping[str, Field]]) -> tuple[str, ...]:
    """The predictors, in the order of the study or of the first site."""
    first, *others = fields
    for site in others:
        for here, there in ((site, first), (first, site)):
            lacks = [column for column in fields[there] if column not in fields[here]]
            if any(fields[there][column].problem for column in lacks):
                problems = Objections()
                _check_problems({there: {column: fields[there][column] for column in lacks}}, problems)
                problems.raise_all()
            if lacks:
                alike = {bare(column): column for column in fields[here] if column not in fields[there]}
                if meant := alike.get(bare(lacks[0])):
                    raise DataError(
                        f"site {here!r} has column {meant!r}, and site {there!r} {lacks[0]!r}: names that "
                        f"differ in {difference(meant, lacks[0])} only; rename one of the columns"
                    )
                raise DataError(
                    f"site {here!r} lacks column {lacks[0]!r}, which site {there!r} has; add it, drop "
                    "it at the others, or name the columns to use"
                )
    chosen = formulas.formula_of(study).columns if study.formula is not None else study.columns
    if lacks := [column for column in (*study.beside, *(chosen or ())) if column not in fields[first]]:
        raise DataError(f"the sites lack column {lacks[0]!r}, which the study names; correct its name")
    return chosen if chosen is not None else tuple(c for c in fields[first] if c not in study.beside)


def _with_values(
    study: Study, columns: tuple[str, ...], schemas: Schemas, fields: Mapping[str, Mapping[str, Field]]
) -> dict[str, dict[str, Field]]:
    """The fields of each site but those of predictors that it misses in every row, which have no kind.

    A predictor that all sites miss so is refused, where missing values are filled in.
    """
    empty = {
        (site, name)
        for site, mine in fields.items()
        for name in columns
        if study.fills_in and mine[name].missing >= schemas[site].complete
    }
    for name in columns:
        if all((site, name) in empty for site in fields):
            raise DataError(f"column {name!r} is missing in every row of every site; leave it out")
    return {s: {n: field for n, field in mine.items() if (s, n) not in empty} for s, mine in fields.items()}


def _check_missing(study: Study, schemas: Schemas) -> None:
    for site in sorted(schemas):
        schema = schemas[site]
        if schema.rows == 0:
            raise DataError(f"site {site!r} has no rows; leave it out or give it data")
        worst = max(schema.fields, key=lambda field: abs(field.missing))
        lost = f"column {worst.name!r} is missing in {shown(worst.missing)} of {schema.rows} rows"
        if study.missing == "refuse" and worst.missing:
            raise DataError(f"site {site!r}: {lost}; {REMEDY}")
        if schema.complete == 0:
            raise DataError(
                f"site {site!r} has no complete row ({lost}); leave out that column, or leave out the site"
            )


def _same_kind(study: Study, column: str, fields: Mapping[str, Field], schemas: Schemas) -> None:
    """All sites hold a column as the same kind, or the one that most do not share is named."""
    counts = Counter(field.kind for field in fields.values())
    if len(counts) == 1:
        return
    usual = counts.most_common(1)[0][0]
    odd = next(site for site, field in fields.items() if field.kind != usual)
    others = [site for site, field in fields.items() if field.kind == usual]
    named = (
        f"site {others[0]!r} has" if len(others) == 1 else f"{len(others)} sites (such as {others[0]!r}) have"
    )
    of_two = column == study.target and family_of(study.loss).classes == "two"
    remedy = _remedy_of_classes(schemas) if of_two else (
        "convert it there: write 1 for True and 0 for False" if set(counts) == {"boolean", "number"} else
        "convert it there" if column in study.beside else
        "convert it there (a mark for missing values makes a column of numbers text: name it in na_values, "
        "--na-values); only if it holds codes at every site, list it under categories (--categories)"
    )  # fmt: skip
    raise DataError(
        f"site {odd!r}, column {column!r}: {_SAID[fields[odd].kind]} where {named} {_SAID[usual]}; {remedy}"
    )


def _remedy_of_classes(schemas: Schemas) -> str:
    """What to do where sites write two classes otherwise, with what each of them has."""
    found = {label for schema in schemas.values() for label in schema.labels}
    numbers = {label for label in found if not isinstance(label, bool | str)}
    if found <= {0, 1}:  # True is 1
        return "say that 1 counts as yes, which True then does, too (positive = [1], --positive 1)"
    how = "" if numbers and not spellings_of_yes(found) else f", or {say_positive(found)}"
    return f"{_say_labels(schemas)}; recode the column so that all sites write the same two classes{how}"


def _say_labels(schemas: Schemas) -> str:
    """The classes that each site has; numbers other than codes may be measurements, and are not quoted."""
    sites: dict[str, list[str]] = {}
    for site in sorted(schemas):
        labels = [
            str(label) if isinstance(label, bool | str) or label in (0, 1, 2) else "another number"
            for label in schemas[site].labels
        ]
        if labels:
            sites.setdefault(" and ".join(dict.fromkeys(labels)), []).append(site)
    return ", ".join(f"{_name_sites(names)} {said}" for said, names in sites.items())


def _name_sites(names: list[str]) -> str:
    """The first sites of some, and the verb."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    some = len(names) > 1
    return f"site{'s' * some} {', '.join(map(repr, names[:5]))}{more} {'have' if some else 'has'}"


def _check_problems(
    fields: Mapping[str, Mapping[str, Field]], objections: Objections, but: Container[str] = ()
) -> None:
    """Object to what sites say is wrong with their columns, in one line for the sites that say the same."""
    said = [
        (site, printable(field.problem[:LONGEST_REASON]))
        for site, mine in fields.items()
        for field in mine.values()
        if field.problem and field.name not in but
    ]
    for sites, reason in by_sentence(said):
        objections.check(_refuse, f"{in_short(sites)}: {reason}")


def _refuse(sentence: str) -> None:
    raise DataError(sentence)


def _check_excluded(study: Study, schemas: Schemas) -> None:
    """Refuse an excluded column that no site has: a mistyped name would leave the column in the model."""
    found = {name for schema in schemas.values() for name in schema.excluded}
    if lacks := [name for name in study.exclude if name not in found]:
        raise ConfigError(f"exclude names {lacks[0]!r}, which no site has; correct its name")


def _check_positive(study: Study, schemas: Schemas) -> None:
    """Refuse a positive value that no site has: a mistyped one would count its rows as negative."""
    found = {place for schema in schemas.values() for place in schema.positive}
    if lacks := [value for place, value in enumerate(study.positive) if place not in found]:
        raise ConfigError(
            f"positive names {lacks[0]!r}, which no site has in column {study.marked!r} (a site with a "
            "disclosure policy does not name a value that too few rows have); correct it, or leave it out"
        )


def _check_other_spellings(study: Study, schemas: Schemas) -> None:
    """Refuse sites that seem to write the two classes otherwise, where the others have one class beside yes.

    Where others have several, a site without a positive value may have two of these, and is noted only.
    """
    without = sites_without_positive(study, schemas)
    odd = [site for site in without if schemas[site].others == "respelled"]
    if not odd or any(schemas[site].others == "several" for site in schemas if site not in without):
        return
    raise DataError(
        f"{_name_sites(odd)} none of the values named by positive in column {study.marked!r}, but others "
        "that look like two classes in another spelling; all rows there would count as the other class. "
        "Write the values there as at the other sites, or name in positive (--positive) what means the same "
        "there, if no other site has it with another meaning"
    )


def _check_kinds_of_numbers(study: Study, fields: Mapping[str, Field]) -> None:
    computed = sorted(formulas.formula_of(study).numbers) if study.formula is not None else []
    for column in (*filter(None, study.numbers), *computed):
        if fields[column].kind != "number" and not (column == study.target and study.classified):
            role = f"the target of the {study.family} family" if column == study.target else "it"
            raise DataError(
                f"column {column!r} is {_SAID[fields[column].kind]} at every site, but {role} must be numbers"
                "; convert it or choose another column or family"
            )


def _no_identifiers(study: Study, schemas: Schemas, categories: Mapping[str, list[Field]]) -> None:
    """Refuse columns that identify rows, which only all sites together can see."""
    rows = sum(schema.complete for schema in schemas.values())
    for column, fields in categories.items():
        union = {level for field in fields for level in field.levels}
        if looks_like_identifier(len(union), rows) and not is_category(study, column):
            raise DataError(identifier(study, column, len(union), rows))


def _no_lost_zeros(column: str, fields: Mapping[str, Field]) -> None:
    """Refuse codes such as 01 at one site where another has them as numbers, without their zeros."""
    for site, field in fields.items():
        for code in filter(_CODE.fullmatch, field.levels):
            bare = code.lstrip("0") or "0"
            apart = not any({code, bare} <= set(other.levels) for other in fields.values())
            for there, other in fields.items():
                if other.from_numbers or (apart and bare in other.levels):
                    level = bare if bare in other.levels else next(iter(other.levels), bare)
                    raise DataError(
                        f"column {column!r}: site {site!r} has the code {code!r}, and site {there!r} has "
                        f"{level!r}, a number without leading zeros; read the column as text there (in "
                        "pandas: dtype=str), or write the codes alike in the files"
                    )


def _no_mixed_booleans(column: str, fields: Mapping[str, Field]) -> None:
    """Refuse True and False at one site beside 1 and 0 at another: as levels they would be four."""
    words, digits = (
        [s for s, field in fields.items() if field.levels and {*map(str.casefold, field.levels)} <= either]
        for either in ({"true", "false"}, {"0", "1"})
    )
    if words and digits:
        raise DataError(
            f"{in_short(words)}: column {column!r} holds True and False, where site {digits[0]!r} has 1 and "
            "0; write 1 for True and 0 for False there"
        )


def _levels(study: Study, column: str, fields: list[Field]) -> tuple[str, ...]:
    """All levels that occur anywhere, the reference first; in the order that sites declare, if they agree."""
    union = in_order({level for field in fields for level in field.levels})
    declared = common_order(field.levels for field in fields if field.ordered) or ()
    union = (*declared, *(level for level in union if level not in set(declared)))
    if column in study.levels:
        union = study.levels_of(column)
    if len(union) > study.max_levels or any(len(level) > LONGEST for level in union):
        raise DataError(
            f"column {column!r} has {len(union)} levels over all sites, of which max_levels = "
            f"{study.max_levels} and {LONGEST} characters each are allowed; group or shorten them"
        )
    if len(union) < 2:
        raise DataError(
            f"column {column!r} has one level over all sites and tells no rows apart; leave it out"
        )
    reference = level_text(study.references.get(column, union[0]))
    if reference not in union:
        raise DataError(
            f"column {column!r}: the reference {reference!r} does not occur at any site"
            f"{closest(reference, union)}"
        )
    return (reference, *(level for level in union if level != reference))


def _known_references(study: Study, categories: list[str]) -> None:
    for name in ("references", "levels"):
        for column in getattr(study, name):
            if column not in categories and (name, column) != ("references", study.target):
                raise ConfigError(
                    f"{name} names {column!r}, which is no category of the model; list it under categories "
                    f"if it holds numbers{closest(column, categories)}"
                )


def _known_reference_class(study: Study, classes: tuple[Label, ...]) -> None:
    """The reference class of a multinomial target is one of its classes."""
    named = study.references.get(study.target)
    known = [*map(level_text, classes)]
    if named is not None and level_text(named) not in known:
        raise ConfigError(
            f"references names {level_text(named)!r}, which is no class of {study.target!r} at any site"
            f"{closest(level_text(named), known)}"
        )


def _in_order(study: Study, schemas: Schemas) -> tuple[Label, ...]:
    """The classes that a study lists, in its order; each occurs at some site."""
    found = {label for schema in schemas.values() for label in schema.labels}
    if lacks := [label for label in study.classes if label not in found]:
        raise ConfigError(
            f"classes lists {lacks[0]!r}, which no site has in column {study.target!r}; leave it out"
        )
    return study.classes


def _classes(study: Study, schemas: Schemas) -> tuple[Label, ...] | None:
    if not study.classified:
        return None
    if family_of(study.loss).classes in ("ordered", "many") and study.classes:
        return _in_order(study, schemas)
    found = [np.array(schemas[site].labels) for site in sorted(schemas) if schemas[site].labels]
    try:
        classes = common_classes(family_of(study.loss), found)
    except DataError as error:
        union = dict.fromkeys(label for each in found for label in each.tolist())
        if family_of(study.loss).classes != "two" or len(union) < 3:
            raise
        raise DataError(f"{error}: {_remedy_of_classes(schemas)}") from None
    if study.classes and classes is not None and len(classes) < len(study.classes):
        lacks = next(label for label in study.classes if label not in classes)
        raise ConfigError(
            f"classes lists {lacks!r}, which no site has in column {study.target!r}; leave it out"
        )
    return classes
