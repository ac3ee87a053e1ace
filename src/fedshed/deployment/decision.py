"""What a data steward sees before deciding on a study: what is used, what leaves, to whom, and until when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from msgspec import Struct

from fedshed._utils.files import file_hash
from fedshed.deployment.config import SiteFile, StudyFile, read_site
from fedshed.deployment.review import Item, Review, ledger_of, review
from fedshed.fitting.search import MOST_VALUES
from fedshed.preparation import Study
from fedshed.privacy.exposure import Exposure, exposure
from fedshed.privacy.gate import DIFFERENT, columns_used
from fedshed.privacy.ledger import TableRecord

MANY_HESSIANS = 12  # as many as Newton and the inspection may take


class Use(Struct, frozen=True):
    """A column of the table, and what the study does with it."""

    column: str
    use: str


class Ceilings(Struct, frozen=True):
    """How much leaves at most, and how much of the same table has left in earlier studies."""

    numbers: int
    curvature: int  # entries of Hessians and eigenvectors
    points: int  # sets of parameters at which sums are computed
    hessians: int  # those among them at which the inspection asks for a Hessian
    numbers_before: int
    whole: int  # numbers that the policy allows over all studies, without a higher budget


class Decision(Struct, frozen=True):
    """A study as a steward decides on it."""

    sha256: str
    site: str
    rows: int
    parameters: int
    model: str
    sites: tuple[str, ...]
    authority: str  # SHA-256 of the certificate that the Master must have, if the site has one
    algorithm: str
    uses: list[Use]
    items: list[Item]
    ceilings: Ceilings
    exposure: Exposure
    advice: list[str]
    broken: list[str]  # rules of the site's policy that the study breaks, so that it would not answer
    protected: bool = False  # nobody sees more than sums over all sites
    least: int = 1  # sites that must take part
    keys: dict[str, str] = {}  # of the sites, in a protected study


def decision(path: Path, file: StudyFile, budget: float = 1.0) -> Decision:
    """What a study would use and send; nothing is sent to find out."""
    site, found = read_site(path), review(path, file)
    ceilings = _ceilings(path, site, found, budget)
    seen = exposure(found.rows, found.parameters, found.chosen, found.held)
    return Decision(
        sha256=file.terms.digest.hex(),
        site=site.name,
        rows=found.rows,
        parameters=found.parameters,
        model=file.terms.in_words(),
        sites=tuple(sorted(file.sites)),
        authority=_authority(path.resolve().parent),
        algorithm=found.algorithm,
        uses=_uses(file.study, found),
        items=found.items,
        ceilings=ceilings,
        exposure=seen,
        advice=[] if file.study.protected else [seen.recommendation, *_advice(found, ceilings)],
        broken=found.broken,
        protected=file.study.protected,
        least=len(file.sites) if file.terms.least is None else file.terms.least,
        keys=file.terms.keys,
    )


def shortages(path: Path, file: StudyFile) -> list[str]:
    """What to do where a site's budget may be too small for a study; nothing where it is not."""
    if file.study.protected:
        return []
    found = review(path, file)
    return _advice(found, _ceilings(path, read_site(path), found, 1.0))


def _authority(folder: Path) -> str:
    """The SHA-256 of the authority's certificate in a site's folder."""
    found = [folder / name for name in ("startup/rootCA.pem", "ca.crt") if (folder / name).is_file()]
    return file_hash(found[0]) if found else ""


def _ceilings(path: Path, site: SiteFile, found: Review, budget: float) -> Ceilings:
    """How much the gate would release at most."""
    before = ledger_of(path, site).tables.get(found.table, TableRecord())
    cells = found.rows * columns_used(before, found.facts.columns, found.facts.parameters)
    numbers = int(site.disclosure.max_numbers * budget * cells) - before.numbers
    curvature = int(site.disclosure.max_curvature * budget * cells) - before.curvature
    return Ceilings(
        numbers=min(site.disclosure.max_scalars, max(0, numbers)),
        curvature=max(0, min(curvature, numbers)),
        points=found.points,
        hessians=DIFFERENT["Inspect"],
        numbers_before=before.numbers,
        whole=int(site.disclosure.max_numbers * cells),
    )


