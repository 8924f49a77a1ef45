import copy

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from compshift import InputError
from compshift.serve.model import KEYS, TooLargeError, service_sentence
from tests.serve.service import CODES, features, fitted, labels, served, served_classifier, table

KINDS = ["unnamed", "named", "table", "boosted table", "mixed"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for kind in KINDS:
        if "boosted" in kind or kind == "mixed":
            pytest.importorskip("lightgbm")
        path, rows = fitted(kind, folder)
        found[kind] = (path, served(path), rows)
    return found


def expected_proba(kind, path):
    """Probabilities by the loaded model, on the training rows as they were in memory."""
    clf = cs.load(path)
    if kind == "unnamed":
        return clf.predict_proba(features())
    if kind == "named":
        return clf.predict_proba(pd.DataFrame(features(), columns=["a", "b", "c"]))
    return clf.predict_proba(table()[["length", "job"]] if kind == "mixed" else table())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_from_json_are_predicted_as_by_the_library(models, kind):
    path, model, rows = models[kind]
    answer = model.predict(model.read({"rows": rows}, 1000))["predictions"]["bird"]
    wanted = expected_proba(kind, path)
    np.testing.assert_allclose(answer["probabilities"], wanted, rtol=1e-9)
    assert answer["classes"] == ["duck", "gull"]
    assert answer["predicted"] == [answer["classes"][code] for code in wanted.argmax(axis=1)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_is_accepted(models, kind):
    _, model, _ = models[kind]
    query = model.read(model.example(), 1)
    assert sum(model.predict(query)["predictions"]["bird"]["probabilities"][0]) == pytest.approx(1)


def test_named_features_are_also_taken_as_lists(models):
    _, model, rows = models["named"]
    as_lists = {"rows": [list(row.values()) for row in rows]}
    shuffled = {"rows": [{name: row[name] for name in ("c", "a", "b")} for row in rows]}
    assert model.predict(model.read(as_lists, 1000)) == model.predict(model.read(shuffled, 1000))


def test_explanations_and_sets_are_those_of_the_library(models):
    path, model, rows = models["unnamed"]
    query = model.read({"rows": rows[:4], "coverage": 0.8}, 10, (*KEYS, "coverage"))
    clf = cs.load(path)
    frame = clf.explain(features()[:4]).to_frame()
    for found, (_, wanted) in zip(model.explain(query)["explanations"], frame.iterrows(), strict=True):
        assert found["group"] == {"bird": wanted["bird"], "place": wanted["place"]}
        assert (found["probability"], found["seen"]) == (wanted["probability"], wanted["seen"])
        assert found["effective_sample_size"] == wanted["effective_sample_size"]
        assert found["rival"] == {"bird": wanted["rival bird"], "place": wanted["rival place"]}
        terms = [*found["energies"].values(), found["bias"], found["prior"]]
        assert sum(terms) == pytest.approx(found["log_odds"])
        assert found["main_features"].startswith("x")
    wanted_sets = clf.predict_set(features()[:4], 0.8)
    answer = model.predict_set(query)
    assert answer["coverage"] == 0.8
    assert answer["sets"]["bird"]["sets"] == [list(one) for one in wanted_sets]
    assert answer["sets"]["bird"]["p_values"] == wanted_sets.p_values.tolist()


def test_several_targets_have_an_answer_each():
    y = labels()
    clf = cs.CRMClassifier(cross_fit=True).fit(features(), y)
    model = served_classifier(clf)
    query = model.read({"rows": features()[:5].tolist()}, 10)
    answer = model.predict(query)["predictions"]
    for (name, part), wanted in zip(answer.items(), clf.predict_proba(features()[:5]), strict=True):
        assert name in ("bird", "place")
        np.testing.assert_allclose(part["probabilities"], wanted)
    assert list(model.predict_set(query)["sets"]) == ["bird", "place"]


def test_known_attributes_and_the_prior_of_a_request_change_only_that_request(models):
    path, model, rows = models["unnamed"]
    clf, X = cs.load(path), features()[:3]
    before = model.predict(model.read({"rows": rows[:3]}, 10))
    attributes = [{"place": "lake"}, {}, {"place": None}]
    known = model.predict(model.read({"rows": rows[:3], "attributes": attributes}, 10))["predictions"]["bird"]
    wanted = clf.predict_proba(X, attributes=pd.DataFrame({"place": ["lake", None, None]}))
    np.testing.assert_allclose(known["probabilities"], wanted)
    groups = [{"bird": b, "place": p, "prior": q} for b, p, q in (("duck", "sea", 0.9), ("gull", "sea", 0.1))]
    weighted = model.predict(model.read({"rows": rows[:3], "prior": groups}, 10))["predictions"]["bird"]
    wanted = copy.copy(clf).set_prior({("duck", "sea"): 0.9, ("gull", "sea"): 0.1}).predict_proba(X)
    np.testing.assert_allclose(weighted["probabilities"], wanted)
    classes = [{"bird": "duck", "prior": 0.3}, {"bird": "gull", "prior": 0.7}]
    by_class = model.predict(model.read({"rows": rows[:3], "prior": classes}, 10))["predictions"]["bird"]
    wanted = copy.copy(clf).set_prior({"duck": 0.3, "gull": 0.7}).predict_proba(X)
    np.testing.assert_allclose(by_class["probabilities"], wanted)
    assert not np.allclose(wanted, before["predictions"]["bird"]["probabilities"])
    assert model.predict(model.read({"rows": rows[:3]}, 10)) == before


def test_values_of_attributes_are_matched_as_they_are_written():
    z = CODES + np.array([0, 7])
    clf = cs.CRMClassifier().fit(features(), labels()["bird"], attributes=pd.DataFrame({"year": z[:, 1]}))
    model, row = served_classifier(clf), features()[:1].tolist()
    number, text = (model.predict(model.read({"rows": row, "attributes": [{"year": year}]}, 1)) for year in (7, "7"))
    assert number == text


ROW = [1.0, 2.0, 3.0]
BAD = [
    (None, "the body is null"),
    ([], "the body is an empty list"),
    ({}, "rows is null"),
    ({"rows": []}, "rows is an empty list"),
    ({"rows": {}}, "rows is an object"),
    ({"rows": [ROW], "rwos": 1}, "key 'rwos' is not known: use one of 'rows', 'attributes', 'prior'; did you mean"),
    ({"rows": [ROW], "coverage": 0.5}, "key 'coverage' is not known"),
    ({"rows": [ROW, [1.0, 2.0]]}, "row 1 has 2 values, but the model takes 3"),
    ({"rows": [ROW, 1]}, "row 1 is 1: pass a list of 3 numbers"),
    ({"rows": [{"a": 1}]}, "row 0 is an object: pass a list of 3 numbers"),
    ({"rows": [ROW, [1.0, None, 3.0]]}, "'feature 1' is null in row 1: pass a number"),
    ({"rows": [[1.0, "2", 3.0]]}, "'feature 1' is '2' in row 0: pass a number"),
    ({"rows": [[1.0, [2.0], 3.0]]}, "'feature 1' is a list in row 0"),
    ({"rows": [[[1.0], [2.0], [3.0]]]}, "'feature 0' is a list in row 0"),
    ({"rows": [[1.0, {}, 3.0]]}, "'feature 1' is an object in row 0"),
    ({"rows": [[1.0, float("inf"), 3.0]]}, "'feature 1' is infinite in row 0"),
    ({"rows": [[1.0, 10**400, 3.0]]}, "'feature 1' is infinite in row 0"),
    ({"rows": [[1.0, 1e303, 3.0]]}, "rows has values up to 1e+303"),
    ({"rows": [ROW], "attributes": {"place": "sea"}}, "attributes is an object, but there are 1 rows"),
    ({"rows": [ROW], "attributes": [{}, {}]}, "attributes is a list with 2 items, but there are 1 rows"),
    ({"rows": [ROW], "attributes": ["sea"]}, "attributes has 'sea' as item 0: pass an object"),
    ({"rows": [ROW], "attributes": [{"plcae": "sea"}]}, "attribute 'plcae' is not known"),
    ({"rows": [ROW], "attributes": [{"bird": "duck"}]}, "'bird' is a target, which the model predicts"),
    ({"rows": [ROW], "attributes": [{"place": "moon"}]}, "attribute 'place' is 'moon' in row 0, a value that training"),
    ({"rows": [ROW], "attributes": [{"place": ["sea"]}]}, "attributes has a list for 'place' in item 0"),
    ({"rows": [ROW], "prior": 3}, "prior is 3: pass 'uniform', 'hull' or 'train', or a list"),
    ({"rows": [ROW], "prior": "unifrom"}, "prior 'unifrom' is not known"),
    ({"rows": [ROW], "prior": []}, "prior has no items"),
    ({"rows": [ROW], "prior": [1]}, "prior has 1 as item 0"),
    ({"rows": [ROW], "prior": [{"bird": "duck"}]}, "prior lacks the column 'prior'"),
    ({"rows": [ROW], "prior": [{"bird": "duck", "prior": "x"}]}, "prior has 'x' in row 0"),
    ({"rows": [ROW], "prior": [{"bird": "duck", "prior": 1}, {"prior": 1}]}, "prior has other keys in item 1"),
    (
        {"rows": [ROW], "prior": [{"bird": bird, "prior": 0.2} for bird in ("duck", "gull")]},
        "sums to 0.4: probabilities must sum to 1",
    ),
    ({"rows": [ROW], "prior": [{"bird": "swan", "prior": 1}]}, "'swan'"),
]


@pytest.mark.parametrize(("body", "sentence"), BAD)
def test_bad_requests_raise_one_sentence(models, body, sentence):
    _, model, _ = models["unnamed"]
    with pytest.raises(InputError) as error:
        model.predict(model.read(body, 100))
    assert sentence in service_sentence(error.value)
    assert "\n" not in str(error.value)


def changed(row, **values):
    return {"rows": [{**row, **values}]}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lenght": 1.0}, "row 0: the column 'lenght' is not known: use one of 'length', 'width'"),
        ({"length": "long"}, "'length' is 'long' in row 0: pass a number, or null if it is missing"),
        ({"length": [1]}, "'length' is a list in row 0"),
        ({"length": float("inf")}, "the column 'length' has inf at row 0, which is not a number"),
        ({"job": {"a": 1}}, "'job' is an object in row 0"),
        ({"member": "perhaps"}, "the column 'member' has 'perhaps' at row 0, which is not true or false"),
        ({"since": "yesterday"}, "the column 'since' has 'yesterday' at row 0, which is not a date"),
        ({"since": 20200101}, "which is not a date"),
    ],
)
def test_bad_values_of_columns_raise_one_sentence(models, values, sentence):
    _, model, rows = models["table"]
    with pytest.raises(InputError) as error:
        model.read(changed(rows[0], **values), 100)
    assert sentence in str(error.value)


