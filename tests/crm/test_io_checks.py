"""Model files with a correct checksum and invalid contents."""

import hashlib
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import compshift
from compshift import CRMClassifier, InputError
from compshift.crm import io as model_file
from tests.estimators.made_data import make_data


@pytest.fixture
def saved(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier(alpha=0.02).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf.save(tmp_path / "model.safetensors")
    return clf, X, tmp_path / "model.safetensors"


def rewrite(path, **changes):
    """Write the model again with other header entries or arrays and a checksum that fits."""
    kind, header, arrays = model_file.read(path)
    arrays = {name: changes.pop(name, array) for name, array in arrays.items()}
    header = {
        name: value for name, value in header.items() if name not in ("format_version", "compshift_version", "kind")
    }
    model_file.write(path, changes.pop("kind", kind), {**header, **changes}, arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 99}, "model format 99, .* upgrade compshift"),
        ({"kind": "Surprise"}, "holds a 'Surprise', but this release can only load a CRMClassifier"),
        ({"names": ["y"]}, "not those of a CRMClassifier"),
        ({"n_targets": 7}, "7 targets among 2 attributes"),
        ({"bias": np.zeros(2)}, r"bias has shape \(2,\) instead of \(6,\)"),
        ({"groups": np.full((6, 2), 9)}, "codes run from"),
        ({"parameters": None}, "not those of a CRMClassifier"),
        ({"bias": np.full(6, np.nan)}, "bias has nan where a number .* is expected"),
        ({"log_prior": np.zeros(6)}, "log_prior is not that of a prior"),
        ({"groups": np.zeros((6, 2), dtype=np.int64)}, "lists a group twice"),
        ({"groups": np.zeros((6, 2))}, "groups has type float64"),
        ({"feature_names": ["one"]}, "1 feature_names for"),
        ({"n_iter": "many"}, "n_iter is 'many'"),
        ({"inputs": [1]}, "inputs is"),
        ({"seen_groups": np.zeros((0, 2), dtype=np.int64), "seen_weight": np.zeros(0)}, "seen_groups has type int64"),
        ({"seen_weight": np.full(5, 1e308)}, "seen_weight sums to inf"),
        ({"seen_weight": np.zeros(5)}, "seen_weight sums to 0"),
        ({"seen_weight": np.full(5, -1.0)}, "seen_weight has -1 where"),
        ({"feature_mean": np.zeros((4, 1))}, r"feature_mean has shape \(4, 1\)"),
        ({"feature_mean": np.zeros((4, 3))}, r"feature_mean has shape \(4, 3\)"),
        ({"feature_mean": np.full(4, np.inf)}, "feature_mean has inf where"),
        ({"bias": np.full(6, 1e308)}, r"bias has 1e\+308 where a number between -1e\+12 and 1e\+12"),
        ({"bias": np.full(6, -1e308)}, "bias has -1e"),
        ({"learned_bias": np.full(6, 1e308)}, "learned_bias has 1e"),
        ({"cumulant_bias": np.full(6, np.inf)}, "cumulant_bias has inf"),
        ({"effective_sample_size": np.full(6, np.nan)}, "effective_sample_size has nan"),
        ({"effective_sample_size": np.full(6, np.inf)}, "effective_sample_size has inf"),
        ({"effective_sample_size": np.full(6, -1.0)}, "effective_sample_size has -1"),
        ({"pareto_k": np.full(6, np.inf)}, "pareto_k has inf"),
        ({"coef": np.full((5, 4), np.inf)}, "coef has inf"),
        ({"coef": np.zeros((5, 4), dtype=np.int64)}, "coef has type int64"),
        ({"groups": np.array([[1, 2], [1, 1], [1, 0], [0, 2], [0, 1], [0, 0]])}, "groups lists groups out of order"),
        ({"n_targets": "1"}, "n_targets is '1'"),
        ({"n_targets": 1.9}, "n_targets is 1.9"),
        ({"n_targets": True}, "n_targets is True"),
        ({"n_targets": 2}, "predictions of 2 targets are said to have one dimension"),
        ({"one_dimensional": 1}, "one_dimensional is 1"),
        ({"converged": "yes"}, "converged is 'yes'"),
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"values": ["ab", "cde"]}, "values is .*, not a list of lists"),
        ({"names": "ya"}, "names is 'ya', not a list of names"),
    ],
)
def test_invalid_contents_are_rejected(saved, changes, message):
    _, _, path = saved
    rewrite(path, **changes)
    with pytest.raises(InputError, match=message) as error:
        compshift.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("parameter", "value"), [("bias", "auto"), ("anchor", "auto"), ("cross_fit", "auto"), ("unseen_offset", "auto")]
)
def test_auto_is_not_a_legal_saved_parameter(saved, parameter, value):
    _, _, path = saved
    parameters = model_file.read(path).header["parameters"]
    rewrite(path, parameters=parameters | {parameter: value})
    with pytest.raises(InputError, match=rf"cannot be loaded: {parameter} .*'auto'"):
        compshift.load(path)


def test_nan_is_legal_for_unknown_numbers(saved):
    clf, X, path = saved
    rewrite(path, cumulant_bias=np.full(6, np.nan), pareto_k=np.array([np.nan, -np.inf, 0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_array_equal(compshift.load(path).predict_proba(X), clf.predict_proba(X))


def test_a_file_without_later_arrays_and_parameters_is_read(saved):
    """Only the kinds of bias that it lacks raise an error."""
    reference, X, path = saved
    arrays = load_file(path)
    with safe_open(path, framework="numpy") as stream:
        header = json.loads(stream.metadata()["compshift"])
    for name in ("cumulant_bias", "pareto_k"):
        del arrays[name]
    for name in ("anchor", "cross_fit"):
        del header["parameters"][name]
    del header["temperature"]
    text = json.dumps(header, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"\n{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(arrays[name].tobytes())
    save_file(arrays, path, metadata={"compshift": text, "sha256": digest.hexdigest()})
    clf = compshift.load(path)
    assert clf.get_params()["anchor"] == "zero"
    np.testing.assert_array_equal(clf.predict_proba(X), reference.predict_proba(X))
    with pytest.raises(InputError, match="bias='cumulant' was not computed for this model"):
        clf.set_params(bias="cumulant").predict(X)
