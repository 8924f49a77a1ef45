"""Transforms of features: their functions, fits and predictions with them, and their choice on held-out groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import compshift
from compshift import CRMClassifier, CRMClassifierCV, InputError
from compshift.crm.problem import TRANSFORMS, signed_root, transformed, unit_length
from tests.crm.stores import sightings, write_store
from tests.estimators.made_data import make_data

FEATURES = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, max_side=5),
    elements=st.floats(-1e6, 1e6).map(lambda value: value if abs(value) > 1e-6 else 0.0),
)
FUNCTIONS = {"signed_root": signed_root, "unit_length": unit_length}


def samples(seed=0, n=600):
    """Twelve groups, of which two are missing, with features that are never close to zero all at once."""
    X, codes = make_data((3, 4), missing=(0, 7), n=n, seed=seed)
    return X, codes


def squared(seed, n=900):
    """Samples whose signed roots are Gaussians with additive means: in the features themselves, the tails are heavy."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(3)
    codes = np.array([(y, a) for y in range(3) for a in range(5) if (y, a) not in [(0, 0), (2, 3)]])
    codes = codes[rng.integers(len(codes), size=n)]
    means = [2.0 * fixed.normal(size=(size, 12)) for size in (3, 5)]
    root = means[0][codes[:, 0]] + means[1][codes[:, 1]] + 2.0 * rng.normal(size=(n, 12))
    return root * np.abs(root), root, codes


class TestFunctions:
    @settings(max_examples=50, deadline=None)
    @given(FEATURES)
    def test_they_equal_loops(self, X):
        for i, row in enumerate(X.tolist()):
            roots = [(value > 0) * abs(value) ** 0.5 - (value < 0) * abs(value) ** 0.5 for value in row]
            np.testing.assert_allclose(signed_root(X)[i], roots, rtol=1e-14)
            length = sum(value * value for value in row) ** 0.5
            np.testing.assert_allclose(unit_length(X)[i], [value / length if length else 0.0 for value in row], 1e-12)

    @settings(max_examples=50, deadline=None)
    @given(FEATURES, st.floats(1e-3, 1e3))
    def test_scaling_the_features_scales_roots_by_its_root_and_leaves_unit_rows(self, X, factor):
        np.testing.assert_allclose(signed_root(factor * X), factor**0.5 * signed_root(X), rtol=1e-12)
        np.testing.assert_allclose(unit_length(factor * X), unit_length(X), rtol=1e-12, atol=1e-300)

    def test_rows_get_length_one_whatever_their_size_and_rows_of_zeros_stay(self):
        X = np.array([[3.0, 4.0], [3e200, -4e200], [3e-200, 4e-200], [5e-324, 0.0], [0.0, 0.0]])
        expected = [[0.6, 0.8], [0.6, -0.8], [0.6, 0.8], [1.0, 0.0], [0.0, 0.0]]
        np.testing.assert_allclose(unit_length(X), expected, rtol=1e-15)

    def test_none_changes_nothing_and_arguments_are_never_written_to(self):
        X = np.array([[1.0, -4.0], [0.0, 0.0]])
        before = X.copy()
        assert transformed(X, "none") is X
        for name, function in FUNCTIONS.items():
            np.testing.assert_array_equal(transformed(X, name), function(X))
        np.testing.assert_array_equal(X, before)


class TestFit:
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_it_equals_a_fit_to_transformed_features(self, name):
        X, codes = samples()
        new = make_data((3, 4), n=100, seed=9)[0]
        inside = CRMClassifier(0.05, feature_transform=name, cross_fit=True, prior="hull")
        before = CRMClassifier(0.05, cross_fit=True, prior="hull")
        inside.fit(X, codes[:, 0], attributes=codes[:, 1])
        before.fit(FUNCTIONS[name](X), codes[:, 0], attributes=codes[:, 1])
        assert inside.feature_transform_ == name
        assert before.feature_transform_ == "none"
        np.testing.assert_array_equal(inside.predict_proba(new), before.predict_proba(FUNCTIONS[name](new)))
        np.testing.assert_array_equal(inside.group_log_proba(new), before.group_log_proba(FUNCTIONS[name](new)))
        sets, others = inside.predict_set(new), before.predict_set(FUNCTIONS[name](new))
        np.testing.assert_array_equal(sets.contains, others.contains)

    def test_unlabelled_samples_are_transformed_too(self):
        X, codes = samples()
        pool = make_data((3, 4), n=300, seed=5)[0]
        inside = CRMClassifier(0.05, feature_transform="signed_root", prior="hull")
        before = CRMClassifier(0.05, prior="hull")
        inside.fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=pool)
        before.fit(signed_root(X), codes[:, 0], attributes=codes[:, 1], unlabelled=signed_root(pool))
        np.testing.assert_array_equal(inside.predict_proba(X), before.predict_proba(signed_root(X)))
        np.testing.assert_array_equal(inside.unlabelled_prior_, before.unlabelled_prior_)
        alone, other = inside.without_unlabelled(), before.without_unlabelled()
        assert alone.feature_transform_ == "signed_root"
        np.testing.assert_array_equal(alone.predict_proba(X), other.predict_proba(signed_root(X)))

    def test_samples_with_missing_attributes_are_transformed_too(self):
        X, codes = samples()
        known = codes[:, 1].astype(float)
        known[::3] = np.nan
        inside = CRMClassifier(0.05, feature_transform="unit_length").fit(X, codes[:, 0], attributes=known)
        before = CRMClassifier(0.05).fit(unit_length(X), codes[:, 0], attributes=known)
        np.testing.assert_array_equal(inside.predict_proba(X), before.predict_proba(unit_length(X)))

    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_a_saved_model_predicts_the_same(self, tmp_path, name):
        X, codes = samples()
        clf = CRMClassifier(0.05, feature_transform=name).fit(X, codes[:, 0], attributes=codes[:, 1])
        clf.set_params(feature_transform="none").save(
            tmp_path / "model.safetensors"
        )  # the fitted transform is what counts
        loaded = compshift.load(tmp_path / "model.safetensors")
        assert (loaded.feature_transform, loaded.feature_transform_) == (name, name)
        np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))

    def test_a_release_that_does_not_know_transforms_refuses_the_file(self, tmp_path, monkeypatch):
        X, codes = samples()
        for name in ("none", "signed_root"):
            CRMClassifier(0.05, feature_transform=name).fit(X, codes[:, 0], attributes=codes[:, 1]).save(
                tmp_path / name
            )
        monkeypatch.setattr("compshift.crm.io.MODEL_FORMAT_VERSION", 1)
        compshift.load(tmp_path / "none")
        with pytest.raises(InputError, match=r"model format 2, .*upgrade compshift"):
            compshift.load(tmp_path / "signed_root")


