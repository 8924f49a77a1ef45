"""compare: the same rows for all methods, on data where the answer is known, and its errors."""

import importlib.util
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from compshift import CombinationKFold, InputError, LogitAdjustedClassifier, compare
from compshift.crm.inputs import seed_of
from compshift.crm.ridge import default_alphas, typical_alpha
from compshift.data import FeatureStore
from compshift.estimators import compare as module
from tests.estimators.made_data import make_data


def squares(rare=60, frequent=300, seed=0):
    """Additive Gaussians in 3 × 3 groups, most rows of three of them; the attribute moves features more than y does."""
    rng = np.random.default_rng(seed)
    z = np.array([(a, b) for a in range(3) for b in range(3) for _ in range(frequent if a == b else rare)])
    X = rng.normal(size=(len(z), 6))
    X[np.arange(len(z)), z[:, 0]] += 3
    X[np.arange(len(z)), 3 + z[:, 1]] += 5
    X[:, :3] += np.eye(3)[z[:, 1]]
    return X, z[:, 0], z[:, 1]


@pytest.fixture(scope="module")
def found():
    X, y, a = squares()
    names = ["logistic", "logistic-balanced", "boosting", "boosting-attributes", "crm"]
    return compare(X, y, attributes=a, methods=names, n_splits=3, known=True)


def test_on_held_out_combinations_erm_fails_and_crm_does_not(found):
    unseen, error = found.frame["unseen"], found.frame["unseen_error"]
    for name in ("logistic", "boosting", "boosting-attributes"):
        assert unseen["crm"] - unseen[name] > 4 * max(error["crm"], error[name]), found
    assert unseen["crm"] > 0.8
    assert unseen["crm-known"] >= unseen["crm"]
    assert found.sentences[0].startswith("On 9 held-out combinations, CRM ")
    assert found.sentences[1].startswith("Against gradient boosting, CRM with a uniform prior over groups ")
    assert found.sentences[2].startswith("The uniform prior itself ")
    assert (found.frame["seconds"] > 0).all()


def test_rows_follow_the_order_of_the_methods_and_known_attributes_come_after_their_method(found):
    names = ["logistic", "logistic-balanced", "boosting", "boosting-attributes", "crm", "crm-known"]
    assert list(found.frame.index) == names


def test_balanced_weights_help_rare_groups(found):
    assert found.frame.loc["logistic-balanced", "balanced"] > found.frame.loc["logistic", "balanced"]
    assert found.frame.loc["logistic-balanced", "average"] < found.frame.loc["logistic", "average"]


def small_rows(**options):
    """Rows of ``squares`` as the methods get them, and the setup of a comparison."""
    X, y, a = squares(rare=20, frequent=60, **options)
    setup = module._Setup(module.GroupSpace.from_cardinalities((3, 3)), (0,) * X.shape[1], 0, False)
    return module._Rows(X, np.stack([y, a], axis=1)), setup


def test_balanced_weights_have_a_mean_of_one():
    rows, setup = small_rows()
    weight = np.where(rows.codes[:, 0] == rows.codes[:, 1], 1 / 60, 1 / 20) * len(rows.codes) / 9
    X = StandardScaler().fit_transform(rows.features)
    expected = LogisticRegression(max_iter=1000).fit(X, rows.codes[:, 0], sample_weight=weight)
    _, clf = module.COMPARED_METHODS["logistic-balanced"](rows, setup)
    np.testing.assert_allclose(clf.coef_, expected.coef_, atol=1e-6)


def test_the_training_prior_is_that_of_the_training_rows():
    (rows, setup), (others, _) = small_rows(), small_rows(seed=1)
    prepare, clf = module.COMPARED_METHODS["crm"](rows, setup)
    (found,) = module._score("crm", rows, [others], setup).correct["crm-train-prior"]
    expected = clf.set_prior("train").predict(prepare(others)) == others.codes[:, 0]
    np.testing.assert_array_equal(found, expected)
    assert (clf.set_prior("uniform").predict(prepare(others)) == others.codes[:, 0]).tolist() != expected.tolist()


