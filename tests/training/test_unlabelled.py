"""Unlabelled samples in training: ``crm-resolved`` solves its head on their features too."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import compshift as cs
from compshift import GroupSpace
from compshift._errors import InputError
from compshift.data.dataset import GroupedDataset, Texts
from compshift.methods.base import TrainingRows
from compshift.methods.registry import make_method
from compshift.training import Settings, TrainedClassifier
from compshift.training.finetuning import train
from compshift.training.folder import RunFolderError

DROPPED = ([0, 1], [2, 3], [3, 0])
QUICK = Settings(steps=3, eval_every=3, batch_size=64)


@pytest.fixture(scope="module")
def shifted():
    """Training rows without ``DROPPED``, a pool of all 4 × 4 groups, and rows to score; a pool clearly helps."""
    rng = np.random.default_rng(0)
    codes = np.repeat([(y, a) for y in range(4) for a in range(4)], 60, axis=0)
    means = rng.normal(size=(2, 4, 12))
    X = rng.normal(size=(len(codes), 12)) + 1.2 * (means[0, codes[:, 0]] + means[1, codes[:, 1]])
    X += 0.9 * rng.normal(size=(4, 4, 12))[codes[:, 0], codes[:, 1]]
    part = np.arange(len(codes)) % 3
    kept = (part == 0) & [code not in DROPPED for code in codes.tolist()]
    space = GroupSpace.from_cardinalities([4, 4])
    return GroupedDataset(X[kept], space, codes[kept]), X[part == 1], (X[part == 2], codes[part == 2])


@pytest.mark.parametrize("backbone", ["linear", "mlp"])
def test_the_head_is_solved_as_the_classifier_is_fitted(shifted, backbone):
    """The features of the mlp are not centred, which the head's biases must account for."""
    data, pool, (X, codes) = shifted
    method = make_method("crm-resolved", {"alpha": 0.03, "use_unlabelled": "always"})
    clf = train(data, method, backbone, QUICK, device="cpu", unlabelled=pool)

    def features(samples):
        with torch.no_grad():
            return clf.model.features({"features": torch.as_tensor(samples, dtype=torch.float32)}).double().numpy()

    by_hand = cs.CRMClassifier(alpha=0.03, tol=1e-6)
    by_hand.fit(features(data.X), data.codes[:, 0], attributes=data.codes[:, 1], unlabelled=features(pool))
    np.testing.assert_allclose(clf.predict_proba(X), by_hand.predict_proba(features(X)), atol=2e-3)
    head = clf.model.head
    seen = head.seen.index.numpy()
    np.testing.assert_allclose(head.bias.numpy()[seen], head.learned_bias.detach().numpy()[seen], atol=1e-2)
    plain = train(data, make_method("crm-resolved", {"alpha": 0.03}), backbone, QUICK, device="cpu")
    assert np.abs(clf.predict_proba(X) - plain.predict_proba(X)).max() > 0.1
    if backbone == "linear":
        assert np.mean(clf.predict(X) == codes[:, 0]) > np.mean(plain.predict(X) == codes[:, 0])


def test_held_out_groups_decide_unless_the_pool_is_asked_for(shifted, tmp_path):
    data, pool, _ = shifted
    noise = np.random.default_rng(1).normal(size=pool.shape) * 3 + 20

    def reason(folder, hyperparameters, unlabelled):
        method = make_method("crm-resolved", {"alpha": 0.03, **hyperparameters})
        train(data, method, "linear", QUICK, device="cpu", folder=folder, unlabelled=unlabelled)
        return json.loads((folder / "result.json").read_text())["method"].get("unlabelled")

    assert reason(tmp_path / "a", {}, pool).startswith("the pool is used: accuracy on")
    assert reason(tmp_path / "b", {}, noise).startswith("the pool is not used")
    assert reason(tmp_path / "c", {"use_unlabelled": "always"}, noise) == "the pool is used, as asked"
    assert reason(tmp_path / "d", {}, None) is None
    refused, plain = (TrainedClassifier.load(tmp_path / name) for name in "bd")
    np.testing.assert_array_equal(refused.predict_proba(pool), plain.predict_proba(pool))


def test_the_pool_is_part_of_the_run(shifted, tmp_path):
    data, pool, scored = shifted
    options = {"backbone": "linear", "settings": QUICK, "device": "cpu", "folder": tmp_path / "run"}
    method = make_method("crm-resolved", {"alpha": 0.03})
    clf = train(data, method, **options, unlabelled=pool)
    again = train(data, method, **options, unlabelled=pool)
    loaded = TrainedClassifier.load(tmp_path / "run")
    for other in (again, loaded):
        np.testing.assert_array_equal(other.predict_proba(scored[0]), clf.predict_proba(scored[0]))
    for unlabelled in (None, pool[:-1]):
        with pytest.raises(RunFolderError, match="differs in 'unlabelled'"):
            train(data, method, **options, unlabelled=unlabelled)


def test_a_pool_that_cannot_be_used_is_refused(shifted):
    data, pool, _ = shifted
    with_nan = pool.copy()
    with_nan[3, 2] = np.nan
    for method, unlabelled, sentence in (
        ("crm", pool, "unlabelled cannot be used by the method 'crm': use method='crm-resolved'"),
        ("crm-resolved", pool[:, :5], r"unlabelled has shape \(320, 5\), but data.X has 12 columns"),
        ("crm-resolved", pool[:0], "unlabelled has no samples"),
        ("crm-resolved", with_nan, "unlabelled has 1 NaN or infinite"),
        ("crm-resolved", pool.tolist(), "unlabelled is a list, but the labelled samples are an ndarray"),
        ("crm-resolved", Texts(["a"]), "unlabelled is a Texts"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(data, method, "linear", QUICK, device="cpu", unlabelled=unlabelled)
    with pytest.raises(InputError, match="use_unlabelled"):
        make_method("crm-resolved", {"use_unlabelled": "never"})


def test_processes_share_the_pool():
    """Gather the features of every process, also of one that has no share."""
    inputs = [{"x": torch.ones(2, 3)}, {"x": torch.zeros(1, 3)}]

    class Two:
        def gather(self, part):
            return [part, None]

    class Model:
        def features(self, found):
            return found["x"]

    rows = TrainingRows(lambda: iter(()), None, Two(), 0, lambda: iter(inputs))
    np.testing.assert_array_equal(rows.pool_features(Model()), [[1, 1, 1], [1, 1, 1], [0, 0, 0]])
    assert TrainingRows(lambda: iter(()), None, Two(), 0).pool_features(Model()) is None
