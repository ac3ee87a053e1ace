"""The paper's claims, each judged from the recorded runs: what it says, what was measured, the verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed.experiments.plan import GAP_OF_A_COUNT, load, read
from fedshed.experiments.reproduce import recorded
from fedshed.experiments.runs import Record
from fedshed.experiments.spectra import lyapunov_bound

SIMILAR = 1.25  # times as many rounds, at most
HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold"
Judgement: TypeAlias = tuple[str, str]  # what was measured, and the verdict


class Evidence:
    """The recorded runs, asked for by figure, panel and run."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self._folder, self._quick = folder, quick
        self._found: dict[str, dict[str, list[Record]]] = {}

    def run(self, figure: str, panel: int, name: str) -> Record:
        """One run."""
        if figure not in self._found:
            try:
                self._found[figure] = recorded(load(figure, self._quick), self._folder)
            except KeyError:
                raise ConfigError(
                    f"a claim needs the runs of {figure}, too: fedshed reproduce {figure}"
                ) from None
        records = list(self._found[figure].values())[panel]
        return next(record for record in records if record.name == name)

    def cost(self, figure: str, panel: int, name: str, column: str = "rounds") -> float:
        """What it took until the gap was below 1e-11; infinite where it never was."""
        row = self.run(figure, panel, name).trace.first_below(GAP_OF_A_COUNT)
        return float("inf") if row is None else float(getattr(row, column))

    def gap_at(self, figure: str, panel: int, name: str, rounds: int) -> float:
        """The gap after so many rounds (or at the end of a shorter run)."""
        rows = [row for row in self.run(figure, panel, name).rows if row.rounds <= rounds]
        return float(rows[-1].gap or 0.0)

    def slope_and_bound(self, panel: int) -> tuple[float, float]:
        """Measured rate of the error per iteration over the last periods, and a-bar_T."""
        plan = load("lyapunov", self._quick).panels[panel]
        record = self.run("lyapunov", panel, plan.runs[0].name)
        T, errors = plan.runs[0].renewal_period or 1, np.array(record.errors)
        span = min(max(1, (len(errors) - 1) // T - 2) * T, len(errors) - 1)
        rate = (errors[-1] / errors[-1 - span]) ** (1 / span)
        return float(rate), lyapunov_bound(plan)


class Claim(Struct, frozen=True):
    """One claim."""

    figure: str
    says: str
    data: str
    judge: str


class Claims(Struct, frozen=True):
    """The file of claims."""

    claims: tuple[Claim, ...]


def _n(value: float) -> str:
    return "not reached" if np.isinf(value) else f"{value:.0f}"


def _ratio(a: float, b: float) -> float:
    return float("nan") if np.isinf(a) and np.isinf(b) else a / b


def _rho(e: Evidence) -> Judgement:
    parts, wins = [], []
    for panel, data in enumerate(("Songs", "News")):
        best, next_ = (
            np.array(e.run("rho", panel, name).errors) for name in ("rho*, eta = 1", "lambda_{q+1}, eta*")
        )
        length = min(len(best), len(next_))
        ratio = next_[1:length] / best[1:length]
        above = ratio[(best[1:length] > 1e-12)]
        wins.append(float(np.mean(above >= 1 - 1e-9)))
        median, share = np.median(above), 100 * wins[-1]
        parts.append(
            f"{data}: error with lambda_{{q+1}} is {median:.3f} times that with rho*, >= in {share:.0f} %"
        )
    return "; ".join(parts), HOLDS if min(wins) > 0.95 else PARTLY if max(wins) > 0.5 else FAILS


def _lyapunov(e: Evidence) -> Judgement:
    rates = [e.slope_and_bound(panel) for panel in (0, 1)]
    names = ("least squares, T = 35", "logistic, T = 25")
    parts = zip(names, rates, strict=True)
    text = "; ".join(f"{name}: measured {rate:.4f}, bound {bound:.4f}" for name, (rate, bound) in parts)
    held = [rate <= bound + 1e-3 for rate, bound in rates]
    return f"rate of the error per iteration: {text}", HOLDS if all(held) else PARTLY if any(held) else FAILS


def _increments(e: Evidence) -> Judgement:
    rounds = {d: e.cost("increments", 1, f"d = {d}") for d in (1, 3, 6)}
    data = {d: e.cost("increments", 1, f"d = {d}", "uplink_vectors") for d in (1, 3, 6)}
    text = ", ".join(f"d = {d}: {_n(rounds[d])} rounds, {_n(data[d])} vectors" for d in rounds)
    halves = 1.6 <= rounds[1] / rounds[3] <= 3
    no_more = max(data.values()) <= 1.15 * data[1]
    return text, HOLDS if halves and no_more else PARTLY if halves or no_more else FAILS


def _rayleigh(e: Evidence) -> Judgement:
    texts, between = [], []
    for panel, name in enumerate(("least squares", "logistic")):
        three, random, six = (e.cost("increments", panel, label) for label in ("d = 3", "d_gamma", "d = 6"))
        texts.append(f"{name}: {_n(three)}, {_n(random)}, {_n(six)} rounds for d = 3, d_gamma, d = 6")
        between.append(six <= random <= three)
    return "; ".join(texts), HOLDS if all(between) else PARTLY if any(between) else FAILS


def _thirty(e: Evidence) -> Judgement:
    one, thirty = (e.cost("increments", 1, f"d = {d}") for d in (1, 30))
    data = [e.cost("increments", 1, f"d = {d}", "uplink_vectors") for d in (1, 30)]
    speed = one / thirty
    text = f"15.5 times the vectors a round for {speed:.1f} times the speed; "
    text += f"{_n(data[1])} vectors in all against {_n(data[0])}"
    return text, HOLDS if 7 <= speed < 15.5 and data[1] > data[0] else PARTLY if data[1] > data[0] else FAILS


def _least_squares(e: Evidence) -> Judgement:
    cost = {
        name: [e.cost("least-squares", p, name) for p in (0, 1)]
        for name in ("shed-ls", "shed-ls+", "giant", "agd")
    }
    text = ", ".join(f"{name} {_n(a)} -> {_n(b)}" for name, (a, b) in cost.items())
    kept = all(cost[name][1] <= 1.25 * cost[name][0] for name in ("shed-ls", "shed-ls+"))
    hurt = cost["giant"][1] > 1.5 * cost["giant"][0]
    slow = all(cost["agd"][p] > 2 * cost["shed-ls"][p] for p in (0, 1))
    return f"rounds i.i.d. -> non-i.i.d.: {text}", _verdict(kept, hurt, slow)


def _verdict(*facts: bool) -> str:
    return HOLDS if all(facts) else PARTLY if any(facts) else FAILS


def _iid_giant(e: Evidence) -> Judgement:
    rounds = {name: e.cost("fmnist-1e-5", 0, name) for name in ("fib-shed", "fib-shed+", "giant")}
    data = {name: e.cost("fmnist-1e-5", 0, name, "uplink_vectors") for name in rounds}
    text = ", ".join(f"{name} {_n(rounds[name])} rounds and {_n(data[name])} vectors" for name in rounds)
    similar = (
        0.5 <= _ratio(rounds["giant"], rounds["fib-shed+"]) <= 2
        or 0.5 <= _ratio(rounds["giant"], rounds["fib-shed"]) <= 2
    )
    return text, _verdict(similar, data["giant"] < data["fib-shed"])


def _non_iid(e: Evidence) -> Judgement:
    rivals = ("giant", "fednl", "agd", "mont-dec")
    rounds = {name: e.cost("fmnist-1e-5", 1, name) for name in ("fib-shed", "fib-shed+", *rivals)}
    data = {name: e.cost("fmnist-1e-5", 1, name, "uplink_vectors") for name in rounds}
    text = ", ".join(f"{name} {_n(rounds[name])} / {_n(data[name])}" for name in rounds)
    wins = [rounds["fib-shed+"] < rounds[name] and data["fib-shed"] < data[name] for name in rivals]
    return f"rounds / vectors: {text}", _verdict(*wins)


def _fednl_slower(e: Evidence) -> Judgement:
    facts, parts = [], []
    for figure in ("fmnist-1e-5", "fmnist-1e-6"):
        for panel, split in enumerate(("i.i.d.", "non-i.i.d.")):
            shed, fednl = (e.cost(figure, panel, name) for name in ("fib-shed", "fednl"))
            facts.append(fednl > 1.5 * shed)
            parts.append(f"{figure[7:]} {split}: {_n(shed)} against {_n(fednl)}")
    return f"rounds of Fib-SHED against FedNL: {'; '.join(parts)}", _verdict(*facts)


def _mont_dec(e: Evidence) -> Judgement:
    early = [e.gap_at("fmnist-1e-5", 1, name, 20) for name in ("fib-shed+", "mont-dec")]
    late = [e.gap_at("fmnist-1e-5", 1, name, 150) for name in ("fib-shed+", "mont-dec")]
    text = f"gap of Fib-SHED+ and Mont-Dec: {early[0]:.1e}, {early[1]:.1e} after 20 rounds; "
    text += f"{late[0]:.1e}, {late[1]:.1e} after 150"
    return text, _verdict(0.5 <= early[0] / early[1] <= 2, late[1] > 10 * late[0])


def _ill(e: Evidence) -> Judgement:
    slow = {name: [e.cost("ill-conditioning", p, name) for p in (0, 1)] for name in ("fib-shed", "fednl")}
    factor = {name: _ratio(b, a) for name, (a, b) in slow.items()}
    last = e.run("ill-conditioning", 1, "fednl").rows[-1]
    beyond = (
        ""
        if not np.isinf(slow["fednl"][1])
        else f" (not reached in {last.rounds} rounds: gap {last.gap:.0e})"
    )
    shed, fednl = ([_n(value) for value in slow[name]] for name in ("fib-shed", "fednl"))
    text = f"Fib-SHED {shed[0]} -> {shed[1]} rounds, {factor['fib-shed']:.1f} times; "
    text += f"FedNL {fednl[0]} -> {fednl[1]}{beyond}, {factor['fednl']:.1f} times"
    return text, _verdict(1.8 <= factor["fib-shed"] <= 3.2, factor["fednl"] > 8)


def _hessians(e: Evidence) -> Judgement:
    factors, parts = [], []
    for panel, name in enumerate(
        ("FMNIST 1e-5", "FMNIST 1e-6", "MNIST 1e-5", "MNIST 1e-6", "w8a 1e-5", "w8a 1e-6")
    ):
        shed, fednl = (e.cost("hessian-counts", panel, run, "hessians") for run in ("fib-shed", "fednl"))
        factors.append(fednl / shed)
        parts.append(f"{name} {_n(shed)} against {_n(fednl)}")
    return "; ".join(parts), _verdict(*(factor >= 10 for factor in factors))


def _sporadic(e: Evidence) -> Judgement:
    rounds, hessians = (e.cost("fmnist-1e-6", 1, "fib-shed", column) for column in ("rounds", "hessians"))
    text = f"{_n(hessians)} Hessians in {_n(rounds)} rounds ({_n(rounds / 2)} iterations)"
    return text, HOLDS if hessians <= 13 and rounds < 600 else PARTLY if hessians <= 13 else FAILS


def _giant_conditioning(e: Evidence) -> Judgement:
    five, six = (e.cost(f"fmnist-1e-{k}", 0, "giant") for k in (5, 6))
    shed = [e.cost(f"fmnist-1e-{k}", 0, "fib-shed") for k in (5, 6)]
    text = (
        f"i.i.d., 1e-5 -> 1e-6: GIANT {_n(five)} -> {_n(six)} rounds, Fib-SHED {_n(shed[0])} -> {_n(shed[1])}"
    )
    return text, _verdict(_ratio(six, five) > _ratio(shed[1], shed[0]) or np.isinf(six))


def _giant_mnist(e: Evidence) -> Judgement:
    iid, non = (e.gap_at("mnist-1e-5", panel, "giant", 600) for panel in (0, 1))
    text = f"gap of GIANT on MNIST after 600 rounds, 1e-5: {iid:.1e} i.i.d., {non:.1e} non-i.i.d."
    return text, _verdict(non <= 10 * iid)


def _w8a(e: Evidence) -> Judgement:
    facts, parts = [], []
    for panel, mu in enumerate(("1e-5", "1e-6")):
        rounds = [e.cost("w8a", panel, name) for name in ("fib-shed", "fednl", "giant")]
        data = [e.cost("w8a", panel, name, "uplink_vectors") for name in ("fib-shed", "fednl")]
        facts += [rounds[1] > rounds[0], data[1] > data[0], rounds[2] > rounds[0]]
        pairs = [f"{_n(rounds[k])} / {_n(data[k])}" for k in (0, 1)]
        parts.append(
            f"{mu}: rounds / vectors of Fib-SHED {pairs[0]}, FedNL {pairs[1]}; GIANT {_n(rounds[2])} rounds"
        )
    return "; ".join(parts), _verdict(*facts)


def _variants(e: Evidence) -> Judgement:
    parts, facts = [], []
    for panel, split in enumerate(("i.i.d.", "non-i.i.d.")):
        giant, det = (e.cost("variants", panel, name) for name in ("giant", "giant-det"))
        fednl, half = (e.cost("variants", panel, name) for name in ("fednl", "fednl, rate 0.5"))
        parts.append(
            f"{split}: GIANT {_n(giant)}, determinantal {_n(det)}; FedNL {_n(fednl)}, rate 0.5 {_n(half)}"
        )
        facts += [not det < 0.8 * giant, not half < 0.8 * fednl]
    return f"rounds {'; '.join(parts)}", _verdict(*facts)


def _alike(e: Evidence) -> Judgement:
    parts, facts = [], []
    for panel, name in enumerate(("mu = 1e-4", "target class 7")):
        shed, fednl, giant = (e.cost("alike", panel, run) for run in ("fib-shed", "fednl", "giant"))
        parts.append(f"{name}: Fib-SHED {_n(shed)} rounds, FedNL {_n(fednl)}, GIANT {_n(giant)}")
        facts += [fednl > shed, giant > shed]
    return "; ".join(parts), _verdict(*facts)


def _gn_shed(e: Evidence) -> Judgement:
    """Similar is at most 1.25 times as many rounds, either way."""
    facts, parts = [], []
    for panel, data in enumerate(
        ("FMNIST 1e-5", "FMNIST 1e-5 i.i.d.", "FMNIST 1e-6", "MNIST 1e-5", "w8a 1e-5")
    ):
        rounds = [e.cost("gn-shed", panel, name) for name in ("gn-shed", "fib-shed")]
        hessians = [e.cost("gn-shed", panel, name, "hessians") for name in ("gn-shed", "fib-shed")]
        gn, fib = (f"{_n(rounds[k])} / {_n(hessians[k])}" for k in (0, 1))
        parts.append(f"{data} {gn} against {fib}")
        facts.append(1 / SIMILAR <= _ratio(*rounds) <= SIMILAR)
    text = f"rounds / Hessians of GN-SHED (b = 0.7) against Fib-SHED: {'; '.join(parts)}; "
    return f"{text}similar (at most {SIMILAR} times) in {sum(facts)} of {len(facts)}", _verdict(*facts)


def _gn_shed_scan(e: Evidence) -> Judgement:
    facts, parts = [], []
    for panel, split in enumerate(("non-i.i.d.", "i.i.d.")):
        names = [run.name for run in load("gn-shed-scan").panels[panel].runs]
        rounds = {name: e.cost("gn-shed-scan", panel, name) for name in names}
        hessians = {name: e.cost("gn-shed-scan", panel, name, "hessians") for name in names}
        cells = (f"{name} {_n(rounds[name])} / {_n(hessians[name])}" for name in names)
        parts.append(f"{split}: {', '.join(cells)}")
        facts.append(rounds["b = 0.7"] <= min(rounds[name] for name in names if name.startswith("b")))
    return f"rounds / Hessians, {'; '.join(parts)}", _verdict(*facts)


def _lbfgs(e: Evidence) -> Judgement:
    facts, parts = [], []
    for figure, panel in (("fmnist-1e-5", 1), ("fmnist-1e-6", 1), ("w8a", 0)):
        rounds = [e.cost(figure, panel, name) for name in ("fib-shed+", "lbfgs")]
        data = [e.cost(figure, panel, name, "uplink_vectors") for name in ("fib-shed", "lbfgs")]
        facts += [rounds[0] < rounds[1], data[0] < data[1]]
        parts.append(f"{figure}: rounds of Fib-SHED+ {_n(rounds[0])}, L-BFGS {_n(rounds[1])}")
        parts.append(f"vectors of Fib-SHED {_n(data[0])}, L-BFGS {_n(data[1])}")
    return "; ".join(parts), _verdict(*facts)


JUDGES: dict[str, Callable[[Evidence], Judgement]] = {
    "rho": _rho,
    "lyapunov": _lyapunov,
    "increments": _increments,
    "rayleigh": _rayleigh,
    "thirty": _thirty,
    "least-squares": _least_squares,
    "iid-giant": _iid_giant,
    "non-iid": _non_iid,
    "fednl-slower": _fednl_slower,
    "mont-dec": _mont_dec,
    "sporadic": _sporadic,
    "giant-conditioning": _giant_conditioning,
    "ill-conditioning": _ill,
    "hessians": _hessians,
    "giant-mnist": _giant_mnist,
    "w8a": _w8a,
    "variants": _variants,
    "alike": _alike,
    "gn-shed": _gn_shed,
    "gn-shed-scan": _gn_shed_scan,
    "lbfgs": _lbfgs,
}


def claims() -> tuple[Claim, ...]:
    """The claims in the order of the paper (figures/claims.toml)."""
    return msgspec.toml.decode(read("claims.toml"), type=Claims).claims
