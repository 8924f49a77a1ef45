"""Classifiers on arrays of other libraries than NumPy, with scikit-learn's array API dispatch: tensors of PyTorch."""

import numpy as np
import pytest
import sklearn

from compshift import CRMBoostingClassifier, CRMClassifier, CRMClassifierCV, InputError, load
from compshift.crm.fitted import ARRAYS_LIKE_X
from tests.estimators.made_data import make_data

torch = pytest.importorskip("torch")

METHODS = ("predict", "predict_proba", "predict_log_proba", "group_log_proba", "predict_group")


@pytest.fixture(autouse=True)
def _dispatch(monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # scikit-learn asks for it
    with sklearn.config_context(array_api_dispatch=True):
        yield


@pytest.fixture(scope="module")
def samples():
    return make_data((2, 3), missing=((1, 2),), n=3000)


@pytest.fixture(scope="module")
def fitted(samples):
    X, codes = samples
    return CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])


def assert_equal(found, expected, like, atol):
    """Check that an array equals one of NumPy and that it is a tensor as ``like``, without a gradient."""
    assert isinstance(found, torch.Tensor)
    assert found.device == like.device
    assert not found.requires_grad
    if found.dtype.is_floating_point:
        assert found.dtype == like.dtype
    np.testing.assert_allclose(found.numpy(), expected, atol=atol)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_fits_and_predictions_of_tensors_equal_those_of_numpy(samples, fitted, dtype, atol):
    X, codes = samples
    tensor, y, a = torch.tensor(X, dtype=dtype, requires_grad=True), *torch.tensor(codes).T
    clf = CRMClassifier().fit(tensor, y, attributes=a)
    for name in ARRAYS_LIKE_X:
        relative = np.abs(getattr(fitted, name)).max()
        assert_equal(getattr(clf, name) / relative, getattr(fitted, name) / relative, tensor, atol)
    for method in METHODS:
        for known in ({}, {"attributes": a}):
            expected = getattr(fitted, method)(X, **{name: value.numpy() for name, value in known.items()})
            assert_equal(getattr(clf, method)(tensor, **known), expected, tensor, atol)
    assert clf.score(tensor, y) == fitted.score(X, codes[:, 0])


def test_a_fit_passes_over_tensors_in_their_library(samples, monkeypatch):
    """The features are converted to NumPy neither as a whole nor block by block."""
    X, codes = samples
    tensor, converted = torch.tensor(X), []
    convert = torch.Tensor.__array__

    def counted(values, *_):
        converted.append(values.shape)
        return convert(values)

    monkeypatch.setattr(torch.Tensor, "__array__", counted)
    monkeypatch.setattr("compshift.crm.features.SCALED_ROWS", 100)  # samples whose scales a warning compares
    clf = CRMClassifier().fit(tensor, codes[:, 0], attributes=codes[:, 1])
    clf.predict_proba(tensor)
    n, p = X.shape
    assert (n, clf.space_.width) in converted  # the energies, for step 2
    assert all(shape[-1:] != (p,) or shape[0] < n / 10 for shape in converted)


def test_single_precision_first_steps_end_at_the_optimum_of_double_precision():
    rng = np.random.default_rng(0)
    codes = np.array([[0, 0], [0, 1], [1, 1]])[rng.integers(3, size=5000)]
    X = rng.normal(size=(5000, 60))
    X[:, :2] += 2 * codes
    expected = CRMClassifier(tol=1e-8).fit(X, codes[:, 0], attributes=codes[:, 1])
    found = CRMClassifier(tol=1e-8).fit(torch.tensor(X), codes[:, 0], attributes=codes[:, 1])
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-7)
    assert found.converged_


@pytest.mark.parametrize("transform", ["signed_root", "unit_length"])
def test_transforms_are_computed_in_the_library(samples, transform):
    X, codes = samples
    X = np.concatenate([X, np.zeros((1, X.shape[1]))])  # a row of zeros stays zero
    codes = np.concatenate([codes, codes[:1]])
    tensor = torch.tensor(X)
    expected = CRMClassifier(feature_transform=transform).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf = CRMClassifier(feature_transform=transform).fit(tensor, codes[:, 0], attributes=codes[:, 1])
    assert_equal(clf.predict_proba(tensor), expected.predict_proba(X), tensor, 1e-6)


