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
from tests.estimators.made_data import make_data, make_pool


@pytest.fixture
def saved(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier(alpha=0.02).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf.save(tmp_path / "model.safetensors")
    return clf, X, tmp_path / "model.safetensors"


def rewrite(path, **changes):
    """Write the model again with other header entries or arrays and a matching checksum."""
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
        ({"names": ["y"]}, "not those of a fitted model"),
        ({"n_targets": 7}, "n_targets is 7 but there are only 2 attributes"),
        ({"bias": np.zeros(2)}, r"bias has shape \(2,\) but must have shape \(6,\)"),
        ({"groups": np.full((6, 2), 9)}, "codes run from"),
        ({"parameters": None}, "not those of a fitted model"),
        ({"bias": np.full(6, np.nan)}, "bias contains nan but must contain numbers between"),
        ({"log_prior": np.zeros(6)}, "log_prior is not a log prior"),
        ({"groups": np.zeros((6, 2), dtype=np.int64)}, "lists a group twice"),
        ({"groups": np.zeros((6, 2))}, "groups has type float64"),
        ({"feature_names": ["one"]}, "feature_names has 1 entries but there are"),
        ({"n_iter": "many"}, "n_iter has the invalid value 'many'"),
        ({"inputs": [1]}, "inputs has the invalid value"),
        ({"seen_groups": np.zeros((0, 2), dtype=np.int64), "seen_weight": np.zeros(0)}, "seen_groups has type int64"),
        ({"seen_weight": np.full(5, 1e308)}, "seen_weight sums to inf"),
        ({"seen_weight": np.zeros(5)}, "seen_weight sums to 0"),
        ({"seen_weight": np.full(5, -1.0)}, "seen_weight contains -1 but must"),
        ({"feature_mean": np.zeros((4, 1))}, r"feature_mean has shape \(4, 1\)"),
        ({"feature_mean": np.zeros((4, 3))}, r"feature_mean has shape \(4, 3\)"),
        ({"feature_mean": np.full(4, np.inf)}, "feature_mean contains inf but must"),
        ({"bias": np.full(6, 1e308)}, r"bias contains 1e\+308 but must contain numbers between -1e\+12 and 1e\+12"),
        ({"bias": np.full(6, -1e308)}, "bias contains -1e"),
        ({"learned_bias": np.full(6, 1e308)}, "learned_bias contains 1e"),
        ({"cumulant_bias": np.full(6, np.inf)}, "cumulant_bias contains inf"),
        ({"effective_sample_size": np.full(6, np.nan)}, "effective_sample_size contains nan"),
        ({"effective_sample_size": np.full(6, np.inf)}, "effective_sample_size contains inf"),
        ({"effective_sample_size": np.full(6, -1.0)}, "effective_sample_size contains -1"),
        ({"pareto_k": np.full(6, np.inf)}, "pareto_k contains inf"),
        ({"coef": np.full((5, 4), np.inf)}, "coef contains inf"),
        ({"coef": np.zeros((5, 4), dtype=np.int64)}, "coef has type int64"),
        (
            {"groups": np.array([[1, 2], [1, 1], [1, 0], [0, 2], [0, 1], [0, 0]])},
            "groups lists groups in the wrong order",
        ),
        ({"n_targets": "1"}, "n_targets has the invalid value '1'"),
        ({"n_targets": 1.9}, "n_targets has the invalid value 1.9"),
        ({"n_targets": True}, "n_targets has the invalid value True"),
        ({"n_targets": 2}, "one_dimensional is true but n_targets is 2"),
        ({"one_dimensional": 1}, "one_dimensional has the invalid value 1"),
        ({"converged": "yes"}, "converged has the invalid value 'yes'"),
        ({"temperature": 0}, "temperature has the invalid value 0"),
        ({"temperature": -1.0}, "temperature has the invalid value -1.0"),
        ({"values": ["ab", "cde"]}, "values is .* but must be a list of lists"),
        ({"names": "ya"}, "names is 'ya' but must be a list of names"),
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
    """Only kinds of bias that are absent from the file raise an error."""
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


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    X, codes, pool, _ = make_pool()
    clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=pool)
    path = tmp_path_factory.mktemp("pooled") / "model.safetensors"
    clf.save(path)
    return path.read_bytes()


