"""Whole protected studies of nodes: no number of a site is in the bytes that leave it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.deployment.test_protected_nodes import MODEL, Carrier, approved, folder, nodes, study

from fedshed.deployment.master import conduct_study
from fedshed.fitting.all_sites import AllTables
from fedshed.fitting.stages import Answer, _read
from fedshed.privacy import fixed_point as fp
from fedshed.protected.messages import Masked, read_reply
from fedshed.tables import read_table

pytest.importorskip("cryptography")
assert folder  # a fixture
LINEAR = replace(MODEL, family="linear", classes=())


def floats_in(value):
    """All numbers of a message."""
    if isinstance(value, Struct):
        return [x for name in value.__struct_fields__ for x in floats_in(getattr(value, name))]
    if isinstance(value, np.ndarray):
        return [float(x) for x in value.ravel()]
    if isinstance(value, tuple | list):
        return [x for each in value for x in floats_in(each)]
    return [float(value)] if isinstance(value, float) else []


def patterns(words):
    """8-byte words, both ways round, without those that any message may hold."""
    both = np.concatenate([words.view("<u8"), words.view("<u8").byteswap()])
    return np.array(sorted({int(w) for w in both if len(set(int(w).to_bytes(8, "little"))) > 3}), "<u8")


def windows(data):
    """All runs of 8 bytes of some bytes."""
    return np.concatenate([np.frombuffer(data[k : k + (len(data) - k) // 8 * 8], "<u8") for k in range(8)])


@dataclass
class Site:
    """What a site computed, as words, and the bytes that it sent."""

    numbers: list[np.ndarray] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)

    @property
    def masked(self):
        """The words of its masked numbers."""
        replies = [read_reply(reply.payload) for reply in map(_read, self.sent) if isinstance(reply, Answer)]
        bodies = [reply.body for reply in replies if isinstance(reply, Masked)]
        return np.concatenate([np.frombuffer(body.words, "<u8") for body in bodies])


class Heard(Carrier):
    """A transport that knows which site is at work."""

    def __init__(self, made):
        super().__init__(made)
        self.heard = {site: Site() for site in made}
        self.now = ""

    def exchange(self, payloads):
        answers = []
        for site, payload in payloads.items():
            self.now = site
            answers += super().exchange({site: payload})
            self.heard[site].sent.append(self.sent[-1])
        return answers


@pytest.fixture
def heard(folder, monkeypatch):
    """Conducts a study and gives what each site computed and sent."""

    def conducted(file, made):
        carrier, whole = Heard(made), AllTables.addends

        def addends(self, label, request, parts, weight=1.0):
            public, part, fraction = whole(self, label, request, parts, weight)
            numbers = np.array([*floats_in(parts), *part.wide, *part.slim])
            fixed = fp.encode(part, fraction, len(carrier.sites))[1]
            carrier.heard[carrier.now].numbers += [numbers.view("<u8"), np.asarray(fixed)]
            return public, part, fraction

        with monkeypatch.context() as patched:
            patched.setattr(AllTables, "addends", addends)
            conduct_study(file, carrier)
        for site, found in carrier.heard.items():
            table = read_table(folder / site / "table.csv").to_pandas()
            found.numbers.append(table.to_numpy(float).ravel().view("<u8"))
        return carrier.heard

    return conducted


@pytest.mark.parametrize("model", [MODEL, LINEAR], ids=["logistic", "linear"])
@pytest.mark.parametrize("settings", [{"algorithm": "newton", "errors": "HC1"}, {"algorithm": "lbfgs"}])
def test_no_number_of_a_site_is_in_the_bytes_that_leave_it(folder, heard, model, settings):
    file = study(folder, model, **settings)
    for site in heard(file, approved(folder, file)).values():
        numbers = patterns(np.concatenate(site.numbers))
        assert len(numbers) > 200
        assert not np.isin(numbers, windows(b"".join(site.sent))).any()


def test_the_search_finds_a_number_that_is_not_masked(folder, heard):
    file = study(folder)
    found = heard(file, approved(folder, file))
    for site in found.values():
        for words in site.numbers[-3:]:
            for order in (words, words.byteswap()):
                sent = b"x" + b"".join(site.sent) + b"yz" + order.tobytes()
                assert np.isin(patterns(np.concatenate(site.numbers)), windows(sent)).any()


def test_two_runs_of_a_study_share_no_word_of_masked_numbers(folder, heard):
    file = study(folder)
    runs = [heard(file, approved(folder, file)), heard(file, nodes(folder))]
    words = np.concatenate([site.masked for run in runs for site in run.values()])
    assert len(words) > 1000
    assert len(np.unique(words)) == len(words)
