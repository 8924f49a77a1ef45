"""Features from the columns of raw tables, for linear and boosted energies."""

import json

import numpy as np
import pandas as pd
import pytest

from compshift._errors import InputError
from compshift.features.recipe import Recipe
from compshift.features.table_columns import MAX_LEVELS, TableColumns, described, left_out_sentence

TABLE = {
    "size": pd.Series([1.0, 2.0, 6.0, np.nan]),
    "flag": pd.Series([True, False, True, True]),
    "day": pd.Series(pd.to_datetime(["1970-01-02", "2024-02-29 12:00", None, "2024-03-03"], format="ISO8601")),
    "kind": pd.Series(["a", "b", "b", None], dtype=object),
}


def test_boosted_features_are_the_values():
    columns, left_out = TableColumns.fit(TABLE, "boosted", typed=True)
    assert left_out == {}
    assert columns.categorical == [6]
    days = [f"day ({part})" for part in ("year", "month", "day of the week", "days since 1970")]
    assert columns.feature_names == ["size", "flag", *days, "kind"]
    nan = np.nan
    expected = [
        [1, 1, 1970, 1, 4, 1, 1],
        [2, 0, 2024, 2, 3, 19782.5, 0],
        [6, 1, nan, nan, nan, nan, 0],
        [nan, 1, 2024, 3, 6, 19785, nan],
    ]
    np.testing.assert_array_equal(columns.transform(TABLE), expected)


def test_dates_beyond_the_range_of_nanoseconds():
    table = {"day": pd.Series(["9999-12-31", "0001-01-01", None, "1970-01-02"], dtype=object)}
    columns, _ = TableColumns.fit(table, "boosted", typed=False)
    days = columns.transform(table)[:, 3]
    np.testing.assert_array_equal(days, [2932896, -719162, np.nan, 1])


def test_linear_features_are_standardised_and_complete():
    columns, _ = TableColumns.fit(TABLE, "linear", typed=True)
    assert columns.categorical == []
    X = columns.transform(TABLE)
    assert X.shape == (4, len(columns.feature_names)) == (4, 8)
    scale = np.std([1, 2, 6])
    np.testing.assert_allclose(X[:, 0], (np.array([1, 2, 6, 2]) - 3) / scale)
    np.testing.assert_array_equal(X[:, 6:], [[0, 1], [1, 0], [1, 0], [0, 0]])
    years = np.array([1970, 2024, 2024, 2024])
    np.testing.assert_allclose(X[:, 2], (years - years[[0, 1, 3]].mean()) / years[[0, 1, 3]].std())


def test_constant_and_huge_numbers_stay_finite():
    table = {"c": pd.Series([5.0, 5.0, np.nan]), "h": pd.Series([1e302, -1e302, 1e301])}
    X = TableColumns.fit(table, "linear", typed=True)[0].transform(table)
    assert X[:, 0].tolist() == [0, 0, 0]
    assert np.isfinite(X).all()
    assert X[:, 1].std() == pytest.approx(1)


@pytest.mark.parametrize(("count", "used"), [(49, True), (50, True), (51, False), (100, False)])
def test_text_that_differs_in_most_rows_is_left_out(count, used):
    texts = pd.Series([f"v{min(row, count - 1)}" for row in range(100)], dtype=object)
    columns, left_out = TableColumns.fit({"t": texts, "n": pd.Series(np.arange(100.0))}, "boosted", typed=True)
    assert (columns.names == ("t", "n")) is used
    assert (left_out == {}) is used
    chosen, left_out = TableColumns.fit({"t": texts}, "boosted", typed=True, chosen=True)
    assert (chosen.names, left_out) == (("t",), {})


def test_distinct_numbers_are_not_taken_for_ids():
    columns, left_out = TableColumns.fit({"id": pd.Series(["1", "2", "3"], dtype=object)}, "boosted", typed=False)
    assert (columns.names, left_out) == (("id",), {})


def test_too_many_categories():
    texts = pd.Series([f"v{row % 10_001}" for row in range(30_000)], dtype=object)
    assert TableColumns.fit({"t": texts}, "boosted", typed=True)[1] == {"t": "text that differs in most rows"}
    with pytest.raises(InputError, match="the column 't' has 10001 categories, but at most 10000 are accepted"):
        TableColumns.fit({"t": texts}, "boosted", typed=True, chosen=True)


def test_frequent_levels_come_first_and_ties_are_sorted():
    texts = pd.Series(["c", "b", "a", "c"] * 10 + [f"r{number}" for number in range(60)], dtype=object)
    (column,) = TableColumns.fit({"t": texts}, "linear", typed=True, chosen=True)[0].columns
    assert column.levels[:3] == ("c", "a", "b")
    assert (len(column.levels), column.rare) == (MAX_LEVELS, True)


