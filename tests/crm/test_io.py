"""Model files: what is saved can be loaded, damaged files raise one clear error, files are written atomically."""

import json
import os
import struct
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import compshift
from compshift import CRMClassifier, CRMClassifierCV, InputError
from compshift.crm import io as model_file
from tests.estimators.made_data import make_data, make_pool


@pytest.fixture
def saved(tmp_path):
    X, codes = make_data()
    birds = np.array(["landbird", "wäßerbird 🦆"])
    frame = pd.DataFrame(X, columns=["f a", "f b", "c", "d"])
    clf = CRMClassifier(alpha=0.02).fit(frame, birds[codes[:, 0]], attributes=codes[:, 1])
    clf.set_prior({("landbird", 0): 0.25, ("wäßerbird 🦆", 2): 0.75})
    path = tmp_path / "model.safetensors"
    clf.save(path)
    return clf, frame, path


def test_a_fresh_process_predicts_identically(saved, tmp_path):
    clf, frame, path = saved
    np.save(tmp_path / "X.npy", frame.to_numpy())
    script = (
        "import sys, numpy as np, pandas as pd, compshift\n"
        "clf = compshift.load(sys.argv[1])\n"
        "X = pd.DataFrame(np.load(sys.argv[2]), columns=clf.feature_names_in_)\n"
        "np.save(sys.argv[3], clf.predict_proba(X)); np.save(sys.argv[4], clf.predict_group(X).astype(str))\n"
    )
    arguments = [str(tmp_path / name) for name in ("X.npy", "proba.npy", "groups.npy")]
    subprocess.run([sys.executable, "-c", script, str(path), *arguments], check=True)
    assert (np.load(arguments[1]) == clf.predict_proba(frame)).all()
    assert (np.load(arguments[2]) == clf.predict_group(frame).astype(str)).all()


def test_all_fitted_attributes_are_restored(saved):
    clf, frame, path = saved
    loaded = compshift.load(path)
    for name in ("bias_", "learned_bias_", "effective_sample_size_", "coef_", "log_prior_", "groups_", "group_weight_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(clf, name))
    for name in ("space_", "targets_", "converged_", "n_iter_", "bias_gap_", "n_features_in_", "alpha"):
        assert getattr(loaded, name) == getattr(clf, name)
    assert (loaded.hull_.contains(clf.groups_) == clf.inside_hull_).all()
    assert loaded.classes_.tolist() == clf.classes_.tolist()
    assert loaded.set_prior("train").predict(frame).tolist() == clf.set_prior("train").predict(frame).tolist()


def test_priors_and_supports_that_are_not_names_are_restored(tmp_path):
    X, codes = make_data()
    support = [[0, 1], [1, 1], [1, 0]]
    prior = {(0, 1): 0.5, (1, 0): 0.5}
    clf = CRMClassifier(prior=prior, support=support).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf.save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m")
    refitted = loaded.fit(X, codes[:, 0], attributes=codes[:, 1])
    np.testing.assert_allclose(refitted.predict_proba(X), clf.predict_proba(X), atol=1e-12)


def test_the_constructors_prior_and_the_one_in_use_are_saved_separately(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier(prior=np.arange(1.0, 7.0) / 21).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf.set_prior("train").save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
    refitted = loaded.fit(X, codes[:, 0], attributes=codes[:, 1])
    np.testing.assert_allclose(np.exp(refitted.log_prior_), np.arange(1.0, 7.0) / 21)


def test_a_loaded_model_still_warns_about_groups_outside_the_hull(tmp_path):
    X, codes = make_data(missing=(2, 3, 4))
    clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
    clf.save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m")
    with pytest.warns(compshift.ExtrapolationWarning, match="3 of the 6"):
        loaded.set_prior("uniform")


def test_numpy_scalars_can_be_saved(tmp_path):
    X, codes = make_data()
    space = compshift.GroupSpace(("y", "a"), (np.unique(codes[:, 0]), np.unique(codes[:, 1])))
    clf = CRMClassifier(alpha=np.float32(0.01), max_iter=np.int64(500), verbose=np.bool_(False))
    clf.fit(X, codes[:, 0], attributes=codes[:, 1], space=space).save(tmp_path / "m")
    assert compshift.load(tmp_path / "m").max_iter == 500


def test_two_dimensional_targets_are_restored(tmp_path):
    X, codes = make_data((2, 3, 2))
    clf = CRMClassifier().fit(X, codes[:, :2], attributes=codes[:, 2])
    clf.save(tmp_path / "m")
    assert (compshift.load(tmp_path / "m").predict(X) == clf.predict(X)).all()


def test_a_truncated_file_is_rejected(saved):
    _, _, path = saved
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="cannot be read as a model: it is damaged or another kind of file"):
            compshift.load(path)


def test_an_edited_file_is_rejected(saved):
    _, _, path = saved
    whole = path.read_bytes()
    for position in (len(whole) - 1, len(whole) - 500, whole.index(b"landbird")):
        edited = bytearray(whole)
        edited[position] ^= 1
        path.write_bytes(edited)
        with pytest.raises(InputError, match=r"was changed after it was saved .*: save the model again"):
            compshift.load(path)


def test_any_flipped_byte_raises_one_clear_error(saved):
    _, _, path = saved
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(whole), size=200):
        edited = bytearray(whole)
        edited[position] ^= int(rng.integers(1, 256))
        path.write_bytes(edited)
        with pytest.raises(InputError):
            compshift.load(path)


