"""The preparation of a protected study: levels and classes are its own, and only sums leave a site."""

import logging

import msgspec
import numpy as np
import pytest
from tests.grouped import GroupedTables, grouped_fit

import fedshed
from fedshed import Study
from fedshed._utils.errors import ConfigError, DataError
from fedshed.exchange import InProcess
from fedshed.exchange.sums import Scaling, split
from fedshed.preparation import negotiate
from fedshed.preparation.approved import check_protected
from fedshed.preparation.messages import CODEC, Build, Constants, Describe, Refused, Spread
from fedshed.preparation.protocol import preparers_of
from fedshed.protocol.replies import Reply

STUDY = Study(
    family="logistic", target="ill", columns=("age", "ward"), levels={"ward": ("a", "b", "c")},
    classes=("no", "yes"), missing="drop", protected=True,
)  # fmt: skip


def table(seed, rows=60, wards="abc", **columns):
    rng = np.random.default_rng(seed)
    made = {
        "age": rng.normal(50, 10, rows), "ward": rng.choice(list(wards), rows),
        "ill": rng.choice(["no", "yes"], rows),
    }  # fmt: skip
    return made | columns


def agreed(tables, study):
    with GroupedTables(tables).prepare() as transport:
        return negotiate(study, transport)


LACKING = [
    ({"columns": None}, "must name its columns"),
    ({"columns": None, "formula": "ill ~ age + C(ward)", "levels": {}}, "levels a protected study must list"),
    ({"levels": {}, "categories": ("ward",)}, "levels a protected study must list"),
    ({"classes": ()}, "must list the classes"),
    ({"columns": None, "formula": "ill ~ bs(age, df=4)", "levels": {}}, "knots, lower_bound and upper_bound"),
    ({"columns": None, "formula": "ill ~ cr(age, knots=[40, 50])", "levels": {}}, "knots, lower_bound"),
]


@pytest.mark.parametrize(("change", "words"), LACKING)
def test_what_a_protected_study_lacks_is_said_before_anything_is_sent(change, words):
    study = msgspec.structs.replace(STUDY, **change)

    class Silent(InProcess):
        def exchange(self, payloads):
            raise AssertionError("something was sent")

    with pytest.raises(ConfigError, match=words):
        check_protected(study)
    with pytest.raises(ConfigError, match=words):
        negotiate(study, Silent(preparers_of({"all": table(0)})))


def test_splines_with_knots_and_bounds_and_transforms_by_sums_are_allowed():
    formula = "ill ~ bs(age, knots=[45, 55], lower_bound=0, upper_bound=120) + scale(dose) + poly(dose, 2)"
    study = msgspec.structs.replace(STUDY, columns=None, levels={}, formula=formula)
    rng = np.random.default_rng(0)
    tables = {f"s{k}": table(k, dose=rng.gamma(2.0, size=60)) for k in range(3)}
    plan, _, _ = agreed(tables, study)
    plain, _, _ = negotiate(msgspec.structs.replace(study, protected=False), InProcess(preparers_of(tables)))
    assert plan.names == plain.names
    for term, state in plain.transforms.items():
        there = plan.transforms[term]
        np.testing.assert_allclose(_numbers(there), _numbers(state), rtol=1e-12)


def _numbers(state):
    values = (getattr(state, name) for name in state.__struct_fields__)
    return np.concatenate([np.atleast_1d(value) for value in values if value is not None]).astype(float)


def test_only_sums_differ_between_sites_whatever_their_rows_are():
    """All else follows from the study: levels, constants and missing values do not show."""
    full = table(0)
    holes = np.where(np.arange(60) < 20, np.nan, full["age"])
    others = [table(1, wards="b"), table(2, rows=7), full | {"age": np.full(60, 3.0)}, full | {"age": holes}]
    plan, ready, _ = agreed({"x": full, "y": others[0]}, STUDY)
    asked = [Describe(STUDY), Build(plan), Spread(plan, np.zeros(len(plan.names)))]
    for part in asked:
        sites = preparers_of(dict(enumerate([full, *others])))
        payload = CODEC.encode_request(CODEC.encode_common(b"", 1, [part]), None)
        parts = [CODEC.decode_reply(site.handle(payload)).parts for site in sites.values()]
        assert len({split(each, Scaling(units=True))[0] for each in parts}) == 1
    assert ready["all"].rows == 120