def test_rare_and_new_levels_share_a_feature_that_is_zero_for_missing_ones():
    texts = pd.Series(["c", "b"] * 40 + [f"r{number:02}" for number in range(60)], dtype=object)
    columns, _ = TableColumns.fit({"t": texts}, "linear", typed=True, chosen=True)
    X = columns.transform({"t": pd.Series(["c", "r59", "new", None], dtype=object)})
    assert columns.feature_names[-1] == "t (other)"
    assert X[:, -1].tolist() == [0, 1, 1, 0]
    assert X[:, :-1].sum(axis=1).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("energies", ["linear", "boosted"])
def test_a_recipe_survives_json(energies):
    columns, _ = TableColumns.fit(TABLE, energies, typed=True)
    recipe = Recipe("table", columns.names, table=columns)
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    np.testing.assert_array_equal(again.load_samples(pd.DataFrame(TABLE)), columns.transform(TABLE))
    with pytest.raises(InputError, match="need no backbone"):
        recipe.embedder()


def test_recipes_of_other_kinds_are_written_as_before():
    assert "table" not in Recipe("features", ("a",)).to_dict()


def test_words():
    columns, _ = TableColumns.fit({**TABLE, "size2": TABLE["size"]}, "boosted", typed=True)
    assert described(columns) == "2 numbers (size, size2), 1 boolean (flag), 1 date (day), 1 category (kind)"
    assert described(columns, 1).startswith("2 numbers (size and 1 more)")
    reasons = {"a": "no values", "b": "text", "c": "no values"}
    assert left_out_sentence(reasons) == "'a', 'c' (no values); 'b' (text)"


def damaged(inputs, path, value):
    """Return a copy of the inputs of a model with another value at a path of keys."""
    copy = json.loads(json.dumps(inputs))
    *parents, last = path
    place = copy
    for key in parents:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return copy


FIRST = ("table", "columns", 0)
JOB = ("table", "columns", 2)

HOSTILE = [
    (("table",), None),
    (("table",), []),
    (("table",), KeyError),
    (("table", "energies"), "quantum"),
    (("table", "energies"), ["linear"]),
    (("table", "energies"), KeyError),
    (("table", "more"), 1),
    (("table", "columns"), []),
    (("table", "columns"), {"a": 1}),
    (FIRST, "income"),
    ((*FIRST, "name"), "other"),
    ((*FIRST, "name"), 7),
    ((*FIRST, "name"), KeyError),
    ((*FIRST, "kind"), "picture"),
    ((*FIRST, "kind"), ["number"]),
    ((*FIRST, "kind"), "category"),
    ((*FIRST, "kind"), "date"),
    ((*FIRST, "levels"), ["a"]),
    ((*FIRST, "more"), 1),
    ((*FIRST, "median"), [1.0, 2.0]),
    ((*FIRST, "median"), ["1"]),
    ((*FIRST, "median"), "1"),
    ((*FIRST, "mean"), [1e308]),
    ((*FIRST, "scale"), [10**400]),
    ((*FIRST, "scale"), [0.0]),
    ((*FIRST, "scale"), [-1.0]),
    ((*FIRST, "scale"), [True]),
    ((*FIRST, "scale"), KeyError),
    ((*JOB, "levels"), []),
    ((*JOB, "levels"), ["cook", "cook"]),
    ((*JOB, "levels"), ["cook", 1]),
    ((*JOB, "levels"), [["cook"]]),
    ((*JOB, "levels"), "cook"),
    ((*JOB, "levels"), [str(number) for number in range(10_001)]),
    ((*JOB, "rare"), "yes"),
    (("columns",), ["income"]),
    (("columns",), [1, 2]),
    (("kind",), "features"),
    (("kind",), "tables"),
]


@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=range(len(HOSTILE)))
def test_damaged_recipes_of_a_model_file_are_refused(path, value):
    numbers = pd.Series([1.0, 2.0, 6.0])
    jobs = pd.Series(["cook", "nurse", "cook"], dtype=object)
    columns, _ = TableColumns.fit({"income": numbers, "age": numbers, "job": jobs}, "linear", typed=True, chosen=True)
    content = json.loads(json.dumps(Recipe("table", columns.names, table=columns).to_dict()))
    assert Recipe.from_dict(content).table == columns
    with pytest.raises(InputError, match="the model's description of its features is missing or damaged"):
        Recipe.from_dict(damaged(content, path, value))
