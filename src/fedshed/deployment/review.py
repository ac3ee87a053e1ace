"""`fedshed site check`: what a site would send, found by asking its own node; nothing is sent."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, DataError
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.firth import Firth
from fedshed.algorithms.registry import with_one_exchange
from fedshed.deployment import tables
from fedshed.deployment.config import SiteFile, StudyFile, read_site
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.exchange.sites import Sites, Stage
from fedshed.exchange.wire import Traffic, Wire
from fedshed.fitting.conduct import problem_of
from fedshed.fitting.host import design_facts
from fedshed.fitting.sites import HostedTables
from fedshed.inference.result import RowRobust
from fedshed.objectives import family_of
from fedshed.objectives.build import held_objective, local_objective, origin
from fedshed.objectives.time_scale import POOLED
from fedshed.preparation import DesignPlan, Preparer, Study, filling, tallies
from fedshed.preparation.agreement import agree
from fedshed.preparation.approved import schema_of
from fedshed.preparation.cells import design_objections
from fedshed.preparation.describe import rarest, text_columns
from fedshed.preparation.formulas import powers_to_centre
from fedshed.preparation.holdout import fitted_rows, held_out
from fedshed.preparation.messages import Ready, Schema, Tallies
from fedshed.preparation.site import LEAST
from fedshed.privacy.audit import Audit, set_aside
from fedshed.privacy.gate import DesignFacts
from fedshed.privacy.ledger import Ledger
from fedshed.privacy.tables import held_objections, objections
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Ask, Flow, Problem
from fedshed.protocol.limits import MOST_LINES
from fedshed.protocol.messages import Message
from fedshed.solve import validation as checks
from fedshed.solve.evaluating import BINS, GROUPS, Evaluating
from fedshed.solve.inspection import Inspection
from fedshed.solve.life_counts import SurvivalCounts
from fedshed.solve.null_start import NullStart
from fedshed.solve.profile import Profile
from fedshed.solve.scatter import RowScatter, Scatter
from fedshed.solve.stages import CURVES, EVALUATION, INSPECT, PROFILE, SCATTER, START, SURVIVAL, fit_stage
from fedshed.solve.survival_checks import CheckSurvival, SurvivalCheck
from fedshed.tables.frames import Frame

ENOUGH = 1e300  # numbers, for what is only rehearsed
NO_RULES: dict[str, Any] = {
    "min_rows": 1, "min_rows_per_class": 1, "min_rows_per_level": 1, "max_parameters_per_row": ENOUGH,
    "effective_rows": 1, "max_deviance": ENOUGH,
}  # fmt: skip


class Item(Struct, frozen=True):
    """One thing that leaves the site."""

    when: str
    what: str
    numbers: int | None
    size: int


class Review(Struct, frozen=True):
    """A site, and what it would release in a study."""

    name: str
    rows: int
    algorithm: str
    eigenpairs: int | None  # d_t, where the link has a budget and the algorithm follows it
    items: list[Item]
    broken: list[str]  # rules of the site's policy that the study breaks, so that it would not answer
    chosen: str  # the algorithm's name
    points: int  # sets of parameters that may be asked about
    parameters: int
    predictors: dict[str, int]  # columns of the table, and how many levels of each would be named
    terms: tuple[str, ...]  # of the model
    facts: DesignFacts
    table: str  # SHA-256
    held: int = 0  # rows that are held out and evaluated


def review(path: Path, file: StudyFile | None = None, target: str | None = None) -> Review:
    """Run the first exchanges of a study with the node of a site's file, alone and in this process."""
    site = read_site(path)
    text = text_columns(file.study) if file else ()
    frame = tables.read(site, path.resolve().parent, text)
    file = file or StudyFile(Study(family="logistic", target=target or _last(path, frame)), (site.name,))
    if site.name not in file.sites:
        raise ConfigError(
            f"site {site.name!r} is not one of the sites of the study ({', '.join(file.sites)}); correct "
            "the name in site.toml, or ask the Master's operator to add the site"
        )
    protected = file.study.protected
    schema, plan, ready, told, broken = _fitting(file.study, site, frame)
    broken = (
        [] if protected else broken
    )  # these rules are for what a single site sends, which nobody sees here
    problem = problem_of(plan, {site.name: ready}, stateless=False)
    link = site.uplink.channel() if site.uplink else None
    algorithm, why = file.terms.choose(problem.n)
    if file.algorithm != "auto" and not file.study.firth:
        algorithm = checks.checked_algorithm(algorithm, link, None, 0, problem)
    known = tables.table_hash(site, path.resolve().parent, frame)
    facts = design_facts(plan, *plan.build(fitted_rows(file.study, Frame(frame), site.name)))
    algorithm = with_one_exchange(algorithm)
    items = [_of_schema(schema), *_of_ready(ready)]
    items += [item for answer in told for item in _items("before", answer) if item.numbers]
    if file.study.standardize or powers_to_centre(file.study):
        count = 3 * len(plan.names)
        when = "" if file.study.standardize else ", if a column with its powers is far from 0"
        items.append(Item("before", f"sums of columns, deviations and squares{when}", count, 8 * count))
    if file.study.site_estimates:
        count = problem.n + problem.n * (problem.n + 1) // 2
        items.append(Item("at the end", "its own estimate and covariance (SiteEstimate)", count, 8 * count))
    if not broken:
        rules = NO_RULES if protected else {}
        items += _rehearsed(path, _lenient(site, rules), plan, problem, algorithm, file.row_errors)
    return Review(
        site.name, ready.rows, why, _pairs(site, algorithm, problem.n), items, broken,
        why.partition(":")[0], file.terms.most_points(algorithm), problem.n,
        {name: len(plan.levels.get(name, ())) for name in plan.columns}, tuple(dict.fromkeys(plan.terms)),
        facts, known, _held(file.study, frame, site.name),
    )  # fmt: skip


