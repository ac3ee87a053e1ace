"""Sentences about levels of a category that look wrong, such as two spellings of one level."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from fedshed.preparation.messages import Schema
from fedshed.preparation.study import Study
from fedshed.tables.columns import level_text
from fedshed.tables.frames import common_order, in_order
from fedshed.tables.marks import is_mark

_MOST = 3  # levels that one sentence names


def of_levels(study: Study, schemas: Mapping[str, Schema]) -> tuple[str, ...]:
    """A sentence for each way in which the levels of a column, or the classes of the target, look wrong."""
    found = (
        sentence
        for column, sites in _levels_by_site(study, schemas).items()
        for sentence in (*_alike(column, sites), *_marks(column, sites), *_at_one_site(study, column, sites))
    )
    return (*found, *_orders(schemas))


def of_positive(study: Study, schemas: Mapping[str, Schema]) -> tuple[str, ...]:
    """A sentence for each site without a positive value of the target, all rows of which are alike."""
    named, without = _positive_in_words(study), sites_without_positive(study, schemas)
    alone = (say_without_positive(study, site) for site in without)
    more = (
        f"site {site!r} has other words for yes in column {study.marked!r} than those named by positive "
        f"({named}), and they count as the other class; name them in positive (--positive), too"
        for site in sorted(schemas)
        if site not in without and schemas[site].others == "respelled"
    )
    return (*alone, *more)


def say_without_positive(study: Study, site: str) -> str:
    """The sentence for a site that has no positive value of the target."""
    survival = study.event is not None
    secret = " (or in fewer rows than its disclosure policy lets it tell)" if survival else ""
    return (
        f"site {site!r} has none of the values named by positive ({_positive_in_words(study)}) in column "
        f"{study.marked!r}{secret}; all its rows count as {'censored' if survival else 'the other class'}, "
        "so check how the site writes them"
    )


def _positive_in_words(study: Study) -> str:
    return ", ".join(repr(level_text(value)) for value in study.positive)


def sites_without_positive(study: Study, schemas: Mapping[str, Schema]) -> list[str]:
    """The sites that have none of the study's positive values, as far as they tell."""
    if not study.positive:
        return []
    return [
        site for site in sorted(schemas) if not schemas[site].positive and True not in schemas[site].labels
    ]


def _levels_by_site(study: Study, schemas: Mapping[str, Schema]) -> dict[str, dict[str, list[str]]]:
    """The sites of each level, by column."""
    sites: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for site in sorted(schemas):
        named = {field.name: field.levels for field in schemas[site].fields}
        named[study.target] = tuple(label for label in schemas[site].labels if isinstance(label, str))
        for column, levels in named.items():
            for level in levels:
                sites[column][level].append(site)
    return sites


def _alike(column: str, sites: Mapping[str, list[str]]) -> Iterable[str]:
    """Levels that differ by case or spaces only, or are one number in two spellings."""
    for alike, how in ((_without_case, "by case or spaces"), (_number, "in how a number is written")):
        for levels in _groups(sites, alike):
            where = ", ".join(f"{level!r} (site {sites[level][0]!r})" for level in levels[:_MOST])
            yield (
                f"column {column!r}: the levels {where} differ only {how}; write them alike if they are the "
                "same level"
            )


def _groups(levels: Iterable[str], alike: Callable[[str], object]) -> list[list[str]]:
    found: dict[object, list[str]] = defaultdict(list)
    for level in in_order(levels):
        found[alike(level)].append(level)
    return [group for group in found.values() if len(group) > 1]


def _without_case(level: str) -> str:
    return "".join(level.split()).casefold()


def _number(level: str) -> object:
    """The number that a level is; a text is its own."""
    try:
        return float(level)
    except ValueError:
        return level


def _marks(column: str, sites: Mapping[str, list[str]]) -> Iterable[str]:
    """Levels that mark a missing value; a frame that declares its levels may have them."""
    for level in filter(is_mark, sites):
        yield (
            f"column {column!r}: the level {level!r} at site {sites[level][0]!r} looks like a mark for a "
            "missing value; if it is, mark it as missing there"
        )


def _at_one_site(study: Study, column: str, sites: Mapping[str, list[str]]) -> Iterable[str]:
    """Levels whose effect cannot be told from that of the only site that has them.

    A column that has one level at each site names the site, and is meant to.
    """
    alone = [level for level in in_order(sites) if len(sites[level]) == 1]
    levels = Counter(site for each in sites.values() for site in each)
    if alone and len(levels) > 1 and max(levels.values()) > 1 and column != study.site:
        named = ", ".join(f"{level!r} (site {sites[level][0]!r})" for level in alone[:_MOST])
        more = f" and {len(alone) - _MOST} more" if len(alone) > _MOST else ""
        kind, verb = ("level", "occurs") if len(alone) == 1 else ("levels", "occur")
        yield f"column {column!r}: the {kind} {named}{more} {verb} at one site only; check the spelling"


def _orders(schemas: Mapping[str, Schema]) -> Iterable[str]:
    """Columns whose levels the sites declare in orders that contradict each other."""
    declared: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for site in sorted(schemas):
        for field in schemas[site].fields:
            if field.ordered:
                declared[field.name].append(field.levels)
    for column, orders in declared.items():
        if common_order(orders) is None:
            yield (
                f"column {column!r}: the sites declare its levels in different orders, so they are in "
                "alphabetical order here; declare one order, or name the reference in references"
            )