def test_counts_are_those_of_all_sites():
    holes = table(1)
    holes["age"][:5] = np.nan
    plan, ready, _ = agreed({"x": table(0), "y": holes}, STUDY)
    said = ready["all"]
    assert (said.rows, said.dropped, said.missing) == (115, 5, (("age", 5),))
    assert (said.constant, said.digest, said.measured) == ((), "", ())
    X = np.vstack([site.table(plan).X for site in preparers_of({"x": table(0), "y": holes}).values()])
    np.testing.assert_allclose(said.squares, np.square(X).mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("protected", [True, False])
def test_a_level_that_is_not_listed_is_named_at_its_site_only(protected, caplog):
    study = msgspec.structs.replace(STUDY, protected=protected)
    tables = {"x": table(0), "y": table(1, wards="aq")}
    with caplog.at_level(logging.ERROR, "fedshed"), pytest.raises(DataError, match="'ward'") as error:
        agreed(tables, study) if protected else fedshed.fit(tables, study)
    assert "'y'" in str(error.value)
    assert "'q'" not in str(error.value)
    assert "'q'" in caplog.text


@pytest.mark.parametrize("protected", [True, False])
def test_a_class_that_is_not_listed_is_refused(protected):
    study = msgspec.structs.replace(STUDY, protected=protected)
    tables = {"x": table(0), "y": table(1, ill=np.repeat(["no", "maybe"], 30))}
    with pytest.raises(DataError, match="class that the study does not list") as error:
        agreed(tables, study) if protected else fedshed.fit(tables, study)
    assert "maybe" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"age": np.repeat(["p", "q"], 30)}, "'age' holds text or codes here, but numbers in the study"),
        ({"ill": np.arange(60) % 2}, "'ill' holds numbers here, but text or codes in the study"),
        ({"age": np.full(60, np.nan)}, "no row is complete"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_its_site(columns, words):
    with pytest.raises(DataError, match=f"^site 'y': .*{words}"):
        agreed({"x": table(0), "y": table(1, **columns)}, STUDY)


@pytest.mark.parametrize("standardize", [True, False])
def test_a_column_that_is_the_same_in_all_rows_is_named(standardize):
    study = msgspec.structs.replace(STUDY, standardize=standardize)
    with pytest.raises(DataError, match="'age' is the same in every row of every site"):
        agreed({k: table(k, age=np.full(60, 0.1)) for k in range(3)}, study)
    with pytest.raises(DataError, match=r"'ward\[c\]' is the same in every row of every site"):
        agreed({k: table(k, wards="ab") for k in range(3)}, study)


def test_a_level_or_a_class_that_only_one_site_has_is_no_secret_of_its_schema():
    tables = {"x": table(0, wards="ab"), "y": table(1, wards="c", ill=np.full(60, "yes"))}
    model = grouped_fit(tables, msgspec.structs.replace(STUDY, l2=0.1))
    assert model.plan.levels == {"ward": ("a", "b", "c")}
    assert model.plan.classes == ("no", "yes")


def test_a_protected_study_asks_for_no_values_of_columns():
    plan, _, _ = agreed({"x": table(0), "y": table(1)}, STUDY)
    site = preparers_of({"x": table(0, age=np.full(60, 3.0))})["x"]
    payload = CODEC.encode_request(CODEC.encode_common(b"", 1, [Constants(plan, (0,))]), None)
    reply: Reply = CODEC.decode_reply(site.handle(payload))
    assert isinstance(reply.parts[0], Refused)
    assert "values" in reply.parts[0].reason


def test_listed_levels_are_in_the_order_of_the_study_and_the_first_is_the_reference():
    study = msgspec.structs.replace(STUDY, protected=False, levels={"ward": ("c", "a", "b")})
    model = fedshed.fit({"x": table(0), "y": table(1)}, study)
    assert model.plan.levels == {"ward": ("c", "a", "b")}
    referred = msgspec.structs.replace(study, references={"ward": "b"})
    assert fedshed.fit({"x": table(0), "y": table(1)}, referred).plan.levels == {"ward": ("b", "c", "a")}


def test_codes_that_are_numbers_can_be_listed():
    study = msgspec.structs.replace(STUDY, levels={"ward": (1, 2)})
    tables = {k: table(k, ward=np.arange(60) % 2 + 1) for k in range(3)}
    assert agreed(tables, study)[0].names == ("age", "ward[2]")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"levels": {"ward": ("a",)}}, "two or more"),
        ({"levels": {"ward": ("a", "a")}}, "each listed once"),
        ({"references": {"ward": "z"}}, "not among the levels"),
        ({"classes": ("no", 1)}, "all of them text"),
        ({"classes": ("a", "b", "c")}, "two classes"),
        ({"positive": ("yes",)}, "positive or classes"),
        ({"family": "linear"}, "target of classes"),
    ],
)
def test_lists_that_cannot_be_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        msgspec.structs.replace(STUDY, **change)


def test_a_slip_in_the_name_of_a_column_of_levels_is_found():
    study = msgspec.structs.replace(STUDY, protected=False, levels={"wrad": ("a", "b", "c")})
    with pytest.raises(ConfigError, match="'wrad'"):
        fedshed.fit({"x": table(0), "y": table(1)}, study)


def test_a_study_without_lists_is_encoded_as_before():
    plain = Study(family="linear", target="y", columns=("x",))
    assert msgspec.json.encode(plain) == b'{"family":"linear","target":"y","columns":["x"]}'
    assert msgspec.json.decode(msgspec.json.encode(STUDY), type=Study) == STUDY