WORDS = {
    "loss": "the mean loss", "deviance": "the deviance", "gradient": "the gradient", "hessian": "the Hessian",
    "scale": "the diagonal of the Hessian", "diagonal": "the diagonal of the Hessian",
    "values": "eigenvalues", "vectors": "eigenvectors of the Hessian",
    "rho": "a bound on the other eigenvalues", "information": "the information matrix",
    "observed": "the Hessian", "moments": "sums of the target", "sums": "sums of the target",
    "pearson": "Pearson's statistic", "constant": "the constant of the likelihood",
    "slope": "the slope of the likelihood in the parameter", "curvature": "its second derivative",
    "mixed": "mixed derivatives", "concordant": "the number of concordant pairs of rows",
    "discordant": "the number of discordant pairs", "tied": "the number of tied pairs",
    "score": "sums over events by time, of the columns",
    "cross": "sums over events by time, of their covariances", "square": "the same sums by squared time",
    "squares": "the sum of squared scores", "weight": "the weight of the rows",
    "events": "numbers of events by time and group", "censored": "numbers of censored rows",
    "entered": "numbers of late entries", "beyond": "numbers of rows still observed at the end",
    "pull": "the contribution of the rows to the slope of Firth's penalty",
    "sums (Tallies)": "sums of columns, and numbers of their values",
    "weight (Evaluated)": "the weight of the rows held out",
    "sums (Evaluated)": "sums of losses, errors and scores of the rows held out",
    "squares (Evaluated)": "sums of the squares of these",
    "moments (Evaluated)": "sums of the target of the rows held out",
    "confusion (Evaluated)": "numbers of rows held out by actual and predicted class",
    "hits (Evaluated)": "the number of rows held out whose class is predicted correctly",
}  # fmt: skip
TIMES = {
    "before": "before the fit", "each round": "in each round", "at the end": "at the end",
    "each value": "for each value of the parameter that is tried",
}  # fmt: skip


def leaving(items: Sequence[Item]) -> list[str]:
    """What leaves, in words, ordered by when it leaves."""
    said = []
    for when, words in TIMES.items():
        things = [_thing(one) for one in items if one.when == when and one.numbers != 0]
        said += [f"{words}: {'; '.join(things)}"] if things else []
    return said


def _thing(one: Item) -> str:
    name = one.what.partition(" (")[0]
    said = WORDS.get(one.what, WORDS.get(name, one.what))
    return said + ("" if one.numbers is None else f" ({one.numbers:,})")


ROUNDS = {"newton": 10, "pen": 12, "qn-shed": 20}  # that a fit may take; other algorithms:
MORE_ROUNDS = 35


def _needed(found: Review) -> int:
    """How many numbers the study may need in all, with those of a round for every round that may come."""
    rounds = ROUNDS.get(found.chosen, MORE_ROUNDS)
    times = {"each round": rounds, "each value": MOST_VALUES}
    return sum((one.numbers or 0) * times.get(one.when, 1) for one in found.items)


def _advice(found: Review, ceilings: Ceilings) -> list[str]:
    """What to do if the budget may be too small for the study."""
    needed, advice = _needed(found), list[str]()
    if needed > ceilings.numbers:
        more = ceil(10 * (needed + ceilings.numbers_before) / max(1, ceilings.whole)) / 10
        advice.append(
            f"A study of this kind may need about {needed:,} numbers, and the budget allows "
            f"{ceilings.numbers:,}: it may be refused before it ends. Either do not take part, or "
            f"raise the budget (--budget {more:g})."
        )
    entries = found.parameters * (found.parameters + 1) // 2
    if found.chosen in ("lbfgs", "lbfgs-coded") or ceilings.curvature >= MANY_HESSIANS * entries:
        return advice
    return [
        *advice,
        f"The budget allows {ceilings.curvature:,} entries of Hessians, and one Hessian has {entries:,}: "
        f"a study that needs more than {ceilings.curvature // entries} of them will be refused before it "
        'ends. Ask the Master for algorithm = "lbfgs", or raise the budget (--budget).',
    ]


def _uses(study: Study, found: Review) -> list[Use]:
    """Each column that is read, and what it is used for."""
    mark = study.holdout if isinstance(study.holdout, str) else None
    roles: dict[str | None, str] = {
        study.target: "the target of the model", study.weight: "the weight of a row",
        study.trials: "the number of trials of a row", study.offset: "an offset",
        study.exposure: "the exposure, whose logarithm is an offset",
        study.event: "says whether the event of a row happened; its values do not leave",
        study.entry: "when a row came under observation",
        **dict.fromkeys(study.strata, "rows that differ in it have different baseline hazards"),
        study.cluster: "says which rows belong together; its values do not leave",
        mark: "says which rows are held out and evaluated",
    }  # fmt: skip
    beside = [Use(name, use) for name, use in roles.items() if name]
    return [*beside, *(Use(name, _use(found, name, levels)) for name, levels in found.predictors.items())]


def _use(found: Review, name: str, levels: int) -> str:
    what = f"a category; its {levels} levels leave by name" if levels else "a number"
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    terms = [term for term in found.terms if word.search(term) and term != name]
    return f"{what}, in {', '.join(terms)}" if terms else what