class TestChoice:
    def fit(self, X, codes, **options):
        clf = CRMClassifierCV([1e-2, 1e-1], anchor="zero", prior="hull", tol=1e-4, **options)
        return clf.fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_signed_roots_are_chosen_where_they_are_better(self):
        X, root, codes = squared(0)
        clf = self.fit(X, codes, feature_transform="auto")
        assert clf.feature_transform_ == "signed_root"
        assert set(clf.cv_results_["param_feature_transform"]) == set(TRANSFORMS)
        new, _, new_codes = squared(1)
        plain = self.fit(X, codes)
        assert plain.feature_transform_ == "none"
        assert clf.score(new, new_codes[:, 0]) > plain.score(new, new_codes[:, 0]) + 0.02
        before = CRMClassifier(
            clf.alpha_, bias=clf.selected_bias_, unseen_offset=clf.unseen_offset_, prior="hull", tol=1e-4
        )
        before.fit(root, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(clf.predict_proba(X), before.predict_proba(root), atol=1e-6)

    def test_the_features_are_left_alone_where_they_are_good(self):
        _, root, codes = squared(0)
        clf, plain = self.fit(root, codes, feature_transform="auto"), self.fit(root, codes)
        assert clf.feature_transform_ == "none"
        assert clf.alpha_ == plain.alpha_
        np.testing.assert_array_equal(clf.predict_proba(root), plain.predict_proba(root))

    def test_without_groups_to_hold_out_the_features_are_left_alone(self):
        X, codes = make_data((2, 2), missing=(0,), n=200)
        clf = CRMClassifierCV(feature_transform="auto").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.feature_transform_ == "none"
        assert set(clf.cv_results_["param_feature_transform"]) == {"none"}

    def test_a_named_transform_is_used_for_everything(self):
        X, codes = samples()
        inside, before = self.fit(X, codes, feature_transform="unit_length"), self.fit(unit_length(X), codes)
        assert inside.feature_transform_ == "unit_length"
        assert inside.alpha_ == before.alpha_
        for name in ("mean_test_score", "effective_sample_size", "pareto_k"):
            np.testing.assert_array_equal(inside.cv_results_[name], before.cv_results_[name])
        np.testing.assert_array_equal(inside.predict_proba(X), before.predict_proba(unit_length(X)))
        assert inside.expected_group_accuracy_.equals(before.expected_group_accuracy_)

    @pytest.mark.parametrize("use", ["auto", "always"])
    def test_the_pool_is_transformed_before_it_is_judged_and_used(self, use):
        X, root, codes = squared(0)
        pool, pool_root, _ = squared(2)
        options = {"anchor": "zero", "prior": "hull", "tol": 1e-4, "use_unlabelled": use}
        inside = CRMClassifierCV([1e-2], feature_transform="signed_root", **options)
        before = CRMClassifierCV([1e-2], **options)
        inside.fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=pool)
        before.fit(root, codes[:, 0], attributes=codes[:, 1], unlabelled=pool_root)
        assert inside.unlabelled_decision_.used == before.unlabelled_decision_.used
        np.testing.assert_allclose(inside.predict_proba(X), before.predict_proba(root), atol=1e-6)


class TestErrors:
    @pytest.mark.parametrize("kind", [CRMClassifier, CRMClassifierCV])
    @pytest.mark.parametrize("name", ["root", None, 1, ["none"]])
    def test_an_unknown_name_gives_one_sentence_with_the_known_names(self, kind, name):
        X, codes = samples(n=60)
        with pytest.raises(InputError, match=r"signed_root.*unit_length") as error:
            kind(feature_transform=name).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert "\n" not in str(error.value)

    def test_only_the_cv_class_chooses(self):
        X, codes = samples(n=60)
        with pytest.raises(InputError, match="feature_transform"):
            CRMClassifier(feature_transform="auto").fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_streamed_samples_cannot_be_transformed(self, tmp_path):
        store = write_store(tmp_path / "store", *sightings(100))
        with pytest.raises(
            InputError, match="streamed samples cannot be transformed, but feature_transform is 'unit_length'"
        ):
            CRMClassifier(feature_transform="unit_length").fit(store, "bird", attributes=["place"])
