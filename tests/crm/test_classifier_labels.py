"""Labels of every type, their names and their order, in CRMClassifier."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import roc_auc_score

from compshift import CRMClassifier, GroupSpace, InputError
from tests.estimators.made_data import make_data


class TestKindsOfLabels:
    def test_text_and_categories_give_the_same_model_as_numbers(self, fitted):
        clf, X, codes = fitted
        birds, places = np.array(["landbird", "waterbird"]), np.array(["forest", "lake", "sea"])
        frame = pd.DataFrame({"bird": birds[codes[:, 0]], "place": pd.Categorical(places[codes[:, 1]])})
        named = CRMClassifier().fit(pd.DataFrame(X, columns=list("abcd")), frame["bird"], attributes=frame[["place"]])
        assert named.space_.names == ("bird", "place")
        assert named.classes_.tolist() == ["landbird", "waterbird"]
        assert (named.predict(pd.DataFrame(X, columns=list("abcd"))) == birds[clf.predict(X)]).all()
        expected = clf.predict_group(X)
        found = named.predict_group(pd.DataFrame(X, columns=list("abcd")))
        assert (found == np.stack([birds[expected[:, 0]], places[expected[:, 1]]], axis=1)).all()

    def test_several_targets_are_predicted_together(self):
        X, codes = make_data((2, 3, 2), n=500)
        clf = CRMClassifier().fit(X, codes[:, :2], attributes=codes[:, 2])
        predicted = clf.predict(X)
        assert predicted.shape == (500, 2)
        assert [part.shape for part in clf.predict_proba(X)] == [(500, 2), (500, 3)]
        assert [classes.tolist() for classes in clf.classes_] == [[0, 1], [0, 1, 2]]
        assert clf.score(X, codes[:, :2]) == pytest.approx((predicted == codes[:, :2]).all(axis=1).mean())

    def test_targets_may_have_different_types(self):
        X, codes = make_data((2, 3), n=200)
        y = pd.DataFrame({"bird": np.array(["l", "w"])[codes[:, 0]], "age": codes[:, 1]})
        clf = CRMClassifier().fit(X, y)
        numbers = CRMClassifier().fit(X, codes).predict(X)
        assert clf.predict(X).tolist() == [["lw"[bird], age] for bird, age in numbers.tolist()]
        assert clf.score(X, y) == (numbers == codes).all(axis=1).mean()

    def test_class_probabilities_are_sums_over_groups(self, fitted):
        clf, X, _ = fitted
        joint = np.exp(clf.group_log_proba(X)).reshape(-1, 2, 3)
        np.testing.assert_allclose(joint.sum(axis=2), clf.predict_proba(X), atol=1e-12)
        np.testing.assert_allclose(joint.sum(axis=(1, 2)), 1, atol=1e-12)
        best = joint.reshape(-1, 6).argmax(axis=1)
        assert (clf.predict_group(X) == clf.space_.decode(clf.space_.codes(best))).all()
        listed = clf.group_log_proba(X, [[1, 2], [0, 0]])
        np.testing.assert_allclose(np.exp(listed), joint.reshape(-1, 6)[:, [5, 0]], atol=1e-12)

    def test_explain_describes_the_most_probable_group(self, fitted):
        clf, X, _ = fitted
        frame = clf.explain(X).to_frame()
        assert (frame[["y", "a"]].to_numpy() == clf.predict_group(X)).all()
        np.testing.assert_allclose(frame["probability"], np.exp(clf.group_log_proba(X)).max(axis=1))
        position = clf.space_.index(clf.space_.encode(frame[["y", "a"]]))
        assert (frame["seen"] == clf.seen_[position]).all()
        assert frame["inside_hull"].all()
        np.testing.assert_allclose(frame["effective_sample_size"], clf.effective_sample_size_[position])

    def test_group_frame_has_every_candidate(self, fitted):
        clf, _, codes = fitted
        frame = clf.group_frame()
        assert len(frame) == 6
        assert frame["train_rows"].sum() == len(codes)
        assert frame["learned_bias"].isna().sum() == 1
        assert frame["effective_sample_size"].min() >= 1
        assert frame["prior"].sum() == pytest.approx(1)


class TestNamesAndOrder:
    """Columns are matched by name if they have names, otherwise by position."""

    @pytest.fixture
    def named(self):
        X, codes = make_data(missing=(2,))
        frame = pd.DataFrame(
            {"mood": np.array(["happy", "sad"])[codes[:, 0]], "place": np.array(list("xyz"))[codes[:, 1]]}
        )
        return X, frame

    def test_classes_are_sorted_for_scorers(self, named):
        X, frame = named
        plain = CRMClassifier().fit(X, frame["mood"], attributes=frame["place"])
        mood = pd.Categorical(frame["mood"], categories=["sad", "happy"])
        space = GroupSpace(("mood", "place"), (("sad", "happy"), ("z", "x", "y")))
        for other in (
            CRMClassifier().fit(X, mood, attributes=frame["place"]),
            CRMClassifier().fit(X, frame["mood"], attributes=frame["place"], space=space),
        ):
            assert other.classes_.tolist() == ["happy", "sad"]
            np.testing.assert_allclose(other.predict_proba(X), plain.predict_proba(X), atol=1e-6)
            assert roc_auc_score(frame["mood"], other.predict_proba(X)[:, 1]) > 0.8

    def test_space_is_matched_by_name(self, named):
        X, frame = named
        space = GroupSpace(("place", "mood"), (("x", "y", "z"), ("happy", "sad")))
        clf = CRMClassifier().fit(X, frame["mood"], attributes=frame["place"], space=space)
        assert clf.space_.names == ("mood", "place")
        with pytest.raises(InputError, match="agree only in part"):
            CRMClassifier().fit(X, frame["mood"], attributes=frame["place"].to_numpy(), space=space)

    def test_the_levels_of_a_series_prior_are_matched_by_name(self, named):
        X, frame = named
        clf = CRMClassifier(prior="train").fit(X, frame["mood"], attributes=frame["place"])
        expected = clf.log_prior_
        counts = frame[["place", "mood"]].value_counts(normalize=True)  # by frequency, and in another order of levels
        np.testing.assert_allclose(clf.set_prior(counts).log_prior_, expected)
        with pytest.raises(InputError, match="prior is a table"):
            clf.set_prior(counts.unstack())

    def test_default_names_avoid_names_that_are_taken(self):
        X, codes = make_data()
        clf = CRMClassifier().fit(X, pd.Series(codes[:, 0], name="a"), attributes=codes[:, 1])
        assert clf.space_.names == ("a", "a1")

    def test_frames_may_have_numbered_columns(self):
        X, codes = make_data()
        clf = CRMClassifier().fit(X, pd.DataFrame(codes))
        assert 0.3 < clf.score(X, pd.DataFrame(codes)) <= 1

    def test_attributes_may_be_named_like_columns_of_reports(self):
        X, codes = make_data()
        clf = CRMClassifier().fit(
            X, pd.Series(codes[:, 0], name="seen"), attributes=pd.Series(codes[:, 1], name="bias")
        )
        assert clf.explain(X).to_frame()["seen (attribute)"].tolist() == clf.predict_group(X)[:, 0].tolist()
        assert clf.group_frame()["bias (attribute)"].tolist() == [0, 1, 2, 0, 1, 2]
        np.testing.assert_array_equal(clf.group_frame()["bias"], clf.bias_)

    def test_explain_keeps_the_index(self, named):
        X, frame = named
        table = pd.DataFrame(X, columns=list("abcd"), index=np.arange(len(X)) * 10)
        clf = CRMClassifier().fit(table, frame["mood"], attributes=frame["place"])
        assert clf.explain(table).to_frame().index.tolist() == table.index.tolist()

    def test_column_vectors_are_read_as_one_target(self, fitted):
        clf, X, codes = fitted
        with pytest.warns(DataConversionWarning, match="column-vector y"):
            other = CRMClassifier().fit(X, codes[:, [0]], attributes=codes[:, 1])
        assert (other.predict(X) == clf.predict(X)).all()
