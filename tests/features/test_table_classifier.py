"""``table_classifier`` and ``TableFeatures``: pipelines that fit and predict tables as they are."""

import pickle

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import compshift as cs
from compshift._errors import InputError
from compshift.features.recipe import Recipe
from tests.cli.customers import customers

LABELS = ["churn", "region", "split"]
CUSTOMERS = customers()
TRAIN, TEST = (CUSTOMERS[CUSTOMERS["split"] == name] for name in ("train", "test"))
TABLE = TRAIN.drop(columns=[*LABELS, "id", "empty"])
QUICK = {"linear": {"alphas": [1e-2]}, "boosted": {"max_iter": 10, "n_jobs": 1}}


@pytest.fixture(scope="module", params=["linear", "boosted"])
def pipe(request):
    if request.param == "boosted":
        pytest.importorskip("lightgbm")
    found = cs.table_classifier(request.param, **QUICK[request.param])
    return found.fit(TABLE, TRAIN["churn"], classifier__attributes=TRAIN["region"])


def test_tables_are_fitted_and_predicted_as_they_are(pipe):
    kinds = {"income": "number", "age": "number", "job": "category", "member": "boolean", "since": "date"}
    assert (pipe[0].columns_, pipe[0].left_out_) == (kinds, {})
    assert pipe.score(TEST, TEST["churn"]) > 0.75
    known = pipe.predict_proba(TEST, attributes=TEST[["region"]])
    assert not np.allclose(known, pipe.predict_proba(TEST))
    assert set(pipe.predict(TEST, attributes=TEST[["region"]])) == {"no", "yes"}


def test_order_and_further_columns_do_not_matter(pipe):
    other = TEST[TEST.columns[::-1]]
    np.testing.assert_array_equal(pipe.predict_proba(other), pipe.predict_proba(TEST[list(TABLE)]))


def test_categories_are_all_levels_of_training(pipe):
    if pipe[0].energies == "linear":
        pytest.skip("linear energies have a feature for each level")
    job = pipe[0].transform(TABLE)["job"].cat.categories
    levels = TABLE["job"].value_counts().index
    assert job.tolist() == list(range(len(levels)))
    last = pipe[0].transform(TABLE[TABLE["job"] == levels[-1]])["job"]
    assert last.cat.categories.tolist() == job.tolist()
    assert set(last.cat.codes) == {len(levels) - 1}


def test_missing_columns_are_named(pipe):
    with pytest.raises(InputError, match=r"^X lacks the columns 'age', 'job', from which the features are made"):
        pipe.predict(TEST.drop(columns=["job", "age"]))
    with pytest.raises(InputError, match="'age' has 'old' at row 0, which is not a number"):
        pipe.predict(TEST.assign(age="old"))


def test_clone_pickle_and_output(pipe):
    copy = pickle.loads(pickle.dumps(pipe))
    np.testing.assert_array_equal(copy.predict_proba(TEST), pipe.predict_proba(TEST))
    fresh = clone(pipe)
    assert fresh[0].get_params() == pipe[0].get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(TEST)
    frame = clone(pipe[0]).set_output(transform="pandas").fit(TABLE).transform(TEST)
    assert list(frame.columns) == pipe[0].get_feature_names_out().tolist()
    assert frame.index.equals(TEST.index)
    with config_context(transform_output="pandas"):
        np.testing.assert_array_equal(clone(pipe[0]).fit_transform(TABLE), pipe[0].transform(TABLE))


def test_the_same_features_as_on_the_command_line(pipe):
    """The numbers are those of the recipe that a model file stores, and trees know which of them are categories."""
    X = Recipe.from_dict(pipe[0]._recipe().to_dict()).load_samples(TEST)
    np.testing.assert_array_equal(pipe[0].transform(TEST).to_numpy(dtype=float), X)
    if pipe[0].energies == "boosted":
        levels = sorted(TABLE["job"].dropna().unique(), key=lambda level: (-(TABLE["job"] == level).sum(), level))
        number = {level: float(position) for position, level in enumerate(levels)}
        column = pipe[0].transform(TEST)["job"]
        assert column.dtype == "category"
        assert column.dropna().tolist() == [number[level] for level in TEST["job"].dropna()]
        assert pipe[-1]._columns.categorical == (2,)


def as_arrow(frame):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame)


def as_polars(frame):
    return pytest.importorskip("polars").from_pandas(frame)


def as_mapping(frame):
    """Return columns whose indexes are of no use, because rows match by position."""
    return {name: frame[name].set_axis(range(number, number + len(frame))) for number, name in enumerate(frame)}


@pytest.mark.parametrize("convert", [as_arrow, as_polars, as_mapping])
def test_tables_of_other_libraries(pipe, convert):
    np.testing.assert_array_equal(pipe.predict_proba(convert(TEST)), pipe.predict_proba(TEST))