def _held(study: Study, frame: Any, site: str) -> int:
    """How many rows are held out."""
    return 0 if study.holdout is None else int(held_out(study, Frame(frame), site).sum())


def ledger_of(path: Path, site: SiteFile) -> Ledger:
    """The totals of a site's record; zeros if there is none yet."""
    record = path.resolve().parent / site.audit
    return Audit(record).ledger if record.exists() or set_aside(record) else Ledger()


def _rehearsed(
    path: Path, site: SiteFile, plan: DesignPlan, problem: Problem, algorithm: AnyAlgorithm,
    errors: RowRobust | None,
) -> list[Item]:  # fmt: skip
    """The node's answers; a rehearsal is not written into the record."""
    with TemporaryDirectory() as aside:
        private = replace(
            site, audit=str(Path(aside) / "audit.jsonl"), state=str(Path(aside) / "state"), any_study=True,
            disclosure=replace(site.disclosure, max_curvature=ENOUGH, max_numbers=ENOUGH),
        )  # fmt: skip
        alone: dict[str, Any] = {site.name: Node(private, path.resolve().parent)}
        hosted = HostedTables(InProcess(alone), (site.name,))
        sites = hosted.play(plan, problem, algorithm)
        searched = _searched(sites, problem) if plan.study.searched else []
        asked = [*_counts(sites, problem, plan), *_played(sites, problem, algorithm), *searched]
        asked += [*_squares(sites, problem, errors), *_survival(sites, problem, plan)]
        return asked + (_evaluated(sites, problem) if plan.study.holdout is not None else [])


def _lenient(site: SiteFile, rules: Mapping[str, Any]) -> SiteFile:
    return replace(site, disclosure=replace(site.disclosure, **rules))


def _fitting(
    study: Study, site: SiteFile, frame: Any
) -> tuple[Schema, DesignPlan, Ready, list[Tallies], list[str]]:
    """As `_alone`; an error says that the table does not fit the study, and where columns get other names."""
    try:
        return _alone(study, site, frame)
    except DataError as error:
        remedy = "; if your table has it under another name, map it under [columns] in site.toml"
        raise DataError(
            f"site {site.name!r}: its table does not fit the study: {error}"
            f"{remedy if str(error).startswith('there is no column') else ''}"
        ) from error


