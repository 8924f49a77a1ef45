"""infer_attributes: a correlated background is recovered from mistakes."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from compshift import CRMClassifier, InputError, infer_attributes
from compshift.estimators.infer_attributes import _Twins
from compshift.metrics import group_report


def birds(n=3000, agree=0.95, easy=6.0, hard=1.5, seed=0):
    """Return features, a class that is hard to learn and a background that is easy; the two agree in most rows."""
    rng = np.random.default_rng(seed)
    bird = rng.integers(0, 2, size=n)
    place = np.where(rng.random(n) < agree, bird, 1 - bird)
    X = rng.normal(size=(n, 10))
    X[:, 0] += hard * bird
    X[:, 1] += easy * place
    return X, bird, place


def test_an_easy_background_is_found():
    X, bird, place = birds()
    found = infer_attributes(X, bird)
    assert (found == place).mean() > 0.98
    assert (found == bird).mean() < 0.97


def test_crm_gains_by_inferred_attributes():
    """Worst-group accuracy comes close to that with the true attribute, and far above ERM."""
    X, bird, place = birds()
    X_new, new_bird, new_place = birds(n=6000, agree=0.5, seed=1)

    def worst(predicted):
        return group_report(new_bird, predicted, new_place).worst

    erm = worst(LogisticRegression().fit(X, bird).predict(X_new))
    inferred = worst(CRMClassifier(1e-3).fit(X, bird, attributes=infer_attributes(X, bird)).predict(X_new))
    known = worst(CRMClassifier(1e-3).fit(X, bird, attributes=place).predict(X_new))
    assert erm < 0.3
    assert inferred > 0.6
    assert inferred > known - 0.1


def test_without_an_easy_background_only_hard_rows_are_mistaken():
    """The inferred attribute is then unrelated to the background, which the features do not show."""
    X, bird, place = birds(easy=0.0, hard=4.0)
    found = infer_attributes(X, bird)
    assert abs((found == place)[bird == 1].mean() - 0.95) < 0.05
    assert (found == bird).mean() > 0.9


def test_more_rounds_find_more_of_the_background():
    X, bird, place = birds()
    found = [(infer_attributes(X, bird, rounds=rounds) == place)[bird != place].mean() for rounds in (1, 10)]
    assert found[1] > found[0] + 0.08


def test_the_round_with_the_most_changed_labels_is_returned(monkeypatch):
    """In three rounds 2, 5 and 3 rows are predicted as the other class; the second round is returned."""
    truth = np.arange(20) % 2
    rounds = [np.where(np.arange(20) < count, 1 - truth, truth) for count in (2, 5, 3) for _ in range(2)]

    def fit(*_):
        taken = rounds.pop(0)
        return np.log(np.where(taken[:, None] == [0, 1], 0.9, 0.1)), None

    monkeypatch.setattr(_Twins, "_fit", fit)
    twins = _Twins(np.zeros((20, 1)), truth, 2, np.arange(20) >= 10, 1.0, 1.0)
    found = twins.run(3, np.random.RandomState(0))
    np.testing.assert_array_equal(found, np.where(np.arange(20) < 5, 1 - truth, truth))


def test_no_row_is_predicted_by_a_model_fitted_to_it():
    """On pure noise half of the predictions are wrong; a model would predict the rows it was fitted to correctly."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 200)), np.arange(60) % 2
    found = infer_attributes(X, y, rounds=1, alpha=1e-4)
    assert 0.25 < (found == y).mean() < 0.75


def test_text_classes_and_random_state():
    X, bird, _ = birds(n=600)
    y = pd.Series(np.array(["gull", "owl", "wren"])[(bird + (X[:, 2] > 0.5)).astype(int)])
    one, other = (infer_attributes(pd.DataFrame(X), y, random_state=seed) for seed in (1, 1))
    np.testing.assert_array_equal(one, other)
    assert set(one) <= {"gull", "owl", "wren"}
    assert one.shape == (600,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, _: infer_attributes(X, None), "y is None: pass the class of each row"),
        (lambda X, _: infer_attributes(X, np.zeros(len(X))), "only one class"),
        (lambda X, y: infer_attributes(X, y[:-1]), "y has"),
        (lambda X, y: infer_attributes(X, np.stack([y, y], axis=1)), "y has 2 columns: pass one target"),
        (
            lambda X, y: infer_attributes(X, np.where(np.arange(len(y)) < 3, 2, y)),
            "class 2 has 3 rows, but infer_attributes needs at least 4",
        ),
        (lambda X, y: infer_attributes(X, y, alpha=0), "alpha is 0"),
        (lambda X, y: infer_attributes(X, y, rounds=0), "rounds is 0"),
        (lambda X, y: infer_attributes(np.where(X > 2, np.nan, X), y), "NaN"),
    ],
)
def test_bad_input_raises_a_clear_message(change, message):
    X, bird, _ = birds(n=100)
    with pytest.raises(InputError, match=message):
        change(X, bird)