@pytest.mark.filterwarnings("ignore:. folds are used instead")
def test_values_of_logistic_regression_match_a_reference():
    X, codes = make_data((2, 3), n=700, missing=())
    first = (np.arange(700) < 400) & (codes.any(axis=1))  # without the group (0, 0)
    X_test, test_codes, X, codes = X[400:], codes[400:], X[first], codes[first]
    test = {"X_test": X_test, "y_test": test_codes[:, 0], "attributes_test": test_codes[:, 1]}
    found = compare(X, codes[:, 0], attributes=codes[:, 1], methods=["logistic"], n_splits=3, random_state=4, **test)
    clf = make_pipeline(StandardScaler(), LogisticRegression())
    correct = clf.fit(X, codes[:, 0]).predict(X_test) == test_codes[:, 0]
    by_group = [correct[(test_codes == code).all(axis=1)].mean() for code in np.unique(test_codes, axis=0)]
    held_out, stayed = {}, {}
    for train, rest in CombinationKFold(3, random_state=seed_of(4)).split(X, codes[:, 0], codes[:, 1]):
        right = clf.fit(X[train], codes[train, 0]).predict(X[rest]) == codes[rest, 0]
        held_out |= {tuple(code): right[(codes[rest] == code).all(axis=1)].mean() for code in codes[rest].tolist()}
        for code in np.unique(codes[train], axis=0).tolist():
            rows = (test_codes == code).all(axis=1)
            stayed.setdefault(tuple(code), []).append(np.mean(clf.predict(X_test[rows]) == code[0]))
    row = found.frame.loc["logistic"]
    np.testing.assert_allclose(row["seen"], np.mean([np.mean(values) for values in stayed.values()]))
    np.testing.assert_allclose(row["average"], correct.mean())
    np.testing.assert_allclose([row["balanced"], row["worst"]], [np.mean(by_group), min(by_group)])
    np.testing.assert_allclose(row["unseen"], np.mean(list(held_out.values())))
    np.testing.assert_allclose(row["worst_unseen"], min(held_out.values()))
    assert "1 of the groups among the test rows is absent from training." in found.sentences


class Constant:
    """A classifier that predicts class 0, with and without known attributes, under any prior."""

    def predict(self, features, attributes=None):  # noqa: ARG002 - as a classifier over groups
        return np.zeros(len(features), dtype=int)

    def set_prior(self, prior):  # noqa: ARG002
        return self


def record(monkeypatch):
    """Replace every method by one that records the rows that it is fitted to and those that it predicts."""
    rows = {name: [] for name in module.COMPARED_METHODS}

    def fit(train, setup, name):  # noqa: ARG001 - as the methods
        def prepare(test):
            rows[name].append((train, test))
            return test.features

        return prepare, Constant()

    for name in module.COMPARED_METHODS:
        monkeypatch.setitem(module.COMPARED_METHODS, name, partial(fit, name=name))
    return rows


def test_all_methods_get_the_same_rows_and_each_group_is_held_out_once(monkeypatch):
    rows = record(monkeypatch)
    X, y, a = squares(rare=20, frequent=40)
    compare(X, y, attributes=a, n_splits=3, methods=list(module.COMPARED_METHODS) if has_lightgbm() else None)
    first = rows["logistic"]
    for name, others in rows.items():
        if name == "crm-boosting" and not has_lightgbm():
            continue
        assert len(others) == len(first) > 3
        for pairs in zip(first, others, strict=True):
            for one, other in zip(*pairs, strict=True):
                np.testing.assert_array_equal(one.features, other.features)
                np.testing.assert_array_equal(one.codes, other.codes)
    (train, test), *folds = first
    together = np.concatenate([train.features, test.features])
    assert len(test.features) == round(0.3 * len(X))
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(X, axis=0))
    held_out = []
    for (kept, dropped), (_, stayed) in zip(folds[::2], folds[1::2], strict=True):
        groups = {tuple(code) for code in dropped.codes.tolist()}
        assert groups.isdisjoint(map(tuple, kept.codes.tolist()))
        assert len(kept.codes) + len(dropped.codes) == len(train.codes)
        held_out += groups
        expected = [code for code in test.codes.tolist() if tuple(code) not in groups]
        assert stayed.codes.tolist() == expected
    assert sorted(held_out) == [(one, other) for one in range(3) for other in range(3)]


def has_lightgbm():
    return importlib.util.find_spec("lightgbm") is not None


def test_boosted_crm_is_left_out_without_lightgbm(monkeypatch):
    rows = record(monkeypatch)
    found_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lightgbm" else found_spec(name))
    X, y, a = squares(rare=20, frequent=40)
    found = compare(X, y, attributes=a)
    assert "crm-boosting" not in found.frame.index
    assert not rows["crm-boosting"]
    assert found.sentences[-1].startswith("Boosted CRM is left out, because LightGBM is not installed")
    assert not any("left out" in text for text in compare(X, y, attributes=a, methods=["lc"]).sentences)