def test_files_that_are_not_models_are_rejected(tmp_path):
    with pytest.raises(InputError, match="there is no model file"):
        compshift.load(tmp_path / "nothing")
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    (tmp_path / "plain").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InputError, match="not a compshift model"):
        compshift.load(tmp_path / "plain")


def test_nothing_is_half_written(saved, tmp_path, monkeypatch):
    clf, _, path = saved
    whole = path.read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compshift._files.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        clf.save(path)
    assert path.read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_only_ordinary_files_are_replaced(saved, tmp_path):
    clf, _, path = saved
    link = tmp_path / "link"
    link.symlink_to(path)
    clf.save(link)
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        clf.save(tmp_path / "pipe")


def test_paths_that_cannot_be_written(saved, tmp_path):
    clf, _, _ = saved
    with pytest.raises(InputError, match="is a folder"):
        clf.save(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        clf.save(tmp_path / "no" / "m")


@pytest.fixture
def fitted():
    X, codes = make_data()
    return X, CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_iter": 0}, "max_iter is 0: pass an integer ≥ 1"),
        ({"tol": "x"}, "tol is 'x': pass a finite number above 0"),
        ({"bias": "foo"}, "bias 'foo' is not known"),
        ({"support": "foo"}, "support 'foo' is not known"),
        ({"unseen_offset": 1e9}, "unseen_offset is"),
    ],
)
def test_parameters_that_could_not_be_loaded_are_not_saved(fitted, tmp_path, parameters, message):
    _, clf = fitted
    with pytest.raises(InputError, match=message):
        clf.set_params(**parameters).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def nested(depth):
    found = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (nested(100_000), "nested too deeply"),
        ({"a": "b\udcff"}, "ends in an unpaired surrogate, .*; remove it"),
        ({"a": {1, 2}}, "use only text, numbers and booleans"),
    ],
)
def test_inputs_that_cannot_be_written_as_json(fitted, tmp_path, inputs, message):
    _, clf = fitted
    with pytest.raises(InputError, match=message):
        clf.save(tmp_path / "m", inputs=inputs)
    assert not list(tmp_path.iterdir())


def test_classes_with_an_unpaired_surrogate(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier().fit(X, np.array(["a", "b\udcff"], dtype=object)[codes[:, 0]], attributes=codes[:, 1])
    with pytest.raises(InputError, match="ends in an unpaired surrogate"):
        clf.save(tmp_path / "m")


def test_numbers_of_other_types_are_saved_as_numbers(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier(alpha=Fraction(1, 50), tol=Decimal("0.001"), unseen_offset=Fraction(1, 2), verbose=np.int64(0))
    clf.fit(X, codes[:, 0], attributes=codes[:, 1]).save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m")
    assert (loaded.alpha, loaded.tol, loaded.unseen_offset) == (0.02, 0.001, 0.5)
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))


