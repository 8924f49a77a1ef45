"""Texts of raw tables: which columns are language, their components, and damaged model files."""

import base64
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

import compshift as cs
from compshift._errors import InputError
from compshift.features.recipe import Recipe
from compshift.features.table_columns import TableColumns, described
from compshift.features.text_columns import MAX_COMPONENTS, MAX_TERMS, TextComponents, is_language

GOOD = ["I", "am", "happy", "with", "the", "plan", "and", "my", "phone", "works"]
BAD = ["the", "price", "is", "too", "high", "and", "support", "was", "slow", "again"]


def remarks(y, seed=0):
    """Return a remark per row, whose words depend on y; nearly all differ."""
    rng = np.random.default_rng(seed)
    return pd.Series([" ".join(rng.permutation([GOOD, BAD][value])[:7]) for value in y], dtype=object)


LABELS = np.arange(120) % 2
REMARKS = remarks(LABELS)


def fitted(energies="linear"):
    columns, left_out = TableColumns.fit({"remarks": REMARKS}, energies, typed=True)
    assert left_out == {}
    return columns


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (REMARKS, True),
        (REMARKS.str.capitalize() + ".", True),
        (REMARKS.str.upper(), True),
        ([f"order number {row} was late" for row in range(50)], True),
        ([f"customer {row}" for row in range(50)], False),
        ([f"{row:032x}" for row in range(50)], False),
        ([" ".join(f"a{row}{part}" for part in "bcde") for row in range(50)], False),
        ([f"https://www.example.com/shop/{row}?from=home" for row in range(50)], False),
        ([f"Braund, {title} Owen Harris {row}" for row in range(20) for title in ("Mr.", "Mrs.")], False),
        ([f"{row} Main Street, Springfield" for row in range(50)], False),
        ([f"a b c {row}" for row in range(50)], False),
        ([" ".join(4 * [f"word{row}"]) for row in range(50)], False),  # words that only their own row repeats
        ([], False),
    ],
)
def test_language_is_told_from_ids_names_and_urls(texts, expected):
    column = pd.Series(texts, dtype=object)
    assert is_language(column) is expected
    if len(column):
        columns, left_out = TableColumns.fit({"t": column}, "boosted", typed=True)
        assert [found.kind for found in columns.columns] == (["text"] if expected else [])
        assert left_out == ({} if expected else {"t": "text that differs in most rows"})


def test_rows_anywhere_in_a_long_column_show_whether_it_is_language():
    ids = pd.Series([f"Id {row:05x} {row:05X} End" for row in range(2500)])
    texts = remarks(np.arange(7500) % 2)
    assert is_language(pd.concat([ids, texts]))
    assert not is_language(pd.concat([texts[:2500], ids, ids + "x", ids + "y"]))


def test_components_are_those_of_scikit_learn():
    vectorizer = TfidfVectorizer(min_df=2)
    weights = vectorizer.fit_transform(REMARKS)
    expected = TruncatedSVD(12, random_state=0).fit(weights).transform(weights)
    found = fitted("boosted")
    assert found.feature_names == [f"remarks (text {number})" for number in range(1, 13)]
    assert (found.categorical, described(found)) == ([], "1 text (remarks)")
    np.testing.assert_allclose(found.transform({"remarks": REMARKS}), expected, atol=1e-6)


def test_linear_features_are_standardised_and_a_missing_text_is_an_empty_one():
    boosted, linear = fitted("boosted"), fitted()
    raw = boosted.transform({"remarks": REMARKS})
    np.testing.assert_allclose(linear.transform({"remarks": REMARKS}), (raw - raw.mean(axis=0)) / raw.std(axis=0))
    gaps = {"remarks": pd.Series([None, "", "quite other words", np.nan], dtype=object)}
    assert not boosted.transform(gaps).any()
    np.testing.assert_allclose(linear.transform(gaps), np.tile(-raw.mean(axis=0) / raw.std(axis=0), (4, 1)))


@pytest.mark.parametrize(("n_rows", "size"), [(4, 1), (30, 3), (120, 12), (400, 17)])
def test_few_rows_or_words_have_fewer_components(n_rows, size):
    texts = remarks(np.arange(n_rows) % 2)
    assert TextComponents.fit(texts).n_components == size