def test_absent_columns_and_lists_for_tables_are_rejected(models):
    _, model, rows = models["table"]
    row = {name: value for name, value in rows[0].items() if name not in ("job", "since")}
    with pytest.raises(InputError, match="row 0 lacks the columns 'job', 'since': add them, with null for a missing"):
        model.read({"rows": [row]}, 1)
    with pytest.raises(InputError, match="row 0 is a list: pass an object with 'length', 'width'"):
        model.read({"rows": [list(rows[0].values())]}, 1)


def test_new_categories_and_missing_values_are_predicted(models):
    for kind in ("table", "boosted table", "mixed"):
        _, model, rows = models[kind]
        for values in ({"job": "pilot"}, {"job": None, "length": None}, {"job": " cook "}, {"job": ""}):
            query = model.read(changed(rows[0], **values), 1)
            assert np.isfinite(model.predict(query)["predictions"]["bird"]["probabilities"]).all()
    _, model, rows = models["table"]
    spaced, plain = (model.read(changed(rows[0], job=job), 1).X for job in (" cook ", "cook"))
    np.testing.assert_array_equal(spaced, plain)


def test_too_many_rows_are_another_error(models):
    _, model, rows = models["unnamed"]
    with pytest.raises(TooLargeError, match="rows has 3 items, but at most 2 are accepted"):
        model.read({"rows": rows[:3]}, 2)


def test_prediction_sets_need_out_of_fold_energies(models):
    _, model, rows = models["named"]
    with pytest.raises(InputError, match="predict_set needs out-of-fold energies"):
        model.predict_set(model.read({"rows": rows[:1]}, 1))
    _, model, rows = models["unnamed"]
    for coverage in (2, "much", None, [0.9], True):
        with pytest.raises(InputError, match="coverage is"):
            model.predict_set(model.read({"rows": rows[:1], "coverage": coverage}, 1, (*KEYS, "coverage")))