def test_a_seed_decides_the_split_and_processes_do_not_change_the_result():
    X, y, a = squares(rare=20, frequent=40)
    one = compare(X, y, attributes=a, methods=["logistic"]).frame.drop(columns="seconds")
    other = compare(X, y, attributes=a, methods=["logistic"], n_jobs=2).frame.drop(columns="seconds")
    pd.testing.assert_frame_equal(one, other)
    other = compare(X, y, attributes=a, methods=["logistic"], random_state=1).frame.drop(columns="seconds")
    assert not one.equals(other)


def mixed_table(n=600):
    """A table whose class follows from a number and a text, both missing in some rows."""
    rng = np.random.default_rng(0)
    place, kind = rng.integers(2, size=n), rng.choice(["a", "b", "c"], size=n)
    number = rng.normal(size=n)
    y = (number + np.where(kind == "a", 3, -1) > 0).astype(int)
    frame = pd.DataFrame({"number": number, "kind": kind, "flag": rng.random(n) < 0.5, "empty": np.nan})
    frame.loc[rng.random(n) < 0.1, "number"] = np.nan
    frame["kind"] = frame["kind"].where(rng.random(n) > 0.1, None)
    return frame, y, place


def test_missing_values_and_categories():
    frame, y, place = mixed_table()
    found = compare(frame, y, attributes=place, methods=["logistic", "logistic-balanced", "boosting", "lc"])
    assert (found.frame["average"] > 0.9).all(), found
    without = compare(frame[["number"]], y, attributes=place, methods=["logistic", "boosting"])
    assert (without.frame["average"] < 0.8).all(), without


def test_a_category_that_only_test_rows_have_counts_as_missing():
    frame, y, place = mixed_table()
    new = frame.assign(kind="new")
    test = {"X_test": new, "y_test": y, "attributes_test": place}
    found = compare(frame, y, attributes=place, methods=["logistic", "boosting", "lc"], **test)
    assert (found.frame["average"] < 0.75).all()


def test_many_categories():
    frame, y, place = mixed_table(900)
    frame["name"] = [f"n{number % 300}" for number in range(900)]
    found = compare(frame, y, attributes=place, methods=["logistic", "boosting"])
    assert (found.frame["average"] > 0.8).all(), found


def test_boosting_with_the_attributes_uses_them():
    rng = np.random.default_rng(0)
    a, X = rng.integers(2, size=800), rng.normal(size=(800, 2))
    y = (X[:, 0] > 0) ^ (a == 1)
    found = compare(X, y, attributes=np.array(["p", "q"])[a], methods=["boosting", "boosting-attributes"], n_splits=2)
    assert found.frame.loc["boosting", "average"] < 0.65
    assert found.frame.loc["boosting-attributes", "average"] > 0.95


def test_boosted_crm():
    pytest.importorskip("lightgbm")
    frame, y, place = mixed_table(400)
    found = compare(frame, y, attributes=place, methods=["crm-boosting"], known=True, n_splits=2)
    assert list(found.frame.index) == ["crm-boosting", "crm-boosting-known"]
    assert (found.frame["average"] > 0.8).all(), found


def test_boosted_crm_takes_categories_as_categories():
    pytest.importorskip("lightgbm")
    rows, setup = small_rows()
    features = np.column_stack([rows.features[:, 0], np.arange(len(rows.codes)) % 4])
    categories = setup._replace(categories=(0, 4))
    _, clf = module.COMPARED_METHODS["crm-boosting"](rows._replace(features=features), categories)
    assert clf._columns.categorical == (1,)


def test_lc_and_sla_choose_their_ridge_on_held_out_groups():
    X, codes = make_data((3, 3), n=150, p=40)
    X = StandardScaler().fit_transform(X)
    space = module.GroupSpace.from_cardinalities((3, 3))
    setup = module._Setup(space, (0,) * 40, 0, False)
    _, clf = module.COMPARED_METHODS["sla"](module._Rows(X, codes), setup)
    seen, group = space.distinct(codes)
    fold = module.combination_folds(space, seen, module.RIDGE_FOLDS, np.random.default_rng(0))
    alphas, scores = default_alphas(typical_alpha(40, np.ones(150))), []
    for alpha in alphas:
        accuracy = []
        for number, held in enumerate(fold):
            if held >= 0:
                kept = fold[group] != held
                model = LogitAdjustedClassifier("sla", alpha=alpha).fit(
                    X[kept], codes[kept, 0], attributes=codes[kept, 1]
                )
                accuracy.append(model.score(X[group == number], codes[group == number, 0]))
        scores.append(np.mean(accuracy))
    assert len(set(scores)) > 1
    assert scores[alphas.index(clf.alpha)] == pytest.approx(max(scores))