def change_pool(path, **changes):
    """Change entries of the header entry ``pool``, or of the objects in it, and write a matching checksum."""
    pool = model_file.read(path).header["pool"]
    for name, value in changes.items():
        part = next(part for part in (pool, pool["decision"], pool["plain"]) if name in part)
        part[name] = value
    rewrite(path, pool=pool)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_samples": 0}, "pool n_samples has the invalid value 0"),
        ({"n_samples": 2.5}, "pool n_samples has the invalid value 2.5"),
        ({"n_rounds": -1}, "pool n_rounds has the invalid value -1"),
        ({"n_rounds": True}, "pool n_rounds has the invalid value True"),
        ({"decision": "yes"}, "pool decision has the invalid value 'yes'"),
        ({"decision": {}}, "not those of a fitted model .*'used'"),
        ({"used": 1}, "pool used has the invalid value 1"),
        ({"used": False}, "pool plain has the invalid value"),
        ({"reason": 7}, "pool reason has the invalid value 7"),
        ({"reason": "one\ntwo"}, "pool reason has the invalid value"),
        ({"reason": "\x1b[31mred"}, "pool reason has the invalid value"),
        ({"unseen_share": [0.1, 0.2]}, "pool unseen_share has the invalid value"),
        ({"unseen_share": [0.1, 0.2, 1.5]}, "pool unseen_share has the invalid value"),
        ({"unseen_share": "abc"}, "pool unseen_share has the invalid value 'abc'"),
        ({"false_share": "0"}, "pool false_share has the invalid value '0'"),
        ({"held_out": [0.5]}, "pool held_out has 1 entries but pool seen has 0"),
        ({"held_out": {"0": 0.5}}, "pool held_out has the invalid value"),
        ({"seen": [True]}, "pool seen has the invalid value"),
        ({"gain": -2}, "pool gain has the invalid value -2"),
        ({"gain": []}, r"pool gain has the invalid value \[\]"),
        ({"gain_error": -0.1}, "pool gain_error has the invalid value -0.1"),
        ({"plain": None}, "pool plain has the invalid value None"),
        ({"plain": []}, r"pool plain has the invalid value \[\]"),
        ({"plain": {}}, "not those of a fitted model .*'converged'"),
        ({"bias_gap": -1.0}, "pool plain bias_gap has the invalid value -1.0"),
        ({"converged": None}, "pool plain converged has the invalid value None"),
        ({"temperature": 0}, "pool plain temperature has the invalid value 0"),
    ],
)
def test_invalid_entries_about_a_pool_are_rejected(pooled, tmp_path, changes, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pooled)
    change_pool(path, **changes)
    with pytest.raises(InputError, match=message) as error:
        compshift.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": 3}, "pool has the invalid value 3"),
        ({"pool_frequency": np.full((9, 3), 1.5)}, "pool_frequency contains 1.5 but must"),
        ({"pool_frequency": np.zeros((9, 4))}, r"pool_frequency has shape \(9, 4\) but must have shape \(9, 3\)"),
        ({"pool_frequency": np.zeros((9, 3), dtype=np.int64)}, "pool_frequency has type int64"),
        ({"pool_effective_rows": np.full(9, -1.0)}, "pool_effective_rows contains -1 but must"),
        ({"plain_coef": np.full((6, 8), np.inf)}, "plain_coef contains inf but must"),
        ({"plain_coef": np.zeros((6, 7))}, r"plain_coef has shape \(6, 7\)"),
        ({"plain_feature_mean": np.zeros((8, 1))}, "plain_feature_mean has shape"),
        ({"plain_bias": np.full(9, np.nan)}, "plain_bias contains nan but must"),
    ],
)
def test_invalid_arrays_about_a_pool_are_rejected(pooled, tmp_path, changes, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pooled)
    rewrite(path, **changes)
    with pytest.raises(InputError, match=message) as error:
        compshift.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["plain_coef", "plain_learned_bias", "pool_effective_rows"])
def test_a_missing_array_about_a_pool_is_named(pooled, tmp_path, name):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pooled)
    kind, header, arrays = model_file.read(path)
    del arrays[name]
    model_file.write(path, kind, header, arrays)
    with pytest.raises(InputError, match=f"not those of a fitted model .*'{name}'"):
        compshift.load(path)
