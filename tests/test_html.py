"""What notebooks show of hulls and results."""

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from compshift.metrics import group_report
from tests.estimators.made_data import make_data

EVIL = "<script>alert(1)</script>"


def cells(html):
    return html.count("●"), html.count(">+<"), html.count(">×<")


def test_a_hull_is_a_grid():
    space = cs.GroupSpace(("bird", "place"), (("duck", "gull", "owl"), ("lake", "sea", "town")))
    html = cs.AffineHull(space, [[0, 0], [0, 1], [1, 1], [1, 2]])._repr_html_()
    seen, inside, outside = cells(html)
    assert (seen - 1, inside, outside) == (4, 2, 3)  # the legend has one ●
    assert "bird \\ place" in html
    assert html.index(">duck<") < html.index(">gull<") < html.index(">owl<")


@pytest.mark.parametrize(("sizes", "n_grids"), [([4], 1), ([2, 3, 2], 2), ([2, 2, 3, 5], 4), ([2] * 8, 8)])
def test_hulls_of_other_numbers_of_attributes(sizes, n_grids):
    space = cs.GroupSpace.from_cardinalities(sizes)
    html = cs.AffineHull(space, [[0] * len(sizes)])._repr_html_()
    assert html.count("<table>") == n_grids
    assert ("the first 8 of 64 grids are shown" in html) == (len(sizes) == 8)


def test_large_hulls_are_cut():
    space = cs.GroupSpace.from_cardinalities([100, 3])
    html = cs.AffineHull(space, [[0, 0], [99, 0]])._repr_html_()
    assert "the first 40 values of an attribute are shown" in html
    assert html.count("<tr>") == 41


def test_names_and_values_are_escaped():
    space = cs.GroupSpace((EVIL, "b"), ((EVIL, "x"), ("c", "d")))
    report = group_report([EVIL], [EVIL], pd.DataFrame({"b": ["c"]}), space=space)
    for html in (cs.AffineHull(space, [[0, 0]])._repr_html_(), report._repr_html_()):
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_results_are_tables_with_a_summary():
    X, codes = make_data(n=300, missing=(2,))
    clf = cs.CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    results = [
        group_report(codes[:, 0], clf.predict(X), codes[:, 1]),
        cs.diagnose(clf, X, codes[:, 0], codes[:, 1]),
        clf.estimate_prior(X),
    ]
    for result in results:
        html, frame = result._repr_html_(), result.to_frame()
        assert html.count("<tr") == len(frame) + 1
        assert result._summary().splitlines()[0].split(":")[0][:40] in html
        assert repr(result) == str(result)
        assert "array(" not in repr(result)


def test_missing_numbers_are_not_shown_as_nan():
    report = group_report([0, 1], [0, 1], [0, 1])
    assert "empty" in report._repr_html_()
    assert "nan" not in report._repr_html_().lower()
    assert not np.isnan(report.average)