def test_of_equally_accurate_ridges_the_nearest_to_the_typical_one_is_used():
    rows, setup = small_rows()
    rows = rows._replace(features=np.column_stack([np.eye(3)[rows.codes[:, 0]], np.eye(3)[rows.codes[:, 1]]]))
    _, clf = module.COMPARED_METHODS["sla"](rows, setup)
    assert clf.alpha == typical_alpha(6, np.ones(len(rows.codes)))


def test_without_groups_to_hold_out_unseen_is_nan():
    X, codes = make_data((2, 2), n=300, missing=(0,))
    found = compare(X, codes[:, 0], attributes=codes[:, 1], methods=["logistic", "sla"])
    assert found.frame[["unseen", "unseen_error", "seen", "worst_unseen"]].isna().all(axis=None)
    assert found.frame[["average", "balanced", "worst"]].notna().all(axis=None)
    assert [text for text in found.sentences if text.startswith("No group can be held out")]


X, Y, A = squares(rare=20, frequent=40)
TEST = {"X_test": X, "y_test": Y, "attributes_test": A}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"methods": ["logistc"]}, r"method 'logistc' is not known: use one of .*; did you mean 'logistic'\?"),
        ({"methods": "crm"}, "methods is 'crm': pass a list of names among 'logistic', "),
        ({"methods": []}, "methods is empty: pass names among 'logistic', "),
        ({"attributes": None}, "attributes is None: pass the attributes that define the groups together with y"),
        ({"n_splits": 1}, "n_splits is 1: pass an integer ≥ 2"),
        ({"n_splits": 2.5}, "n_splits is 2.5: pass an integer ≥ 1"),
        ({"test_size": 1.0}, "test_size is 1.0: pass a number between 0 and 1"),
        ({"test_size": 0.001}, "every group has so few rows that test_size 0.001 leaves none to test on"),
        ({"known": "yes"}, "known is 'yes': pass True or False"),
        ({"n_jobs": 0}, "n_jobs is 0: pass a nonzero integer"),
        ({"random_state": -1}, "random_state is -1: pass an integer"),
        ({"y_test": Y}, "X_test and attributes_test are missing: pass X_test, y_test and attributes_test, or none"),
        ({"X_test": X, "y_test": Y}, "attributes_test is missing: pass X_test, y_test and attributes_test, or none"),
        ({**TEST, "y_test": Y[1:]}, "y_test has 239 rows but X_test has 240: pass one row of y_test per sample"),
        ({**TEST, "attributes_test": A[1:]}, "attributes_test has 239 rows but X_test has 240"),
        ({**TEST, "attributes_test": A + 1}, "3"),
        ({**TEST, "X_test": X[:, 1:]}, "X has 5 features, but"),
        ({"y": np.zeros(240)}, "target 'y' has only one class"),
        ({"y": np.stack([Y, A], axis=1)}, "y has 2 columns: pass one target, and the others as attributes"),
        ({"y": Y[1:]}, "y has 239 rows but X has 240"),
        ({"attributes": [None, *A[1:]]}, "missing"),
        ({"X": np.full(X.shape, np.inf)}, "X contains infinite values"),
        ({"X": np.full(X.shape, np.nan)}, "^X has no values in the training rows: all of its columns are empty; pass"),
        ({"X": pd.DataFrame({"c": [None] * 240})}, "^X has no values in the training rows"),
        ({**TEST, "X": np.full(X.shape, np.nan), "methods": ["boosting"]}, "^X has no values in the training rows"),
    ],
)
def test_errors_are_one_sentence(options, sentence):
    data = {"X": X, "y": Y, "attributes": A, "methods": ["logistic"], **options}
    with pytest.raises(InputError, match=sentence) as caught:
        compare(data.pop("X"), data.pop("y"), **data)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("method", ["boosting", "logistic"])
def test_a_fold_without_values_is_scored(method):
    few = np.where(((Y == 0) & (A == 0))[:, None], X[:, :1], np.nan)
    found = compare(few, Y, attributes=A, methods=[method], n_splits=4)
    assert found.frame["unseen"].notna().all()


def test_streamed_features_are_refused(tmp_path):
    path = tmp_path / "f.parquet"
    pd.DataFrame({"f0": X[:, 0], "y": Y, "a": A}).to_parquet(path)
    with pytest.raises(InputError, match="X is a FeatureStore, but all samples are needed in memory"):
        compare(FeatureStore(path), Y, attributes=A)
