"""Input of CRM that is extreme, and input that is wrong, with the sentence it gets."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from compshift import AdditiveGaussian, CRMClassifier, GroupSpace, InputError, LogitAdjustedClassifier
from tests.estimators.made_data import make_data


class TestBadInput:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, fitted, bad):
        clf, X, codes = fitted
        spoilt = X.copy()
        spoilt[5, 2] = bad
        with pytest.raises(
            InputError, match=r"X has 1 NaN or infinite .* row 5, column 2: remove those rows or impute"
        ):
            CRMClassifier().fit(spoilt, codes[:, 0], attributes=codes[:, 1])
        with pytest.raises(InputError, match="row 5, column 2"):
            clf.predict(spoilt)

    def test_far_inputs_have_probabilities_that_sum_to_one(self, fitted):
        clf, X, _ = fitted
        far = X * 1e12
        np.testing.assert_allclose(np.exp(clf.group_log_proba(far)).sum(axis=1), 1, atol=1e-9)
        joint = np.exp(clf.group_log_proba(far)).reshape(-1, 2, 3).sum(axis=2)
        np.testing.assert_allclose(joint, clf.predict_proba(far), atol=1e-9)

    def test_constant_features_say_nothing(self):
        clf = CRMClassifier().fit(np.full((30, 2), 0.1), np.arange(30) % 3)
        assert (clf.coef_ == 0).all()
        np.testing.assert_allclose(clf.predict_proba([[100.0, -100.0]]), 1 / 3)

    def test_huge_but_finite_features_are_fine(self, fitted):
        _, X, codes = fitted
        clf = CRMClassifier().fit(X * 1e300, codes[:, 0], attributes=codes[:, 1])
        assert np.isfinite(clf.predict_proba(X * 1e300)).all()

    @pytest.mark.parametrize("name", ["y", "attributes", "sample_weight"])
    def test_row_counts(self, fitted, name):
        _, X, codes = fitted
        columns = {"y": codes[:, 0], "attributes": codes[:, 1], "sample_weight": np.ones(len(X))}
        columns[name] = columns[name][:3]
        with pytest.raises(InputError, match=f"{name} has 3 rows but X has 400: pass one row of {name} per sample"):
            CRMClassifier().fit(X, **columns)

    def test_one_class(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"target 'y' has only one class \(0\): pass rows of two classes or more"):
            CRMClassifier().fit(X, np.zeros(len(X), dtype=int), attributes=codes[:, 1])

    def test_attribute_with_one_value_is_accepted(self, fitted):
        _, X, codes = fitted
        with pytest.warns(UserWarning, match="attribute 'a' has the single value 'same'") as caught:
            clf = CRMClassifier().fit(X, codes[:, 0], attributes=["same"] * len(X))
        assert caught[0].filename == __file__
        alone = CRMClassifier().fit(X, codes[:, 0])
        np.testing.assert_allclose(clf.predict_proba(X), alone.predict_proba(X), atol=1e-6)

    def test_unfitted(self):
        for call in ("predict", "predict_proba", "predict_group", "explain", "group_log_proba"):
            with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
                getattr(CRMClassifier(), call)([[0.0]])
        with pytest.raises(NotFittedError):
            CRMClassifier().score([[0.0]], [0])
        with pytest.raises(NotFittedError):
            CRMClassifier().set_prior("train")
        with pytest.raises(NotFittedError):
            CRMClassifier().save("nowhere")

    def test_wrong_number_of_features(self, fitted):
        clf, X, _ = fitted
        with pytest.raises(InputError, match=r"X has 3 features, but CRMClassifier is expecting 4 .*pass the columns"):
            clf.predict(X[:, :3])
        named = CRMClassifier().fit(pd.DataFrame(X, columns=list("abcd")), np.arange(len(X)) % 2)
        with pytest.raises(InputError, match=r"(?s)feature names.*Pass the columns it was fitted on"):
            named.predict(pd.DataFrame(X[:, :3], columns=list("abc")))

    def test_continuous_labels(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"Unknown label type: target 'y' is continuous .*for example by binning"):
            CRMClassifier().fit(X, X[:, 0])
        with pytest.raises(
            InputError, match=r"attribute 'a' has 400 different values in 400 rows: it looks continuous"
        ):
            CRMClassifier().fit(X, codes[:, 0], attributes=X[:, 0])

    def test_classes_that_training_lacked_are_wrong_in_score(self, fitted):
        clf, X, codes = fitted
        known = clf.score(X, codes[:, 0], sample_weight=codes[:, 0] == 1)
        assert clf.score(X, np.where(codes[:, 0] == 0, 5, 1)) == pytest.approx(known * (codes[:, 0] == 1).mean())
        with pytest.raises(InputError, match="pass both as text or both as numbers"):
            clf.score(X, np.where(codes[:, 0] == 0, "a", "b"))
        with pytest.raises(InputError, match="y has 2 rows but X has 400"):
            clf.score(X, [0, 1])

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"alpha": -1}, "alpha is -1: pass a finite number 0 or more"),
            ({"alpha": "0.1"}, "alpha is '0.1': pass a finite number 0 or more"),
            ({"alpha": math.nan}, "alpha is nan"),
            ({"tol": 0}, "tol is 0: pass a finite number above 0"),
            ({"max_iter": 0}, "max_iter is 0: pass a whole number of 1 or more"),
            ({"max_iter": 1.5}, "max_iter is 1.5"),
            ({"bias": "extrapolate"}, "did you mean 'extrapolated'"),
        ],
    )
    def test_parameters(self, fitted, parameters, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier(**parameters).fit(X, codes[:, 0], attributes=codes[:, 1])

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            (-1.0, r"negative \(-1 at row 0\)"),
            (np.nan, "NaN"),
            (0.0, "zero for every row"),
            (1e308, "too large to add"),
        ],
    )
    def test_weights(self, fitted, weight, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier().fit(X, codes[:, 0], sample_weight=np.full(len(X), weight))

    @pytest.mark.parametrize("unit", ["datetime64[s]", "timedelta64[s]"])
    def test_times_are_no_weights(self, fitted, unit):
        _, X, codes = fitted
        with pytest.raises(InputError, match=rf"sample_weight has type {re.escape(unit)}: pass one number per sample"):
            CRMClassifier().fit(X, codes[:, 0], sample_weight=np.ones(len(X), dtype=int).astype(unit))

    @pytest.mark.parametrize("unit", ["datetime64[s]", "timedelta64[s]"])
    def test_times_are_no_features(self, fitted, unit):
        clf, X, codes = fitted
        times = X.astype(int).astype(unit)
        with pytest.raises(InputError, match="X has values that are not numbers in columns 0, 1, 2, 3"):
            CRMClassifier().fit(times, codes[:, 0])
        with pytest.raises(InputError, match="X has values that are not numbers in columns 0, 1, 2, 3"):
            clf.predict(times)
        with pytest.raises(InputError, match=r"X has values that are not numbers in column 'when' .*encode them"):
            CRMClassifier().fit(pd.DataFrame(X).assign(when=times[:, 0]).rename(columns=str), codes[:, 0])

    def test_masked_values(self, fitted):
        clf, X, codes = fitted
        hidden = np.arange(len(X)) == 5
        masked = np.ma.masked_array(X, mask=hidden[:, None] & (np.arange(4) == 2))
        with pytest.raises(InputError, match="X has 1 masked value, the first at row 5: remove those rows or impute"):
            CRMClassifier().fit(masked, codes[:, 0], attributes=codes[:, 1])
        with pytest.raises(InputError, match="X has 1 masked value, the first at row 5"):
            clf.predict(masked)
        weight = np.ma.masked_array(np.ones(len(X)), mask=hidden)
        with pytest.raises(InputError, match="sample_weight has 1 masked value, the first at row 5"):
            CRMClassifier().fit(X, codes[:, 0], sample_weight=weight)
        with pytest.raises(InputError, match=r"attribute 'y' has 1 missing .* at row 5"):
            CRMClassifier().fit(X, np.ma.masked_array(codes[:, 0], mask=hidden))
        with pytest.raises(InputError, match="codes has 1 masked value"):
            clf.group_log_proba(X, np.ma.masked_array([[0, 0]], mask=[[True, False]]))
        nothing = np.ma.masked_array(X)
        np.testing.assert_array_equal(clf.predict_proba(nothing), clf.predict_proba(X))

    def test_space_must_describe_every_column(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"there are 2 columns .* for 1 attributes"):
            CRMClassifier().fit(
                X, codes[:, 0], attributes=codes[:, 1], space=GroupSpace.from_cardinalities([2], names=["y"])
            )


@pytest.mark.parametrize("estimator", [CRMClassifier(), AdditiveGaussian(), LogitAdjustedClassifier()])
def test_tensors_that_require_a_gradient(estimator):
    """Features straight out of a network are such."""
    torch = pytest.importorskip("torch")
    X, codes = make_data()
    tensor, weight = torch.tensor(X, requires_grad=True), torch.ones(len(X), requires_grad=True)
    message = r"is a Tensor that NumPy cannot read: pass an array; of a tensor, \.detach\(\)\.cpu\(\)\.numpy\(\)"
    with pytest.raises(InputError, match=f"X {message}"):
        estimator.fit(tensor, codes[:, 0], attributes=codes[:, 1])
    with pytest.raises(InputError, match=f"sample_weight {message}"):
        estimator.fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)
    with pytest.raises(InputError, match=f"a table of attribute values {message}"):
        estimator.fit(X, torch.tensor(codes[:, 0] * 1.0, requires_grad=True))
    with pytest.raises(InputError, match=f"X {message}"):
        estimator.fit(X, codes[:, 0], attributes=codes[:, 1]).predict(tensor)
