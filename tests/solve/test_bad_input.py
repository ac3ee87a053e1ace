"""Every mistake gets an error that names what and where, before anything is sent."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import fedshed
from conftest import make_federation
from fedshed import (
    ByteRate,
    ConfigError,
    Constant,
    DataError,
    Federation,
    PerAgent,
    Recorded,
    SingularError,
    TwoExchange,
)
from fedshed.algorithms.channels import Rayleigh
from fedshed.exchange import InProcess
from fedshed.protocol.codec import encode
from fedshed.protocol.messages import Costs, Local, Update
from fedshed.protocol.replies import Reply

X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.tile([0, 1], 10)
SITES = np.repeat(["north", "south"], 10)


def with_entry(value, row=13, column=1):
    bad = X.astype(object if isinstance(value, str) else type(value) if isinstance(value, complex) else float)
    bad[row, column] = value
    return bad


def arrays(X=X, y=Y, sites=SITES, **options):
    return lambda: Federation.from_arrays(X, y, sites=sites, **options)


def sites(tables):
    return lambda: Federation.from_sites(tables)


def optimize(federation=None, **options):
    return lambda: fedshed.optimize(federation or Federation.from_arrays(X, Y, sites=SITES), **options)


def fed(y):
    return Federation.from_arrays(X, y, sites=SITES)


COLLINEAR = np.column_stack([X, X[:, 0] + X[:, 1]])
DATA = [
    (arrays(X=with_entry(np.nan)), "south.*column.*1"),
    (arrays(X=with_entry(np.inf)), "south.*column.*1"),
    (arrays(X=with_entry(1j)), "complex"),
    (arrays(X=with_entry("red")), "red|text|numeric"),
    (arrays(y=np.where(np.arange(20) == 3, np.nan, 1.0)), "north.*target|north.*y"),
    (arrays(y=Y[:-1]), "19.*20|20.*19"),
    (arrays(sites=SITES[:-2]), "18.*20|20.*18"),
    (arrays(X=X[:0], y=Y[:0], sites=SITES[:0]), "row"),
    (arrays(X=X[:, :0]), "column"),
    (arrays(X=X[0]), "2-D|two"),
    (arrays(y=np.column_stack([Y, Y])), "1-D|one"),
    (sites({}), "site"),
    (sites({"a": (X, Y), "b": (X[:0], Y[:0])}), "'b'"),
    (sites({"a": (X, Y), "b": (X[:, :2], Y)}), "'b'.*2.*3|3.*'b'.*2|'b'"),
    (optimize(fed(np.ones(20))), "has only 1 class over all sites"),
    (optimize(fed(np.arange(20) % 3)), "exactly two classes.*there are 3"),
    (optimize(fed(np.where(Y, "a", "b")), loss="least-squares"), "north.*numeric"),
]
CONFIG = [
    (optimize(l2=-1e-3), "l2.*-0.001"),
    (optimize(l2=np.nan), "l2.*nan"),
    (optimize(l2=[1.0, 2.0]), r"l2.*\(2,\).*3"),
    (optimize(l2="much"), "l2.*much"),
    (optimize(budget=-1), "budget.*-1"),
    (optimize(budget=1.5), "budget.*1.5"),
    (optimize(budget=True), "budget.*True"),
    (optimize(budget="rayleigh"), "budget.*rayleigh"),
    (optimize(algorithm="newton", budget=2), "newton.*fixed size"),
    (optimize(algorithm="fibshed"), "did you mean 'fib-shed'"),
    (optimize(algorithm="shed-ls"), "shed-ls is for least-squares only"),
    (optimize(loss="logit"), "did you mean 'logistic'"),
    (optimize(theta0=np.zeros(4)), "theta0.*3"),
    (optimize(theta0=[0, np.nan, 0]), "theta0.*finite"),
    (optimize(theta0="abc"), "theta0"),
    (optimize(tol=-1.0), "tol"),
    (optimize(tol=np.nan), "tol"),
    (optimize(max_iterations=2.5), "max_iterations.*2.5"),
    (optimize(max_iterations=-1), "max_iterations"),
    (optimize(seed=-3), "seed.*-3"),
    (optimize(f_star=np.nan), "f_star"),
    (optimize(gap_tol=1e-9), "gap_tol.*f_star"),
    (optimize(gap_tol=-1.0, f_star=0.0), "gap_tol"),
    (optimize(intercept=2), "intercept.*2"),
    (optimize(algorithm=None), "algorithm.*None"),
    (optimize(algorithm=fedshed.algorithms.Shed), "algorithm"),
    (optimize(algorithm=fedshed.algorithms.Newton(), budget=2), "no channel"),
    (optimize(line_search="fused"), "line_search.*fused"),
    (optimize(line_search=TwoExchange, algorithm="newton"), "TwoExchange\\(\\)"),
    (lambda: fedshed.optimize((X, Y)), "Federation.*tuple"),
    (optimize(transport=lambda sites: InProcess({})), "does not reach.*north"),
    (lambda: Constant(1.5), "1.5"),
    (lambda: Recorded({"a": (1, 1.5)}), "'a'"),
    (lambda: Rayleigh(seed=1.5), "seed"),
    (lambda: fedshed.renewal.Periodic(2.5), "period.*2.5"),
    (lambda: fedshed.renewal.GradientNorm(b=np.nan), "nan"),
    (lambda: fedshed.renewal.GradientNorm(apart=-4), "apart"),
    (lambda: fedshed.datasets.load("digitz"), "did you mean 'digits'"),
    (lambda: fedshed.datasets.load("digits", partition="two-clas"), "two-class"),
    (lambda: fedshed.datasets.load("digits", agents=0), "agents"),
    (lambda: fedshed.datasets.load("digits", target=77), "target|77"),
    (lambda: Constant(-2), "-2"),
    (lambda: ByteRate(-1.0), "-1"),
    (lambda: Recorded({"a": ()}), "'a'"),
    (lambda: Rayleigh(gain=-1.0), "gain"),
    (lambda: TwoExchange(alpha=0.7), "alpha"),
    (lambda: TwoExchange(beta=1.0), "beta"),
    (lambda: TwoExchange(candidates=0), "candidates"),
    (lambda: fedshed.renewal.Periodic(0), "period"),
    (optimize(budget=Recorded({"north": (1, 2)})), "south"),
    (optimize(budget=PerAgent({"north": Constant(1)}, Recorded({"east": (1,)}))), "south"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), DATA)
def test_bad_data_is_refused_by_name(call, message):
    with pytest.raises(DataError, match=f"(?s){message}") as error:
        call()
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(("call", "message"), CONFIG)
def test_bad_settings_are_refused_by_name(call, message):
    with pytest.raises(ConfigError, match=f"(?s){message}") as error:
        call()
    assert isinstance(error.value, ValueError)


def test_nothing_is_sent_before_everything_is_checked():
    class NeverAsked(InProcess):
        def exchange(self, payloads):
            raise AssertionError("something was sent")

    for options in ({"l2": -1.0}, {"theta0": [1.0]}, {"algorithm": "shed-ls"}, {"budget": 0.5}):
        with pytest.raises(ConfigError):
            optimize(transport=NeverAsked, **options)()


def test_collinear_unpenalised_columns_are_named_before_anything_is_sent():
    federation = Federation.from_arrays(COLLINEAR, Y, sites=SITES, columns=["age", "dose", "sex", "sum"])
    with pytest.raises(SingularError, match=r"age, dose, sum.*l2 > 0"):
        fedshed.optimize(federation, algorithm="fib-shed", l2=0.0)
    assert fedshed.optimize(
        federation, algorithm="fib-shed", l2=[1e-3, 0, 0, 1e-3]
    ).converged  # a penalty on two is enough
    with pytest.raises(SingularError, match="intercept"):
        fedshed.optimize(Federation.from_arrays(np.ones((20, 1)), Y), l2=0.0, intercept=True)


class Lying(InProcess):
    """One agent sends what it should not."""

    forged: bytes

    def exchange(self, payloads):
        run = msgspec.msgpack.decode(payloads["south"], type=list[msgspec.Raw])[0]  # a forger knows the run
        forged = self.forged.replace(b"\xc4\x00", bytes(run), 1)
        return [(i, forged if i == "south" else data) for i, data in super().exchange(payloads)]


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"not a message",
        encode([b"", 1, 0, [["Local", float("nan"), np.zeros(3).tobytes(), None]]]),
        encode([b"", 1, 0, [["Local", 0.0, np.array([0, np.inf, 0]).tobytes(), None]]]),
        encode([b"", 1, 0, [["Local", 0.0, np.zeros(2).tobytes(), None]]]),
        encode(Reply(b"", 1, 0, [])),
        encode(Reply(b"", 1, 0, [Local(0.0, np.zeros(3), None)])),
        encode(Reply(b"", 1, 0, [Costs(np.zeros(3))])),
        encode(Reply(b"", 1, 0, [Update(1, None)])),
        encode(Reply(b"", 1, -5, [Local(0.0, np.zeros(3), None)])),
        encode(Reply(b"", 1, 2**64 - 1, [Local(0.0, np.zeros(3), None)])),
    ],
    ids=[
        "empty",
        "noise",
        "nan-loss",
        "inf-gradient",
        "short-gradient",
        "no-answer",
        "no-pairs",
        "costs",
        "request",
        "negative-hessians",
        "many-hessians",
    ],
)
def test_a_reply_that_cannot_be_used_is_refused_by_the_agents_name(forged):
    class Forger(Lying):
        pass

    Forger.forged = forged
    with pytest.raises(fedshed.ProtocolError, match="'south'"):
        optimize(transport=Forger)()


def test_a_checkpoint_of_other_data_or_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    fedshed.optimize(make_federation("logistic"), checkpoint=path, max_iterations=2)
    with pytest.raises(ConfigError, match="other data"):
        fedshed.resume(path, Federation.from_arrays(X, Y, sites=SITES))
    whole = path.read_bytes()
    for broken in (b"", whole[:100], b"\x00" + whole):
        path.write_bytes(broken)
        with pytest.raises(fedshed.CodecError, match=r"run\.ckpt is not a fedshed checkpoint"):
            fedshed.resume(path, make_federation("logistic"))
    with pytest.raises(ConfigError, match=r"missing\.ckpt: there is no such file"):
        fedshed.resume(tmp_path / "missing.ckpt", make_federation("logistic"))


def test_labels_are_coded_over_all_sites_and_one_site_may_hold_one_class():
    y = np.where(SITES == "north", "no", np.where(X[:, 0] > 0, "yes", "no"))
    result = optimize(fed(y), l2=1e-2)()
    assert result.converged
    assert result.theta[0] > 0  # "yes" is the larger label, so +1
