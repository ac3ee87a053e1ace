"""What a notebook and a prompt show of the objects that a user holds: short, whole, and escaped."""

from __future__ import annotations

import logging
from html.parser import HTMLParser

import numpy as np
import pytest

import fedshed
from conftest import make_federation
from embedded import hospitals
from fedshed._utils.notebook import html_table

EVIL = "<script>alert(1)</script>"


class Checked(HTMLParser):
    """Refuses tags that are not closed, and collects the text."""

    def __init__(self):
        super().__init__()
        self.open, self.words, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def checked(html):
    parser = Checked()
    parser.feed(html)
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def objects():
    federation = make_federation("logistic")
    result = fedshed.optimize(federation, l2=1e-3, algorithm="newton")
    model = fedshed.fit(hospitals(), fedshed.Study(family="logistic", target="malignant"))
    comparison = fedshed.compare(federation, ["newton", "fib-shed"], l2=1e-3)
    return {
        "federation": federation, "result": result, "trace": result.trace, "model": model,
        "summary": model.summary(robust=True), "comparison": comparison,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("federation", ("3 sites", "343 rows", "large")),
        ("result", ("converged", "6", "gradient norm")),
        ("trace", ("Trace of", "iterations")),
        ("model", ("malignant", "569 rows", "radius")),
        ("summary", ("Federated regression of malignant", "radius", "robust, by site")),
        ("comparison", ("newton", "fib-shed", "exchanges", "converged")),
    ],
)
def test_objects_show_what_they_are(objects, name, words):
    one = objects[name]
    text, html = repr(one), checked(one._repr_html_())
    assert "object at 0x" not in text
    assert len(text) < 4000
    assert not html.tags & {"script", "style"}
    shown = " ".join(html.words)
    assert all(word in text + shown for word in words)
    assert "array(" not in text


def test_the_summary_in_a_prompt_is_the_summary_that_is_printed(objects):
    plain = objects["model"].summary()
    assert repr(plain) == str(plain)


def test_the_coefficients_of_a_model_are_all_in_its_table(objects):
    rows = checked(objects["model"]._repr_html_()).words
    assert all(name in rows for name in objects["model"].coefficients)


def test_what_a_site_or_an_algorithm_is_called_is_text():
    X, y = np.random.default_rng(0).normal(size=(20, 2)), [1, -1] * 10
    federation = fedshed.Federation.from_arrays(X, y, sites=[EVIL] * 20, name=EVIL)
    found = fedshed.compare(federation, {EVIL: "newton"}, l2=0.1)
    for one in (federation, found):
        assert "script" not in checked(one._repr_html_()).tags


def test_of_many_rows_the_first_and_the_last_are_shown():
    html = html_table([{"k": k} for k in range(100)], most=10)
    assert html.count("<tr>") == 1 + 10 + 1
    assert "90 more" in html
    assert html_table([]) == "<table></table>"


def test_everything_is_logged_under_the_name_of_the_package():
    """So that one line of the reader's own program shows or silences it."""
    import ast
    from pathlib import Path

    names = set()
    for path in Path(fedshed.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
                names.add(ast.literal_eval(node.args[0]))
    assert {name.partition(".")[0] for name in names} == {"fedshed"}
    assert logging.getLogger("fedshed").handlers == []  # a library adds none
