"""``save`` and ``load`` of classifiers and of pipelines, in Python and on the command line."""

import json

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

import compshift as cs
from compshift._errors import InputError
from compshift.cli.main import main
from tests.cli.customers import customers

CUSTOMERS = customers()
TRAIN = CUSTOMERS[CUSTOMERS["split"] == "train"]
TABLE = TRAIN[["income", "age", "job", "member", "since"]]
NUMBERS = ["income", "age"]
QUICK = {"linear": {"alphas": [1e-2]}, "boosted": {"max_iter": 10, "n_jobs": 1}, "auto": {"max_iter": 2, "n_jobs": 1}}


def fit(pipe, table=TABLE):
    return pipe.fit(table, TRAIN["churn"], classifier__attributes=TRAIN["region"])


@pytest.fixture(scope="module", params=["linear", "boosted", "auto"])
def pipe(request):
    if request.param != "linear":
        pytest.importorskip("lightgbm")
    return fit(cs.table_classifier(request.param, **QUICK[request.param]))


def command(monkeypatch, folder, *arguments):
    """Run a command line in a folder, and return its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["compshift", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code


def predictions(monkeypatch, folder, *options):
    """Predict all customers on the command line."""
    CUSTOMERS.to_csv(folder / "t.csv", index=False)
    assert command(monkeypatch, folder, "predict", "m.safetensors", "t.csv", *options, "-o", "p.parquet") == 0
    return pd.read_parquet(folder / "p.parquet")[["P(churn=no)", "P(churn=yes)"]].to_numpy()


def header(path):
    with safe_open(path, framework="numpy") as stream:
        return json.loads(stream.metadata()["compshift"])


def test_pipelines_predict_the_same_after_loading(pipe, tmp_path, monkeypatch):
    cs.save(pipe, tmp_path / "m.safetensors")
    loaded = cs.load(tmp_path / "m.safetensors")
    assert [name for name, _ in loaded.steps] == ["features", "classifier"]
    assert loaded[0].columns_ == pipe[0].columns_
    proba, known = pipe.predict_proba(CUSTOMERS), pipe.predict_proba(CUSTOMERS, attributes=CUSTOMERS[["region"]])
    np.testing.assert_array_equal(loaded.predict_proba(CUSTOMERS), proba)
    np.testing.assert_array_equal(loaded.predict_proba(CUSTOMERS, attributes=CUSTOMERS[["region"]]), known)
    np.testing.assert_allclose(predictions(monkeypatch, tmp_path), proba)
    np.testing.assert_allclose(predictions(monkeypatch, tmp_path, "--known", "region"), known)


def test_the_file_is_that_of_the_command_line(pipe, tmp_path, monkeypatch):
    TRAIN[[*TABLE, "churn", "region"]].to_csv(tmp_path / "t.csv", index=False)
    linear = pipe[0].energies == "linear"
    options = ["--alpha", "1e-2", "--bias", "auto"]
    if not linear:
        options = ["--energies", pipe[-1].energies, "--max-iter", str(pipe[-1].max_iter)]
    labels = ["--target", "churn", "--attributes", "region"]
    assert command(monkeypatch, tmp_path, "fit", "t.csv", *labels, *options, "-o", "cli.safetensors") == 0
    cs.save(pipe, tmp_path / "m.safetensors")
    theirs, ours = header(tmp_path / "cli.safetensors"), header(tmp_path / "m.safetensors")
    assert ours["inputs"] == theirs["inputs"]
    assert ours.get("categories") == theirs.get("categories")
    assert (ours["kind"], ours["feature_names"]) == (theirs["kind"], theirs["feature_names"])
    if not linear:
        found = cs.load(tmp_path / "cli.safetensors").predict_proba(CUSTOMERS)
        np.testing.assert_array_equal(found, pipe.predict_proba(CUSTOMERS))


def test_a_file_of_the_command_line_keeps_its_split_when_saved_again(tmp_path, monkeypatch):
    CUSTOMERS.drop(columns=["id", "empty"]).to_csv(tmp_path / "t.csv", index=False)
    options = ["--target", "churn", "--attributes", "region", "--split-column", "split"]
    assert command(monkeypatch, tmp_path, "fit", "t.csv", *options, "-o", "m.safetensors") == 0
    cs.save(cs.load(tmp_path / "m.safetensors"), tmp_path / "again.safetensors")
    found = header(tmp_path / "again.safetensors")["inputs"]
    assert found == header(tmp_path / "m.safetensors")["inputs"]
    assert found["split"] == {"column": "split"}


def test_classifiers_are_saved_as_by_their_method(tmp_path):
    clf = cs.CRMClassifier().fit(TRAIN[["age"]], TRAIN["churn"], attributes=TRAIN["region"])
    cs.save(clf, tmp_path / "a")
    clf.save(tmp_path / "b")
    assert header(tmp_path / "a") == header(tmp_path / "b")
    loaded = cs.load(tmp_path / "a")
    assert isinstance(loaded, cs.CRMClassifier)
    np.testing.assert_array_equal(loaded.predict_proba(TRAIN[["age"]]), clf.predict_proba(TRAIN[["age"]]))


def test_scaled_numbers_are_read_by_name(tmp_path):
    table = TRAIN[["age", "member"]].astype(float)
    pipe = fit(Pipeline([("scale", StandardScaler()), ("classifier", cs.CRMClassifier())]), table)
    cs.save(pipe, tmp_path / "m.safetensors")
    loaded = cs.load(tmp_path / "m.safetensors")
    assert loaded.feature_names_in_.tolist() == ["age", "member"]
    expected = pipe.predict_proba(CUSTOMERS[["age", "member"]])
    np.testing.assert_allclose(loaded.predict_proba(CUSTOMERS[["age", "member"]].astype(float)), expected)


@pytest.mark.parametrize("steps", [["scale"], ["fill"], ["fill", "scale"]])
def test_filled_and_scaled_numbers(tmp_path, monkeypatch, steps):
    known = {"fill": SimpleImputer(strategy="median"), "scale": StandardScaler()}
    names = NUMBERS if len(steps) == 2 else ["income" if steps == ["fill"] else "age"]
    pipe = fit(Pipeline([*((name, known[name]) for name in steps), ("classifier", cs.CRMClassifier())]), TRAIN[names])
    cs.save(pipe, tmp_path / "m.safetensors")
    expected = pipe.predict_proba(CUSTOMERS[names])
    np.testing.assert_allclose(cs.load(tmp_path / "m.safetensors").predict_proba(CUSTOMERS[names]), expected)
    np.testing.assert_allclose(predictions(monkeypatch, tmp_path), expected)


def test_scaled_columns_of_a_table(tmp_path, monkeypatch):
    steps = [("columns", cs.TableFeatures()), ("scale", StandardScaler()), ("classifier", cs.CRMClassifier())]
    pipe = fit(Pipeline(steps))
    cs.save(pipe, tmp_path / "m.safetensors")
    np.testing.assert_allclose(predictions(monkeypatch, tmp_path), pipe.predict_proba(CUSTOMERS))


KNOWN = OneHotEncoder(handle_unknown="ignore", sparse_output=False)


@pytest.mark.parametrize(
    "columns",
    [
        [("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), NUMBERS)],
        [
            ("categories", make_pipeline(SimpleImputer(strategy="most_frequent"), KNOWN), ["job"]),
            ("n", "drop", ["age"]),
        ],
        [
            ("scaled", StandardScaler(), ["age"]),
            ("categories", make_pipeline(SimpleImputer(strategy="constant", fill_value="clerk"), KNOWN), ["job"]),
            ("mean", SimpleImputer(), ["income"]),
        ],
    ],
)
@pytest.mark.parametrize("scale", [False, True])
def test_columns_prepared_by_scikit_learn(tmp_path, monkeypatch, columns, scale):
    steps = [("columns", ColumnTransformer(columns)), *([("scale", StandardScaler())] if scale else [])]
    pipe = fit(Pipeline([*steps, ("classifier", cs.CRMClassifier())]))
    cs.save(pipe, tmp_path / "m.safetensors")
    expected = pipe.predict_proba(CUSTOMERS)
    np.testing.assert_allclose(cs.load(tmp_path / "m.safetensors").predict_proba(CUSTOMERS), expected)
    np.testing.assert_allclose(predictions(monkeypatch, tmp_path), expected)


@pytest.mark.parametrize(
    "step",
    [
        ColumnTransformer([("bounds", MinMaxScaler(), NUMBERS)]),
        ColumnTransformer([("twice", StandardScaler(), ["age"]), ("again", SimpleImputer(), ["age"])]),
        ColumnTransformer([("weighted", StandardScaler(), ["age"])], transformer_weights={"weighted": 2.0}),
        ColumnTransformer([("first", OneHotEncoder(drop="first", sparse_output=False), ["age"])]),
        ColumnTransformer([("strict", OneHotEncoder(sparse_output=False), ["age"])]),
        SimpleImputer(add_indicator=True),
        SimpleImputer(missing_values=-1.0),
        make_pipeline(MinMaxScaler(), StandardScaler()),
    ],
)
def test_other_steps_are_named(tmp_path, step):
    table = TRAIN[NUMBERS].fillna(0.0)
    pipe = fit(Pipeline([("prepare", step), ("classifier", cs.CRMClassifier())]), table)
    sentence = rf"^the step 'prepare' \({type(step).__name__}\) cannot be written to a model file: use TableF"
    with pytest.raises(cs.InputError, match=sentence):
        cs.save(pipe, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_no_step_is_forgotten(tmp_path):
    steps = [("columns", cs.TableFeatures()), ("bounds", MinMaxScaler()), ("classifier", cs.CRMClassifier())]
    with pytest.raises(cs.InputError, match=r"^the step 'bounds' \(MinMaxScaler\) cannot be written to a model file"):
        cs.save(fit(Pipeline(steps)), tmp_path / "m")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (StandardScaler(), "a StandardScaler cannot be saved: pass a fitted CRMClassifier, CRMClassifierCV or"),
        ("m.safetensors", "a str cannot be saved: pass a fitted CRMClassifier"),
        (cs.CRMClassifier, "the class CRMClassifier cannot be saved"),
        (make_pipeline(StandardScaler(), StandardScaler()), "a StandardScaler cannot be saved"),
        (cs.AdditiveGaussian(), "an AdditiveGaussian cannot be saved"),
    ],
)
def test_other_objects_are_refused(tmp_path, given, sentence):
    with pytest.raises(cs.InputError, match=f"^{sentence}"):
        cs.save(given, tmp_path / "m")


TEXTS = [f"{word} {place} call {number % 40}" for number in range(60) for word in ("good", "bad") for place in ("sea",)]


def test_a_pipeline_of_words_is_saved_and_loaded(tmp_path, monkeypatch):
    y, a = np.arange(120) % 2, np.arange(120) // 2 % 3
    pipe = make_pipeline(TfidfVectorizer(min_df=2, stop_words=["call"]), cs.CRMClassifier())
    pipe.fit(TEXTS, y, crmclassifier__attributes=a)
    cs.save(pipe, tmp_path / "words.safetensors")
    loaded = cs.load(tmp_path / "words.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), pipe.predict_proba(TEXTS))
    pd.DataFrame({"text": TEXTS}).to_csv(tmp_path / "texts.csv", index=False)
    assert command(monkeypatch, tmp_path, "predict", "words.safetensors", "texts.csv", "-o", "p.csv") == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["P(y=1)"], pipe.predict_proba(TEXTS)[:, 1])


def test_words_with_other_tokens_or_weights_cannot_be_saved(tmp_path):
    y, a = np.arange(120) % 2, np.arange(120) // 2 % 3
    for options in ({"ngram_range": (1, 2)}, {"sublinear_tf": True}, {"lowercase": False}, {"use_idf": False}):
        pipe = make_pipeline(TfidfVectorizer(**options), cs.CRMClassifier()).fit(TEXTS, y, crmclassifier__attributes=a)
        with pytest.raises(InputError, match=r"the step 'tfidfvectorizer' .* cannot be written to a model file"):
            cs.save(pipe, tmp_path / "m")