def test_cross_validated_settings_are_saved(tmp_path):
    X, codes = make_data()
    clf = CRMClassifierCV([1e-3, 1e-1]).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf.save(tmp_path / "m")
    np.testing.assert_array_equal(compshift.load(tmp_path / "m").predict_proba(X), clf.predict_proba(X))


def test_columns_in_inputs_become_feature_names(fitted, tmp_path):
    """The command line stores in ``inputs`` which columns of a table were used in the fit."""
    X, clf = fitted
    columns = ["a", "b", "c", "d"]
    clf.save(tmp_path / "m", inputs={"kind": "features", "columns": columns})
    loaded = compshift.load(tmp_path / "m")
    assert loaded.feature_names_in_.tolist() == columns
    frame = pd.DataFrame(X, columns=columns)
    np.testing.assert_array_equal(loaded.predict(frame), clf.predict(X))
    with pytest.raises(InputError, match="in the same order"):
        loaded.predict(frame[columns[::-1]])


@pytest.mark.parametrize("inputs", [{"kind": "images", "columns": list("abcd")}, {"kind": "features"}, {"a": 1}])
def test_other_inputs_give_no_feature_names(fitted, tmp_path, inputs):
    _, clf = fitted
    clf.save(tmp_path / "m", inputs=inputs)
    assert not hasattr(compshift.load(tmp_path / "m"), "feature_names_in_")


def fit_pool(clf, *, of_seen_groups=False):
    X, codes, pool, pool_codes = make_pool()
    if of_seen_groups:
        pool = pool[(codes[:, None] == pool_codes).all(axis=2).any(axis=0)]
    return clf.fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=pool), X


@pytest.mark.parametrize("make", [CRMClassifier, lambda **settings: CRMClassifierCV([1e-2, 1e-1], **settings)])
def test_what_a_fit_did_with_a_pool_is_saved(tmp_path, make):
    clf, X = fit_pool(make(prior="hull"))
    clf.save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m")
    assert loaded.n_rounds_ == clf.n_rounds_ > 0
    assert loaded._model.pool.n_samples == 300
    np.testing.assert_equal(loaded.unlabelled_decision_, clf.unlabelled_decision_)
    pd.testing.assert_frame_equal(loaded.unlabelled_prior_, clf.unlabelled_prior_)
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
    plain, loaded_plain = clf.without_unlabelled(), loaded.without_unlabelled()
    assert (plain.predict_proba(X) != clf.predict_proba(X)).any()
    np.testing.assert_array_equal(loaded_plain.predict_proba(X), plain.predict_proba(X))
    assert (loaded_plain.n_iter_, loaded_plain.n_rounds_) == (plain.n_iter_, 0)
    if isinstance(clf, CRMClassifierCV):
        for one, other in ((loaded, clf), (loaded_plain, plain)):
            pd.testing.assert_frame_equal(one.expected_group_accuracy_, other.expected_group_accuracy_)
        assert list(map(list, loaded_plain.predict_set(X))) == list(map(list, plain.predict_set(X)))
    loaded.save(tmp_path / "again")
    assert model_file.read(tmp_path / "again").header == model_file.read(tmp_path / "m").header


def test_a_pool_that_was_not_used_is_saved(tmp_path):
    clf, X = fit_pool(CRMClassifierCV([1e-2], prior="hull"), of_seen_groups=True)
    clf.save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m")
    assert not loaded.unlabelled_decision_.used
    assert str(loaded.unlabelled_decision_) == str(clf.unlabelled_decision_)
    pd.testing.assert_frame_equal(loaded.unlabelled_prior_, clf.unlabelled_prior_)
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_array_equal(loaded.without_unlabelled().predict_proba(X), clf.predict_proba(X))


def test_a_pools_expected_accuracy_is_not_saved_for_another_prior(tmp_path):
    clf, _ = fit_pool(CRMClassifierCV([1e-2], prior="hull"))
    clf.set_params(prior="train").save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m").set_prior("train")
    for model in (loaded, loaded.without_unlabelled()):
        assert not hasattr(model, "expected_group_accuracy_")
