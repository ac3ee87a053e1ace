"""`positive` at sites that write the two classes otherwise: refused, or noted where it may be meant."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from fedshed import DataError, Study
from fedshed.preparation import Preparer, prepare
from fedshed.preparation.approved import approved_schema
from fedshed.preparation.messages import Describe
from fedshed.preparation.spellings import look_of_others
from fedshed.tables.frames import Frame


def table(values, rows: int = 40, seed: int = 0) -> dict[str, list]:
    """Rows whose target takes the given values in turn."""
    rng = np.random.default_rng(seed)
    return {
        "age": rng.normal(size=rows).round(3).tolist(),
        "time": rng.exponential(5, rows).round(3).tolist(),
        "y": rng.permutation([values[k % len(values)] for k in range(rows)]).tolist(),
    }


LOGISTIC = {"family": "logistic", "target": "y", "columns": ("age",)}
COX = {"family": "cox", "time": "time", "event": "y", "columns": ("age",)}
MODELS = pytest.mark.parametrize("fields", [LOGISTIC, COX], ids=["logistic", "cox"])


@MODELS
@pytest.mark.parametrize(
    ("positive", "usual", "odd"),
    [
        (("Yes", "yes"), ["Yes", "yes", "No"], [1, 2]),
        (("Yes", "yes"), ["Yes", "No"], ["ja", "nein"]),
        (("yes",), ["yes", "no", "No"], [1, 2, 9]),
        (("yes",), ["yes", "no"], [True, False]),
        ((2,), [1, 2], [0, 1]),
        ((2,), [1, 2], [True, False]),
        ((1,), [0, 1], ["Ja", "Nein"]),
    ],
)
def test_two_classes_of_another_spelling_are_refused_by_site(fields, positive, usual, odd):
    sites = {"north": table(usual), "city": table(odd, seed=1), "port": table(odd, seed=2)}
    with pytest.raises(DataError) as caught:
        prepare(sites, Study(**fields, positive=positive))
    assert "sites 'city', 'port' have none of the values named by positive in column 'y'" in str(caught.value)
    assert "would count as the other class" in str(caught.value)


@MODELS
@pytest.mark.parametrize(
    ("positive", "usual", "without"),
    [
        (("yes",), ["yes", "no"], ["no"]),
        (("died",), ["died", "home", "transfer"], ["home", "transfer"]),
        (("died",), ["died", "home"], ["home", "transfer"]),
        ((2,), [0, 1, 2], [0, 1]),  # status of the pbc trial: a site without deaths
        (("4b",), ["1", "2", "4b"], [1, 2]),
    ],
)
def test_a_site_that_may_lack_the_class_is_fitted_and_noted(fields, positive, usual, without, caplog):
    sites = {"north": table(usual), "south": table(usual, seed=3), "city": table(without, seed=1)}
    prepared = prepare(sites, Study(**fields, positive=positive))
    said = [note for note in prepared.plan.notes if "none of the values named by positive" in note]
    assert len(said) == 1
    assert said[0].startswith("site 'city'")
    assert "count as" in said[0]
    assert said[0] in caplog.text


def test_the_note_is_in_the_summary_and_no_note_is_made_where_all_sites_have_the_values():
    sites = {"north": table(["yes", "no"]), "city": table(["no"], seed=1)}
    study = Study(**LOGISTIC, positive=("yes",))
    said = " ".join(str(fedshed.fit(sites, study).summary()).split())
    assert "site 'city' has none of the values named by positive ('yes')" in said
    sites["city"] = table(["no", "yes"], seed=1)
    assert prepare(sites, study).plan.notes == ()


def test_a_further_word_for_yes_at_a_site_is_noted():
    sites = {"north": table(["Yes", "No"]), "city": table(["Yes", "ja", "No"], seed=1)}
    (said,) = prepare(sites, Study(**LOGISTIC, positive=("Yes",))).plan.notes
    assert said.startswith("site 'city' has other words for yes")


def test_only_values_of_enough_rows_are_told_of():
    """A value that fewer rows have than the policy names is as if it did not occur."""
    few = {**table(["0"], rows=40), "y": [0] * 20 + [1] * 18 + [2] * 2}
    none = {**few, "y": [0] * 20 + [1] * 20}
    study = Study(**COX, positive=(2,))
    told = []
    for frame in (few, none):
        preparer = Preparer("city", frame)
        preparer.named = 5
        told.append(preparer._reply(Describe(study)))
    assert told[0].positive == told[1].positive == ()
    assert told[0].others == told[1].others == "respelled"


def test_words_for_no_are_one_class():
    assert look_of_others(["yes"], ["No", "no", "n"], has_positive=True) == ""
    assert look_of_others(["yes"], ["No", "perhaps"], has_positive=True) == "several"
    assert look_of_others(["yes"], ["no"], has_positive=False) == ""


# --- remedies that do no harm --------------------------------------------------------------------


def refusal(sites, **fields) -> str:
    with pytest.raises(DataError) as caught:
        prepare(sites, Study(**fields))
    return str(caught.value)


def test_booleans_beside_1_and_2_are_to_be_recoded():
    """With `positive = [1]` the sites with 1 and 2 would have the opposite classes."""
    sites = {"north": table([True, False]), "city": table([1, 2]), "port": table([1, 2], seed=2)}
    said = refusal(sites, **LOGISTIC)
    assert "--positive 1" not in said
    assert "sites 'city', 'port' have 1 and 2, site 'north' has False and True" in said
    assert "recode the column so that all sites write the same two classes" in said


def test_codes_of_other_sites_are_named_with_the_sites():
    sites = {"north": table([0, 1]), "city": table([1, 2]), "port": table([1, 2], seed=2)}
    said = refusal(sites, **LOGISTIC)
    assert "but there are 3" in said
    assert "site 'north' has 0 and 1" in said
    assert "sites 'city', 'port' have 1 and 2" in said
    assert "recode" in said
    assert "--positive" not in said


def test_words_beside_codes_are_named_with_the_sites():
    said = refusal({"north": table(["yes", "no"]), "city": table([1, 2])}, **LOGISTIC)
    assert "site 'city' has 1 and 2, site 'north' has no and yes; recode" in said
    assert "--positive" not in said
    assert "--positive yes,1" in refusal({"a": table(["yes", "no"]), "b": table([0, 1])}, **LOGISTIC).replace(
        "1,yes", "yes,1"
    )


def test_events_coded_1_and_2_at_some_sites_are_told_of_those_coded_0_and_1():
    said = refusal({"north": table([0, 1]), "city": table([1, 2]), "port": table([1, 2])}, **COX)
    assert "if 2 is the event and 1 is not at every site" in said
    assert "a site with 0 and 1 must be recoded first" in said


def test_the_first_error_about_one_site_tells_of_the_others():
    sites = {"north": table(["yes", "no", "Yes"]), "city": table([1, 2])}
    assert "a site that has none of the values named counts as all no" in refusal(sites, **LOGISTIC)


# --- tables that the agreement does not see ------------------------------------------------------


def test_an_evaluation_names_a_table_without_the_positive_values():
    study = Study(**LOGISTIC, positive=("yes",))
    model = fedshed.fit({"north": table(["yes", "no"]), "south": table(["no", "yes"], seed=1)}, study)
    new = {"city": table(["ja", "nein"], seed=2), "port": table(["yes", "no"], seed=3)}
    (said,) = fedshed.evaluate(model, new).notes
    assert said.startswith("site 'city' has none of the values named by positive ('yes') in column 'y'")


def test_a_protected_site_tells_its_own_log_only(caplog):
    study = Study(**LOGISTIC, positive=("yes",), protected=True)
    schema = approved_schema(study, Frame(table(["ja", "nein"])))
    assert "column 'y' has none of the values named by positive" in caplog.text
    assert (schema.positive, schema.others) == ((0,), "")


def test_classes_of_another_kind_are_objected_to_once():
    assert "\n" not in refusal({"north": table(["yes", "no"]), "city": table([1, 2])}, **LOGISTIC)
