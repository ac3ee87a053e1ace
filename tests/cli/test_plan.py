"""`fedshed plan`: a table for people, JSON for programs, and a kind sentence where a fit would be noise."""

from __future__ import annotations

import pytest

from calls import call, strict_json
from fedshed.solve.private_plan import predict


def test_a_plan_says_what_is_released_and_how_far_it_will_be_off():
    shown = call("plan", "--rows", 10000, "--columns", 10, "--epsilon", 4, "--delta", 1e-6, "--clip", 4.5)
    assert shown.exit_code == 0
    assert "0.32 standard errors" in shown.stdout
    assert "14 gradients" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_json_has_what_was_predicted():
    shown = call("plan", "--rows", 10000, "--columns", 10, "--delta", 1e-6, "--clip", 4.5, "--json")
    facts, expected = strict_json(shown.stdout), predict(10000, 10, 4.0, 1e-6, 4.5)
    assert facts["deviation"] == expected.deviation
    assert sum(one["budget"] for one in facts["releases"]) == pytest.approx(1)
    assert sum(one["numbers"] for one in facts["releases"]) == facts["numbers"]


def test_noise_is_refused_with_what_would_be_needed():
    shown = call("plan", "--rows", 500, "--columns", 10, "--epsilon", 1)
    assert shown.exit_code == 1
    assert "which is only noise; the study needs about" in shown.stderr


def test_a_study_says_the_promise_and_the_options_change_it(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        'family = "logistic"\ntarget = "y"\ncolumns = ["u", "v"]\n'
        "protected = true\nprivacy = {epsilon = 2.0, delta = 1e-7, clip = 2.5}\n"
    )
    facts = strict_json(call("plan", file, "--rows", 100_000, "--json").stdout)
    assert [facts[name] for name in ("columns", "epsilon", "delta", "clip")] == [2, 2.0, 1e-7, 2.5]
    more = strict_json(call("plan", file, "--rows", 100_000, "--epsilon", 4, "--json").stdout)
    assert more["deviation"] < facts["deviation"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--columns", 3), "--rows 10000"),
        (("--rows", 1000), "--columns 10"),
        (("--rows", 1000, "--columns", 3, "--delta", 0.1), "below 1 / rows"),
        (("--rows", 1000, "--columns", 3, "--sites", 2), "at least 3 sites"),
        (("--rows", 1000, "--columns", 3, "--epsilon", -1), "epsilon of privacy"),
    ],
)
def test_what_is_missing_or_cannot_be_is_said_in_one_line(options, said):
    shown = call("plan", *options)
    assert shown.exit_code == 2
    assert said in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_weak_promise_is_noted():
    shown = call("plan", "--rows", 10000, "--columns", 3, "--epsilon", 20)
    assert "promises little" in shown.stdout
