"""The attacked site: our own Node on simulated rows, its rules as in the defaults or switched off."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pandas as pd
from msgspec.structs import replace

from benchmarks.attacks.shape import Mode
from fedshed._utils.files import secret_file
from fedshed.deployment.approval import new_approval
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.fitting.terms import Terms
from fedshed.objectives import family_of
from fedshed.preparation import Study
from fedshed.privacy.masks import identity_public
from fedshed.privacy.policy import Policy

SITE = "site"
SITES = (SITE, "other", "third")
NEVER = 1e300
# For each rule, the fields of the policy that switch it off.  Approval is a field of the site's file, and
# the checks in `patches` have no switch in the product.
SWITCHES: dict[str, dict[str, Any]] = {
    "approval": {},
    "effective rows": {"effective_rows": 1},
    "deviance": {"max_deviance": NEVER},
    "budget": {"max_numbers": NEVER, "max_curvature": NEVER},
    "refusals": {"max_refusals": 1_000_000},
    "classes": {"min_rows_per_class": 1},
    "cells": {"min_rows_per_level": 1},
    "parameters": {"max_parameters_per_row": NEVER},
    "rows": {"min_rows": 1},
    "answers": {},
    "decoder": {},
}


def policy(mode: Mode, rules: Collection[str], base: Mapping[str, Any] | None = None) -> Policy:
    """The default policy, with these rules switched off in that mode."""
    off = [SWITCHES[rule] for rule in rules] if mode != "rule on" else []
    fields = {**(base or {}), **{name: value for fields in off for name, value in fields.items()}}
    return Policy(**fields)


def site_file(mode: Mode, rules: Collection[str], name: str, base: Mapping[str, Any] | None) -> SiteFile:
    """The site's file; with the approval switched off it answers any study."""
    return SiteFile(
        name,
        Source(parquet=f"{name}.parquet"),
        disclosure=policy(mode, rules, base),
        state=f"{name}-state",
        audit=f"{name}.jsonl",
        any_study=mode == "rule off" and "approval" in rules,
        identity=f"{name}.key",
    )


def approved(file: SiteFile, study: StudyFile) -> SiteFile:
    """The site's file with this study approved."""
    approval = new_approval(study.terms.digest.hex(), study.terms.in_words())
    return replace(file, studies=(approval,))


def study_file(study: Study, algorithm: str, mode: Mode) -> StudyFile:
    """A study of one site; with its rules off, one that may ask about any number of points."""
    return StudyFile(study, (SITE,), algorithm, points=None if mode == "rule on" else 1_000_000)


def named(file: StudyFile | None) -> Terms | None:
    """How a study is named to the sites: by its terms, if it has any."""
    return None if file is None else file.terms


def cover(mode: Mode, file: StudyFile) -> StudyFile | None:
    """Under which name a Master asks for another study: that of the approved one, if it must be approved."""
    return None if mode == "rule off" else file


# Checks that have no switch in the product: module, name, and what replaces it while the rule is off.
def _nothing(*_: Any) -> None:
    """No objection."""


def _levels(problem: Any, sums: Mapping[str, Any]) -> Any:
    """The start that follows from the sites' sums, whatever they are."""
    return family_of(problem.loss).objective.null_levels(sum(sums.values()))


PATCHES: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "answers": (
        *(("preparation.answer_checks", name, _nothing) for name in ("of_schema", "of_ready", "same_table")),
        ("solve.inspection", "disagreement", _nothing),
        ("fitting.fit_problem", "contradiction", _nothing),
        ("solve.null_start", "levels_of", _levels),
        ("inference.infer", "levels_of", _levels),
    ),
    "decoder": (
        ("protocol.quantize", "check_numbers", _nothing),
        ("protocol.messages", "MOST_STEP_SIZES", 1 << 40),
    ),
}


@contextmanager
def unchecked(mode: Mode, rule: str) -> Iterator[None]:
    """The code without a check that has no switch, where the rule is off."""
    with ExitStack() as stack:
        for module, name, instead in PATCHES[rule] if mode == "rule off" else ():
            found = import_module(f"fedshed.{module}")
            stack.enter_context(patch.object(found, name, instead))
        yield


@contextmanager
def nodes(
    frames: Mapping[str, pd.DataFrame], study: StudyFile, mode: Mode, rules: Collection[str],
    base: Mapping[str, Any] | None = None, kept: Collection[str] = (),
) -> Iterator[InProcess]:  # fmt: skip
    """Nodes with these rows, in this process; they have approved `study`, or answer any.

    In protected mode all rules are off but those `kept`: masks, replay and approval must do.
    """
    with TemporaryDirectory() as place:
        folder = Path(place)
        found = {}
        if mode == "protected":
            frames = frames if len(frames) > 1 else split(frames[SITE])
            study, rules, base = protected_file(study, folder), SWITCHES.keys() - set(kept), None
        for name, frame in frames.items():
            frame.to_parquet(folder / f"{name}.parquet")
            file = site_file(mode, rules, name, base)
            found[name] = Node(approved(file, study), folder)
        yield Protected(found, study) if mode == "protected" else InProcess(found)


# --- protected mode ------------------------------------------------------------------------------


class Protected(InProcess):
    """The nodes of a protected study, and the study."""

    def __init__(self, sites: Mapping[str, Node], file: StudyFile) -> None:
        super().__init__(sites)
        self.file = file


def split(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of one site as those of three; yes and no are numbers, which needs no list of levels."""
    numbers = frame.astype(dict.fromkeys(frame.select_dtypes(bool).columns, float))
    ends = [0, len(frame) // 3, 2 * len(frame) // 3, len(frame)]
    return {site: numbers[ends[k] : ends[k + 1]] for k, site in enumerate(SITES)}


def as_protected(study: Study) -> Study:
    """A study of a disease as a protected one."""
    listed = study.classified and not study.positive
    return replace(study, protected=True, classes=(0, 1) if listed else study.classes)


def protected_file(file: StudyFile, folder: Path) -> StudyFile:
    """A study as the protected one of three sites, whose keys are made here; any number of points."""
    keys = {site: identity_public(secret_file(folder / f"{site}.key")).hex() for site in SITES}
    return replace(file, study=as_protected(file.study), sites=SITES, keys=keys, points=1_000_000)