def _alone(
    study: Study, site: SiteFile, frame: Any
) -> tuple[Schema, DesignPlan, Ready, list[Tallies], list[str]]:
    """The plan as it would be if this site were the only one, and the rules of its policy that it breaks."""
    preparer = Preparer(site.name, frame, least=max(LEAST, site.disclosure.min_rows_per_level))
    preparer.select(study)
    schema = schema_of(study, preparer.frame, site.disclosure.min_rows_per_class)
    places, labels = tuple(range(len(study.positive))), study.classes or schema.labels
    everywhere = replace(schema, positive=places, labels=labels)  # other sites may have the rest
    plan = agree(study, {site.name: _with_two_classes(study, everywhere)})
    bare = plan
    plan, told = _tallied(plan, preparer, schema.complete)
    ready = preparer.ready(plan)
    objective = local_objective(site.name, preparer.table(plan), study.loss, plan.classes, plan.intercept)
    found = site.disclosure.unnameable(rarest(study, preparer.frame, schema), study.marked)
    found += objections(site.disclosure, objective, ready.names)
    found += design_objections(site.disclosure, plan, preparer.frame, preparer.built(plan)[1])
    if study.holdout is not None:
        held = preparer.held(plan)
        rows = held_objective(site.name, held, study.loss, plan.classes, plan.intercept)
        found += held_objections(site.disclosure, rows)
    if told:
        found += site.disclosure.too_few_observed(filling.fewest_observed(bare, told[0].sums))
    found += [each for answer in told for each in site.disclosure.too_small(tallies.smallest_block(answer))]
    broken = [f"{one.rule}: {one.detail}" for one in found]
    return schema, replace(plan, names=ready.names, terms=ready.terms), ready, told, broken


def _tallied(plan: DesignPlan, preparer: Preparer, rows: int) -> tuple[DesignPlan, list[Tallies]]:
    """The plan with the means and knots of this site's rows, and what it would tell for those of all."""
    told: list[Tallies] = []
    try:
        if filling.pending(plan):
            told.append(preparer.tally(plan))
            plan = filling.with_fills(plan, {preparer.name: told[-1].sums}, {preparer.name: rows})
        while tallies.pending(plan):
            told.append(preparer.tally(plan))
            plan = tallies.with_tallies(plan, {preparer.name: told[-1]}, {preparer.name: rows})
    except DataError as error:
        raise DataError(
            f"{error} (this is about the rows of this site alone; with the rows of the other sites it may "
            "work)"
        ) from error
    return plan, told


def _played(sites: Sites, problem: Problem, algorithm: AnyAlgorithm) -> list[Item]:
    """The answers to one exchange of each part, field by field."""
    theta = origin(problem.loss, problem.columns, problem.n)
    update = algorithm.observe(problem, algorithm.start(problem, theta))
    start = _answered(sites, START, problem, NullStart().flow(problem))
    *first, fit = _answers(sites, fit_stage(algorithm), problem, update)
    inspect = _answered(sites, INSPECT, problem, Inspection().flow(problem, theta))
    candidates = int(getattr(getattr(algorithm, "line_search", None), "candidates", 0))
    return [
        *_items("before", start),
        *(item for answer in first for item in _items(_when(algorithm), answer)),
        *_items("each round", fit),
        Item("each round", "costs along the step", candidates, 8 * candidates),
        *_items("at the end", inspect),
    ]


def _when(algorithm: AnyAlgorithm) -> str:
    """When the first answers leave: in each round, if an iteration takes two exchanges."""
    return "each round" if isinstance(algorithm, Firth) else "before"


def _searched(sites: Sites, problem: Problem) -> list[Item]:
    """What the search for a parameter needs from a site, for each value that is tried."""
    flow = Profile().flow(problem, np.zeros(problem.n))
    return _items("each value", _answered(sites, PROFILE, problem, flow))


def _squares(sites: Sites, problem: Problem, errors: RowRobust | None) -> list[Item]:
    """What standard errors that are robust by rows need from a site."""
    if errors is None:
        return []
    asked = Scatter(np.zeros(problem.n), None, 0, True, errors == "cluster")
    return _items("at the end", _answered(sites, SCATTER, problem, RowScatter().flow(problem, asked)))


def _evaluated(sites: Sites, problem: Problem) -> list[Item]:
    """What an evaluation of the rows held out takes at most."""
    first = _answered(sites, EVALUATION, problem, Evaluating().flow(problem, np.zeros(problem.n)))
    items = [item for item in _items("at the end", first) if not item.what.startswith("line ")]
    items.append(Item("at the end", "losses of the model without columns, on rows held out", 2, 16))
    if family_of(problem.loss).classes == "two":
        items.append(Item("at the end", "pairs of rows held out, and their variance", 3, 24))
        items.append(Item("at the end", "the line that recalibrates its scores, and its covariance", 5, 40))
        rows = int(getattr(first, "rows", 0))
        counts = min(4 * (BINS + 1), 4 * rows) + 4 * GROUPS
        items.append(Item("at the end", "counts of rows held out, by score and class", counts, 8 * counts))
        sums = 5 * MOST_LINES
        items.append(Item("at the end", "sums that recalibrate the model", sums, 8 * sums))
    return items


