"""The borders that are fuzzed, with what honest studies say there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import fedshed
from fedshed import ALGORITHMS, Bits, EntropyCoded, Federation, Model, Study
from fedshed._utils.errors import DataError
from fedshed.algorithms import build
from fedshed.algorithms.firth import AskLeverages, Firth
from fedshed.deployment import config, plan
from fedshed.exchange import InProcess
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.fitting.conduct import conduct
from fedshed.fitting.host import Host
from fedshed.fitting.sites import HostedTables
from fedshed.linalg.arrays import pack
from fedshed.objectives import local_objectives
from fedshed.objectives.cox import Cox
from fedshed.objectives.negative_binomial import NegativeBinomial
from fedshed.preparation import formulas, negotiate
from fedshed.preparation.guarded import GuardedPreparer
from fedshed.preparation.protocol import preparers_of
from fedshed.preparation.study import read_study, study_of
from fedshed.privacy.audit import Audit
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Conversation
from fedshed.protocol.messages import Message
from fedshed.protocol.quantize import decode_rows, decode_steps, encode_rows, encode_steps
from fedshed.solve.evaluating import Evaluate, Evaluating, Recalibrate, Tabulate
from fedshed.solve.folds import AskFolds, Folds
from fedshed.solve.goal import Goal
from fedshed.solve.life_counts import AskCounts, AskTimes, SurvivalCounts
from fedshed.solve.profile import AskProfile, Profile
from fedshed.solve.site_estimates import AskEstimate, SiteEstimates
from fedshed.solve.survival_checks import CheckSurvival, SurvivalCheck
from fedshed.solve.watching import RunLog
from fedshed.solve.watching import lines as log_lines
from fedshed.tables.reading import read_table
from fedshed.tables.survival import survival
from fedshed.ui.log import Log

ROWS, N = 14, 3
Made = tuple[str, list[bytes], Callable[[bytes], Any], str, float]


def targets(folder: Path) -> Iterator[Made]:
    """Every border: its name, valid inputs, what reads them, how they are mutated, and its share."""
    yield from _of_algorithms(folder)
    yield from _of_conversations(folder)
    yield from _of_preparation(folder)
    yield from _of_studies()
    yield from _of_arrays()
    yield from _of_files(folder)


# --- algorithms ---------------------------------------------------------------------------------------


def _federation(loss: str) -> Federation:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3 * ROWS, N))
    z = X @ [1.0, -0.5, 0.2] + rng.normal(size=len(X))
    y = z if loss == "least-squares" else np.where(z > 0, "yes", "no")
    return Federation.from_arrays(X, y, np.repeat(["a", "b", "c"], ROWS))


class _Recorded(InProcess):
    """Sites whose requests and replies are kept."""

    asked: list[bytes]
    said: list[bytes]

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        replies = list(super().exchange(payloads))
        self.asked += [payloads["b"]] if "b" in payloads else []
        self.said += [data for i, data in replies if i == "b"]
        yield from replies


def recorded() -> type[_Recorded]:
    """A transport with empty records."""
    return type("Kept", (_Recorded,), {"asked": [], "said": []})


def forged(data: bytes) -> type[InProcess]:
    """A transport on which site b answers one exchange with the given bytes, as of this run.

    The first byte says which exchange; what follows takes the run and the number of the honest reply.
    """
    at = data[0] if data else 0

    class Forged(InProcess):
        count = 0

        def exchange(self, payloads: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
            for i, reply in super().exchange(payloads):
                wrong = i == "b" and type(self).count == at
                yield i, (_renamed(data[1:], reply) if wrong else reply)
            type(self).count += 1

    return Forged


def _renamed(data: bytes, honest: bytes) -> bytes:
    """The forged reply with the run and the number of the honest one, where it is a reply at all."""
    try:
        run, number, *_ = msgspec.msgpack.decode(honest)
        return msgspec.msgpack.encode((run, number, *msgspec.msgpack.decode(data)[2:]))
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError, RecursionError, OverflowError):
        return data


def _of_algorithms(folder: Path) -> Iterator[Made]:
    gate = Gate(
        Policy(min_rows=1, min_rows_per_class=1, min_rows_per_level=1), Audit(folder / "audit"), "fuzz"
    )
    for name in ALGORITHMS:
        loss = (ALGORITHMS[name].algorithm.losses or ("logistic",))[0]
        federation, algorithm, kept = _federation(loss), build(name), recorded()
        fedshed.optimize(federation, loss=loss, l2=1e-2, algorithm=name, transport=kept, max_iterations=6)
        objective = local_objectives(federation, loss, False)["b"]
        site = Site("b", objective, algorithm)
        yield f"request: {name}", kept.asked[:30], site.handle, "message", 2.0
        yield f"reply: {name}", kept.said[:30], codec_of(algorithm, N).decode_reply, "message", 2.0
        run = partial(_played, federation, name, loss)
        yield (
            f"master: {name}",
            [bytes([k]) + said for k, said in enumerate(kept.said[:16])],
            run,
            "reply",
            0.05,
        )
        if name in ("newton", "qn-shed"):
            guarded = Guarded(Site("b", objective, algorithm), gate)
            yield f"guarded: {name}", kept.asked[:30], guarded.answer, "message", 0.1


def _of_conversations(folder: Path) -> Iterator[Made]:
    """What is asked beside a fit, of a site and of one behind its gate."""
    policy = Policy(
        min_rows=1, min_rows_per_class=1, min_rows_per_level=1, max_numbers=1e9, max_refusals=10**9
    )
    gate, theta = Gate(policy, Audit(folder / "audit-of-conversations"), "fuzz"), np.array([0.2, -0.1, 0.0])
    two = local_objectives(_federation("logistic"), "logistic", False)["b"]
    timed, counted = Cox(two.X, survival(np.arange(1.0, ROWS + 1), np.arange(ROWS) % 2 == 0)), _counts(two.X)
    asked: tuple[tuple[Conversation, Any, list[Message]], ...] = (
        (Evaluating(), two, [
            Evaluate(theta), Tabulate(theta, np.array([0.0, 1.0, 0.0]), 10, np.zeros(1), 0.0),
            Tabulate(theta, np.array([0.0, 1.0, 0.0]), 0, np.zeros(1), 0.0),
            Recalibrate(theta, np.array([0.0, 1.0])),
        ]),
        (Folds(), two, [AskFolds(np.stack([theta, theta]), (0, 1), 3, 7)]),
        (Firth(), two, [AskLeverages(theta, pack(0.01 * np.eye(N)))]),
        (SiteEstimates(), two, [AskEstimate(theta, False), AskEstimate(theta, True, True)]),
        (SurvivalCheck(), timed, [
            CheckSurvival(theta), CheckSurvival(theta, "log"),
            CheckSurvival(theta, "km", np.array([3.0, 9.0]), np.array([0.0, 0.3, 0.8])),
        ]),
        (SurvivalCounts(), timed, [AskTimes(), AskCounts(np.array([3.0, 9.0]), (), 2)]),
        (Profile(), counted, [AskProfile(theta)]),
    )  # fmt: skip
    for conversation, objective, parts in asked:
        name, codec, site = (
            type(conversation).__name__,
            codec_of(conversation, N),
            Site("b", objective, conversation),
        )
        payloads = [codec.encode_request(codec.encode_common(b"run!", 1, [part]), None) for part in parts]
        guarded = Guarded(Site("b", objective, conversation), gate)
        yield f"request: {name}", payloads, site.handle, "message", 1.0
        yield f"guarded: {name}", payloads, guarded.answer, "message", 0.1
        yield f"reply: {name}", [site.handle(one) for one in payloads], codec.decode_reply, "message", 1.0


def _counts(X: Any) -> Any:
    """A model of counts whose spread is searched for."""
    return NegativeBinomial(X, np.random.default_rng(1).poisson(2.0, len(X)).astype(float))


def _played(federation: Federation, name: str, loss: str, data: bytes) -> None:
    fedshed.optimize(
        federation, loss=loss, l2=1e-2, algorithm=name, transport=forged(data), max_iterations=4, patience=1,
        tol=1e-3,
    )  # fmt: skip


# --- whole studies ------------------------------------------------------------------------------------


def _tables() -> dict[str, dict[str, Any]]:
    made = {}
    for seed, site in enumerate("abc"):
        rng = np.random.default_rng(seed)
        x, z = rng.normal(1.0, 2.0, 30), rng.normal(size=30)
        made[site] = {
            "x": x, "z": z, "ward": np.where(x > z, "north", "south"),
            "w": rng.integers(1, 4, 30).astype(float), "y": x - z + rng.normal(size=30),
            "ill": np.where(rng.random(30) < 0.5, "yes", "no"),
            "count": rng.poisson(2.0, 30).astype(float), "group": rng.choice(["a", "b", "c"], 30),
            "gaps": np.where(rng.random(30) < 0.2, np.nan, x), "t": rng.exponential(size=30),
            "d": (rng.random(30) < 0.7).astype(float),
        }  # fmt: skip
    return made


STUDIES = (
    Study(family="linear", target="y", columns=("x", "ward"), standardize=True),
    Study(family="logistic", target="ill", columns=("x", "z"), positive=("yes",)),
    Study(
        family="poisson", target="count", columns=("z",), weight="w", weight_type="frequency", missing="drop"
    ),
    Study(family="multinomial", target="group", columns=("x",), l2=0.1),
    Study(family="linear", formula="y ~ bs(x, df=4) + poly(z, 2) + C(ward):x"),
    Study(family="linear", target="y", columns=("x", "gaps", "ward"), missing="impute"),
    Study(family="logistic", target="ill", columns=("gaps", "z"), missing="indicator"),
)
TOLD = (  # studies with more conversations than a fit
    Study(family="logistic", target="ill", columns=("x", "z"), holdout=0.5),
    Study(family="linear", target="y", columns=("x", "z"), holdout=0.5),
    Study(family="multinomial", target="group", columns=("x",), holdout=0.5),
    Study(family="cox", time="t", event="d", columns=("x", "z")),
    Study(family="logistic", target="ill", columns=("x",), firth=True),
    Study(family="negative-binomial", target="count", columns=("z",)),
    Study(family="logistic", target="ill", columns=("x",), random_intercept=True),
    Study(family="ordinal", target="group", columns=("x",), classes=("a", "b", "c"), site_estimates=True),
)


def _of_preparation(folder: Path) -> Iterator[Made]:
    tables, gate = _tables(), Gate(Policy(), Audit(folder / "audit-of-preparation"), "fuzz")
    for k, study in enumerate(STUDIES):
        kept = recorded()
        negotiate(study, kept(preparers_of(tables)), tuple(tables))
        preparer = preparers_of(tables)["b"]
        yield f"preparation asked: {k}", kept.asked, preparer.handle, "message", 1.0
        yield f"preparation guarded: {k}", kept.asked, GuardedPreparer(preparer, gate).handle, "message", 0.05
        samples = [bytes([j]) + said for j, said in enumerate(kept.said)]
        yield f"preparation told: {k}", samples, partial(_negotiated, study), "reply", 0.15


def _negotiated(study: Study, data: bytes) -> None:
    tables = _tables()
    negotiate(study, forged(data)(preparers_of(tables)), tuple(tables), patience=1)


class _Host(Host):
    def frame(self, study: bytes, text: tuple[str, ...] = ()) -> Any:
        return _tables()["b"]


def _of_studies() -> Iterator[Made]:
    for k, study in enumerate(STUDIES[:3]):
        kept = recorded()
        fedshed.fit(_tables(), study, over=kept, algorithm="newton", errors="HC3")
        samples = [bytes([j]) + said for j, said in enumerate(kept.said)]
        yield f"study told: {k}", samples, partial(_fitted, study), "reply", 0.05
        kept = recorded()
        hosts = HostedTables(kept({site: _Host(site) for site in "abc"}), tuple("abc"))
        conduct(study, hosts, Goal(), algorithm="newton")
        yield f"envelope: {k}", kept.asked, _opened, "envelope", 0.5
    for k, study in enumerate(TOLD):
        kept = recorded()
        fedshed.fit(_tables(), study, over=kept)
        samples = [bytes([j]) + said for j, said in enumerate(kept.said[:200])]
        yield f"conversations told: {k}", samples, partial(_concluded, study), "reply", 0.1


def _concluded(study: Study, data: bytes) -> None:
    fedshed.fit(_tables(), study, over=forged(data))


def _opened(data: bytes) -> None:
    _Host("b").handle(data)


def _fitted(study: Study, data: bytes) -> None:
    fedshed.fit(_tables(), study, over=forged(data), algorithm="newton", errors="HC3", max_iterations=8)


# --- arrays and files ---------------------------------------------------------------------------------


def _of_arrays() -> Iterator[Made]:
    rng = np.random.default_rng(0)
    steps = [encode_steps(rng.normal(size=40), step) for step in (1.0, 0.1, 1e-4, 1e-7)]
    yield "steps", steps, lambda data: decode_steps(data, 40), "bytes", 3.0
    rows = [encode_rows(rng.normal(size=(4, 10)), np.array(bits)) for bits in ([1, 8, 16, 0], [3, 3, 3, 3])]
    yield "rows of bits", rows, lambda data: decode_rows(data, 4, 10), "bytes", 3.0
    for precision in (Bits(bits=5), EntropyCoded()):
        for kind, shape in (("packed", (15,)), ("matrix", (3, 5)), ("gradient", (5,)), ("vector", (5,))):
            given = [precision.encode(kind, np.abs(rng.normal(size=shape)), 0.01) for _ in range(4)]
            yield (
                f"{type(precision).__name__}: {kind}",
                given,
                partial(_decoded, precision, kind),
                "bytes",
                1.5,
            )


def _decoded(precision: Any, kind: str, data: bytes) -> None:
    precision.decode(kind, data, 5)


FORMULAS = (
    b"y ~ x + z", b"y ~ x*z + C(ward)", b"y ~ bs(x, df=4) + poly(z, 2)", b"y ~ cr(x, df=3):ward + log(z)",
    b"y ~ I(x**2) - 1", b"y ~ (x + z + w)**2", b"y ~ center(x) + scale(z) + `a b`", b"`y y` ~ cc(x, df=3, "
    b"lower_bound=0, upper_bound=12)", b"y ~ x %in% ward + exp(x/2)",
)  # fmt: skip
STUDY = b"""family = "logistic"
formula = "ill ~ age + C(ward)"
missing = "drop"
l2 = {age = 0.1, ward = 1.0}
references = {ward = "north"}
"""
STUDY_FILE = b"""family = "linear"
target = "y"
columns = ["x", "z"]
sites = ["north", "south"]
algorithm = "newton"
tolerance = 1e-8
max_iterations = 50
deadline = 5.0
errors = "HC3"
"""
SITE_FILE = b"""name = "north"
columns = ["x", "y"]
[table]
csv = "table.csv"
sep = ";"
[disclosure]
min_rows = 10
[uplink]
bytes_per_second = 1e6
"""
TABLES = (
    b"x,y,ward\n1,2,north\n3,4,south\n5.5,,north\n", b"x;y\n1,5;2\n3,25;4\n",
    "\ufeffgröße\tw\n1\tä\n2\tß\n".encode(),
    "größe,y\n1,ä\n2,ö\n".encode("latin-1"), b'"a ""b""",c\n"1\n2",3\n01,NA\n',
    b"id,code\n00123456789012345678,1\n",
)  # fmt: skip