def test_every_kind_of_fit_accepts_tensors(samples):
    """Fits that need NumPy convert the features, and their results follow X all the same."""
    X, codes = samples
    X, codes = X[:600], codes[:600]
    weight = np.arange(600) % 3
    missing = np.where(np.arange(600) % 7, codes[:, 1].astype(object), None)
    for parameters, arguments in (
        ({}, {"sample_weight": weight}),
        ({}, {"attributes": missing}),
        ({"anchor": "gaussian"}, {}),
        ({"cross_fit": True}, {}),
        ({}, {"unlabelled": X[:100]}),
    ):
        arguments = {"attributes": codes[:, 1], **arguments}
        expected = CRMClassifier(**parameters).fit(X, codes[:, 0], **arguments)
        tensors = {
            name: torch.tensor(values) if name in ("sample_weight", "unlabelled") else values
            for name, values in arguments.items()
        }
        clf = CRMClassifier(**parameters).fit(torch.tensor(X), codes[:, 0], **tensors)
        assert_equal(clf.bias_, expected.bias_, torch.tensor(X), 1e-6)
        assert_equal(clf.predict_proba(torch.tensor(X)), expected.predict_proba(X), torch.tensor(X), 1e-6)


def test_cross_validation_predicts_in_the_library(samples):
    X, codes = samples
    X, codes, tensor = X[:600], codes[:600], torch.tensor(X[:600])
    expected = CRMClassifierCV([1e-2]).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf = CRMClassifierCV([1e-2]).fit(tensor, codes[:, 0], attributes=codes[:, 1])
    assert_equal(clf.predict_proba(tensor), expected.predict_proba(X), tensor, 1e-6)
    assert_equal(clf.coef_, expected.coef_, tensor, 1e-6)
    assert isinstance(clf.predict_set(tensor), type(expected.predict_set(X)))


def test_a_model_fitted_to_numpy_or_loaded_predicts_tensors(samples, fitted, tmp_path):
    X, tensor = samples[0], torch.tensor(samples[0])
    fitted.save(tmp_path / "model.safetensors")
    for clf in (fitted, load(tmp_path / "model.safetensors")):
        assert_equal(clf.predict_proba(tensor), fitted.predict_proba(X), tensor, 1e-6)


def test_a_model_fitted_to_tensors_is_saved_explained_and_listed(samples, fitted, tmp_path):
    X, codes = samples
    tensor = torch.tensor(X)
    clf = CRMClassifier().fit(tensor, codes[:, 0], attributes=codes[:, 1])
    clf.save(tmp_path / "model.safetensors")
    np.testing.assert_allclose(load(tmp_path / "model.safetensors").bias_, fitted.bias_, atol=1e-6)
    assert clf.explain(tensor[:5]).to_frame().equals(clf.explain(X[:5]).to_frame())
    assert clf.group_frame().shape == fitted.group_frame().shape


def test_classes_with_names_stay_in_numpy(samples):
    X, codes = samples
    names = np.array(["land", "water"])[codes[:, 0]]
    predicted = CRMClassifier().fit(torch.tensor(X), names, attributes=codes[:, 1]).predict(torch.tensor(X))
    assert isinstance(predicted, np.ndarray)
    assert set(predicted) == {"land", "water"}


def test_without_dispatch_tensors_become_numpy_arrays(samples):
    X, codes = samples
    with sklearn.config_context(array_api_dispatch=False):
        clf = CRMClassifier().fit(torch.tensor(X), codes[:, 0], attributes=codes[:, 1])
        assert isinstance(clf.coef_, np.ndarray)
        assert isinstance(clf.predict_proba(torch.tensor(X)), np.ndarray)


def test_other_classifiers_convert_tensors(samples):
    X, codes = samples
    clf = CRMBoostingClassifier(max_iter=3).fit(torch.tensor(X[:300]), codes[:300, 0], attributes=codes[:300, 1])
    assert isinstance(clf.predict_proba(torch.tensor(X[:10])), np.ndarray)


def test_arrays_on_different_devices_raise(samples, fitted):
    X, codes = samples
    tensor, y = torch.tensor(X), codes[:, 0]
    elsewhere = torch.ones(len(X), device="meta")  # the only other device that every machine has
    with pytest.raises(InputError, match=r"sample_weight is on the device meta but X is on cpu: move both to one dev"):
        CRMClassifier().fit(tensor, y, attributes=codes[:, 1], sample_weight=elsewhere)
    with pytest.raises(InputError, match=r"^y is on the device meta but X is on cpu"):
        fitted.score(tensor, elsewhere)
    with pytest.raises(InputError, match=r"attributes is on the device meta but X is on cpu"):
        fitted.predict(tensor, attributes=elsewhere)
    with pytest.raises(InputError, match=r"X is on the device meta, which holds no numbers"):
        fitted.predict(torch.empty(3, X.shape[1], device="meta"))


def test_bad_tensors_raise_as_bad_arrays_do(samples, fitted):
    X, _ = samples
    bad = torch.tensor(X)
    bad[3, 1] = torch.nan
    with pytest.raises(InputError, match=r"X has 1 NaN .* at row 3, column 1"):
        fitted.predict(bad)
    with pytest.raises(InputError, match=r"pass the columns used in fit"):
        fitted.predict(bad[:, :1])
    with pytest.raises(InputError, match=r"X cannot be read as a matrix of numbers"):
        fitted.predict(bad.to(torch.complex64))