def _counts(sites: Sites, problem: Problem, plan: DesignPlan) -> list[Item]:
    """What survival curves need from a site."""
    study = plan.study
    if not study.grid:
        return []
    columns = tuple(j for j, name in enumerate(plan.names) if name.startswith(f"{study.by}["))
    flow = SurvivalCounts().flow(problem, np.asarray(study.grid, dtype=np.float64), columns)
    return _items("before", _answered(sites, CURVES, problem, flow))


def _survival(sites: Sites, problem: Problem, plan: DesignPlan) -> list[Item]:
    """What a survival model asks for after its fit."""
    if not family_of(problem.loss).survival:
        return []
    study = plan.study
    steps = np.asarray(study.grid, dtype=np.float64) if study.ph_transform in POOLED else None
    values = None if steps is None else np.zeros(len(steps) + 1)
    check = CheckSurvival(np.zeros(problem.n), study.ph_transform, steps, values)
    asked = SurvivalCheck().flow(problem, check)
    return _items("at the end", _answered(sites, SURVIVAL, problem, asked))


def _answered(sites: Sites, stage: Stage, problem: Problem, flow: Flow[Any]) -> Message:
    """The node's answer to the first request of a conversation."""
    with closing(_answers(sites, stage, problem, flow)) as answers:
        return next(answers)


def _answers(sites: Sites, stage: Stage, problem: Problem, flow: Flow[Any]) -> Generator[Message]:
    """The node's answers to the requests of a conversation, one after the other."""
    with sites.open(stage) as transport:
        wire = Wire(stage.conversation, problem, transport, Traffic())
        ask: Ask | None = next(flow)
        while ask is not None:
            replies = wire.collect_replies(ask)
            ((answer,),) = replies.values()
            yield cast(Message, answer)
            try:
                ask = flow.send(replies)
            except StopIteration:
                ask = None


def _items(when: str, message: Message) -> list[Item]:
    """The fields of a message that hold numbers, how many, and their size; coded ones count by the byte."""
    found = []
    for name in message.__struct_fields__:
        value, what = getattr(message, name), f"{name} ({type(message).__name__})"
        if isinstance(value, Message):
            found += _items(when, value)
        elif isinstance(value, bytes):
            found.append(Item(when, what, len(value), len(value)))
        elif isinstance(value, np.ndarray | float):
            found.append(Item(when, what, int(np.size(value)), 8 * int(np.size(value))))
    return found


def _of_schema(schema: Schema) -> Item:
    levels = sum(len(field.levels) for field in schema.fields)
    labels = f", the classes {', '.join(map(str, schema.labels))}" if schema.labels else ""
    what = f"names, kinds and missing values of {len(schema.fields)} columns, {levels} levels{labels}"
    return Item("before", what, None, len(encode(schema)))


def _of_ready(ready: Ready) -> list[Item]:
    count = 2 * len(ready.measured)
    units = [Item("before", "means and variances of columns", count, 8 * count)] if count else []
    return [Item("before", "rows used, and their weight", 2, len(encode(ready)) - 8 * count), *units]


def _with_two_classes(study: Study, schema: Schema) -> Schema:
    """A site may hold one class of two: another stands for the one that other sites hold."""
    if not study.classified or len(schema.labels) != 1:
        return schema
    (label,) = schema.labels
    return replace(schema, labels=(label, f"not {label}" if isinstance(label, str) else label + 1))


def _pairs(site: SiteFile, algorithm: AnyAlgorithm, n: int) -> int | None:
    channel = getattr(algorithm, "channel", None) if site.uplink else None
    return None if channel is None else channel.eigenpairs(1, site.name, 8 * (n + 1))


def _last(path: Path, frame: Any) -> str:
    if len(frame.column_names) < 2:
        raise DataError(
            f"the table of {path} has fewer than two columns, but a study needs at least two: "
            "a target and a predictor"
        )
    return str(frame.column_names[-1])