def _of_files(folder: Path) -> Iterator[Made]:
    yield "formula", list(FORMULAS), _formula, "text", 2.0
    yield "study.toml", [STUDY], partial(_from_file, folder / "study.toml", read_study), "text", 1.0
    deployed = partial(_from_file, folder / "deployed.toml", config.read_study)
    yield "study.toml of a deployment", [STUDY_FILE], deployed, "text", 1.0
    yield "site.toml", [SITE_FILE], partial(_from_file, folder / "site.toml", config.read_site), "text", 1.0
    host = b'engine = "nvflare"\nhost = "localhost"\nport = 8002\nsites = ["north", "south"]\n'
    whole = partial(_from_file, folder / "deployment.toml", lambda path: plan.read_plan(path.parent))
    yield "deployment.toml", [host], whole, "text", 0.5
    yield "CSV", list(TABLES), partial(_from_file, folder / "table.csv", _read), "text", 1.0
    model, log = folder / "model.json", folder / "log"
    fedshed.fit(_tables(), STUDIES[0], watch=RunLog(log)).save(model)
    yield "model.json", [model.read_bytes()], partial(_from_file, model, _loaded), "text", 0.5
    runs = (log / "run.jsonl").read_bytes()
    yield "run.jsonl", [runs], partial(_from_file, folder / "run.jsonl", _logged), "text", 0.5


def _formula(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise DataError("not a text") from None  # a formula comes as text, from TOML or a message
    formulas.formula_of(study_of({"family": "linear", "formula": text}))


def _from_file(path: Path, read: Callable[[Path], Any], data: bytes) -> None:
    path.write_bytes(data)
    read(path)


def _read(path: Path) -> None:
    from fedshed.tables.frames import Frame

    frame = Frame(read_table(path))
    for name in frame.names:
        frame.column(name)


def _loaded(path: Path) -> None:
    model = Model.load(path)
    str(model.summary())
    model.to_csv()


def _logged(path: Path) -> None:
    with path.open("rb") as stream:
        list(log_lines(stream))
    Log(path).report()