@pytest.mark.parametrize(("convert", "library"), [(as_arrow, "pyarrow"), (as_polars, "polars")])
def test_features_for_linear_energies_are_a_frame_of_the_library(convert, library):
    features = cs.TableFeatures().fit(TABLE)
    found, expected = features.transform(convert(TEST)), features.transform(TEST)
    assert type(found).__module__.startswith(library)
    np.testing.assert_array_equal(found.to_pandas().to_numpy(), expected.to_numpy())
    assert list(found.to_pandas()) == list(features.get_feature_names_out())
    as_asked = features.set_output(transform="pandas").transform(convert(TEST))
    assert type(as_asked) is type(expected)


def test_categories_for_boosted_energies_cannot_be_polars():
    pytest.importorskip("polars")
    features = cs.TableFeatures("boosted").set_output(transform="polars").fit(TABLE)
    with pytest.raises(InputError, match=r"set_output\(transform='polars'\) is for energies='linear'"):
        features.transform(TABLE)
    found = cs.TableFeatures("linear").set_output(transform="polars").fit(TABLE).transform(TABLE)
    assert type(found).__module__.startswith("polars")


def test_automatic_energies():
    pipe = cs.table_classifier(max_iter=5, n_jobs=1)
    assert (pipe[0].energies, pipe[-1].energies) == ("boosted", "auto")
    pytest.importorskip("lightgbm")
    pipe.fit(TABLE, TRAIN["churn"], classifier__attributes=TRAIN["region"])
    assert pipe.score(TEST, TEST["churn"]) > 0.75


def test_columns_left_out_are_named_once():
    features = cs.TableFeatures()
    with pytest.warns(UserWarning, match=r"^not used as features: 'empty' \(no values\); drop these columns") as caught:
        features.fit(TRAIN[["age", "empty"]])
    assert len(caught) == 1
    assert (features.columns_, features.left_out_) == ({"age": "number"}, {"empty": "no values"})
    assert features.feature_names_in_.tolist() == ["age", "empty"]


def test_text_is_a_date_if_all_of_it_is():
    since = TABLE["since"][:200]
    features = cs.TableFeatures().fit({"since": since, "zip": ["01234", "99999"] * 100})
    assert features.columns_ == {"since": "date", "zip": "category"}
    features = cs.TableFeatures(columns=["since"]).fit({"since": [*since[:-1], "soon"] * 3})
    assert features.columns_ == {"since": "category"}


def test_columns_can_be_chosen():
    features = cs.TableFeatures(columns=["age", "job"]).fit(TRAIN)
    assert list(features.columns_) == ["age", "job"]
    assert features.transform(TEST[["job", "age"]]).shape == (len(TEST), 5)


@pytest.mark.parametrize(
    ("parameters", "X", "y", "sentence"),
    [
        ({}, np.ones((3, 2)), None, "X is an ndarray, but columns are read by name: pass a table, for example"),
        ({}, "t.csv", None, "X is a str, but columns are read by name: pass a table"),
        ({}, TABLE["age"], None, "X is a Series, but columns are read by name"),
        ({}, {"a": [1, 2], "b": [1]}, None, r"X cannot be read as a table \(.*\): pass columns of equal length"),
        ({}, TABLE[:0], None, "X has 0 rows and 5 columns: pass at least one of each"),
        ({}, TABLE[["age", "age"]], None, "X has several columns of the name 'age': rename all but one"),
        ({}, TRAIN[["empty"]], None, r"no column of X can be a feature, 'empty' \(no values\): add columns of numbers"),
        ({}, {"a=1": [0.0, 1.0], "a": ["1", "1"]}, None, "two columns of X make features of the name 'a=1': rename"),
        ({}, TRAIN.drop(columns="empty"), TRAIN["churn"], "X contains the target 'churn' as a column: drop it from X"),
        ({}, TRAIN.drop(columns="empty"), TRAIN[["region"]], "X contains the target 'region' as a column"),
        ({}, TABLE, TRAIN["churn"][::-1], "y has the index labels of X in another order"),
        ({"energies": "cubic"}, TABLE, None, "energies 'cubic' is not known: use one of 'linear', 'boosted'"),
        ({"columns": "age"}, TABLE, None, "columns is 'age': pass a list of names, or None"),
        ({"columns": ["agee"]}, TABLE, None, "column 'agee' is not known: use one of .* did you mean 'age'"),
        ({"columns": ["age", "age"]}, TABLE, None, "columns has 'age' twice: name each column once"),
        ({"columns": ["empty"]}, TRAIN, None, "the column 'empty' has no values, so it cannot be a feature: leave it"),
    ],
)
def test_bad_tables_are_one_sentence(parameters, X, y, sentence):
    with pytest.raises(InputError, match=f"^{sentence}") as caught:
        cs.TableFeatures(**parameters).fit(X, y)
    assert "\n" not in str(caught.value)


def test_bad_parameters_are_one_sentence(pipe):
    with pytest.raises(InputError, match=r"^energies 'trees' is not known: use one of 'auto', 'linear', 'boosted'"):
        cs.table_classifier("trees")
    with pytest.raises(InputError, match=r"^the parameter of CRMClassifierCV 'alpha' is not known: .* mean 'alphas'"):
        cs.table_classifier("linear", alpha=1.0)
    with pytest.raises(InputError, match=r"^input_features is not equal to feature_names_in_: pass None or 'income'"):
        pipe[0].get_feature_names_out(["a"])