def test_at_most_a_thousand_words_and_twenty_components():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"word{number}" for number in rng.integers(0, 1500, 20)) for _ in range(210)]
    found = TextComponents.fit(pd.Series(texts))
    assert (len(found.terms), found.n_components) == (MAX_TERMS, MAX_COMPONENTS)


def test_a_word_of_one_row_is_not_used():
    texts = REMARKS.copy()
    texts[3] += " unheard"
    assert TextComponents.fit(texts).terms == TextComponents.fit(REMARKS).terms


def test_equal_texts_give_finite_components():
    texts = pd.Series(["it is what it is"] * 30)
    assert np.isfinite(TextComponents.fit(texts).transform(texts)).all()


def test_named_text_is_a_category_unless_it_is_language():
    table = {"id": pd.Series([f"C-{row}" for row in range(120)]), "remarks": REMARKS}
    columns, _ = TableColumns.fit(table, "boosted", typed=True, chosen=True)
    assert [column.kind for column in columns.columns] == ["category", "text"]


def test_a_loaded_model_predicts_the_same(tmp_path):
    frame = pd.DataFrame({"remarks": REMARKS, "size": np.arange(120.0)})
    columns, _ = TableColumns.fit(dict(frame.items()), "linear", typed=True)
    recipe, X = Recipe("table", columns.names, table=columns), columns.transform(frame)
    clf = cs.CRMClassifier().fit(X, LABELS, attributes=np.arange(120) // 2 % 2)
    clf.save(tmp_path / "m.safetensors", inputs=recipe.to_dict())
    loaded = cs.load(tmp_path / "m.safetensors")
    assert Recipe.from_dict(loaded[-1].inputs_) == recipe
    np.testing.assert_array_equal(loaded.predict_proba(frame), clf.predict_proba(X))
    assert loaded.score(frame, LABELS) > 0.95


def float32(*values):
    return base64.b64encode(np.array(values, dtype="<f4").tobytes()).decode()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (None, "must have terms, idf and components"),
        ({"more": 1}, "must have terms, idf and components"),
        ({"terms": "plan"}, "terms must be a list of 1 to 1000 different words"),
        ({"terms": []}, "terms must be a list"),
        ({"terms": ["plan", "plan"]}, "terms must be a list"),
        ({"terms": ["plan", 7]}, "terms must be a list"),
        ({"terms": [["plan"]]}, "terms must be a list"),
        ({"terms": [str(number) for number in range(MAX_TERMS + 1)]}, "terms must be a list"),
        ({"terms": ["plan", "price"]}, "idf has 17 numbers for 2 terms"),
        ({"idf": float32(1.0)}, "idf has 1 numbers for 17 terms"),
        ({"idf": [1.0]}, "idf must be base64 text"),
        ({"idf": "".join(f"{letter} " for letter in float32(*[1.0] * 17))}, "idf must be base64 text"),
        ({"idf": "AAA="}, "idf must be base64 text"),
        ({"idf": float32(*[np.nan] * 17)}, "idf must be base64 text of finite float32 numbers of at most 100"),
        ({"components": float32(*[1e30] * 17)}, "components must be base64 text"),
        ({"components": float32(*[1.0] * 18)}, "components has 18 numbers for 17 terms: it needs 1 to 20 for each"),
        ({"components": ""}, "components has 0 numbers"),
        ({"components": float32(*[0.1] * 17 * 21)}, "components has 357 numbers"),
        ({"components": "A" * 1_000_000}, "components must be base64 text"),
        ({"components": float32(*[0.1] * 17)}, "median of 'remarks' must have 1 finite numbers"),
    ],
)
def test_damaged_files_are_refused(changes, sentence):
    content = json.loads(json.dumps(Recipe("table", ("remarks",), table=fitted()).to_dict()))
    text = content["table"]["columns"][0]["text"]
    content["table"]["columns"][0]["text"] = None if changes is None else text | changes
    with pytest.raises(InputError, match="the model's description of its features is missing or damaged") as caught:
        Recipe.from_dict(content)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("kind", "terms"), [("number", "with"), ("text", "without")])
def test_only_texts_have_terms(kind, terms):
    content = fitted("boosted").to_dict()
    column = content["columns"][0]
    column |= {"kind": kind}
    if terms == "without":
        del column["text"]
    with pytest.raises(InputError, match=f"'remarks' is a {kind} {terms} terms"):
        TableColumns.from_dict(content)
