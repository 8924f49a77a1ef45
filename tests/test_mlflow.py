"""Models in MLflow, in a store of files on this machine."""

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

mlflow = pytest.importorskip("mlflow")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # which its import raises
    import mlflow.pyfunc as pyfunc
    from mlflow.models import infer_signature

import compshift as cs
from compshift import InputError, __version__
from tests.test_hub import features, fitted, groups

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*An input example was not provided"),
    pytest.mark.filterwarnings("ignore:Operation with range is deprecated"),  # of pandas, in MLflow
]

X = features(groups())
PROBABILITIES = {"method": "predict_proba"}


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    yield tmp_path
    mlflow.set_tracking_uri(before)


def test_a_logged_model_predicts_and_comes_back(tmp_path):
    clf = fitted()
    with mlflow.start_run():
        info = cs.mlflow.log_model(clf, "birds", input_example=X[:2])
    served = pyfunc.load_model(info.model_uri)
    np.testing.assert_array_equal(served.predict(X), clf.predict(X))
    np.testing.assert_array_equal(served.predict(X, params=PROBABILITIES), clf.predict_proba(X))
    np.testing.assert_array_equal(served.predict(pd.DataFrame(X)), clf.predict(X))
    assert info.signature.inputs.inputs[0].shape == (-1, 4)
    assert [part.name for part in info.signature.params] == ["method"]
    loaded = cs.mlflow.load_model(info.model_uri)
    assert isinstance(loaded, cs.CRMClassifier)
    np.testing.assert_array_equal(
        loaded.set_prior("train").group_log_proba(X), clf.set_prior("train").group_log_proba(X)
    )
    requirements = pyfunc.get_model_dependencies(info.model_uri)
    with open(requirements) as file:
        assert f"compshift=={__version__}" in file.read().splitlines()
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".pkl", ".pickle", ".skops")]


def test_columns_are_checked_by_name(tmp_path):
    z = groups()
    frame = pd.DataFrame(X, columns=list("abcd"))
    pipe = cs.table_classifier("linear").fit(frame, z[:, 0], classifier__attributes=z[:, 1])
    cs.mlflow.save_model(pipe, tmp_path / "model", input_example=frame[:2], metadata={"by": "me"})
    served = pyfunc.load_model(str(tmp_path / "model"))
    assert served.metadata.metadata == {"by": "me"}
    np.testing.assert_allclose(served.predict(frame[list("dcba")], params=PROBABILITIES), pipe.predict_proba(frame))
    with pytest.raises(mlflow.exceptions.MlflowException, match="missing inputs"):
        served.predict(frame[["a"]])


def test_a_signature_and_requirements_of_ones_own(tmp_path):
    clf = fitted(cs.CRMClassifier)
    signature = infer_signature(pd.DataFrame(X))
    cs.mlflow.save_model(clf, tmp_path / "model", signature=signature, pip_requirements=["compshift>=0.1"])
    served = pyfunc.load_model(str(tmp_path / "model"))
    assert served.metadata.signature == signature
    assert "compshift>=0.1" in (tmp_path / "model/requirements.txt").read_text()


def test_without_an_example_the_method_can_be_chosen(tmp_path):
    clf = fitted(cs.CRMClassifier)
    cs.mlflow.save_model(clf, tmp_path / "model")
    served = pyfunc.load_model(str(tmp_path / "model"))
    assert served.predict(X[:3], params={"method": "explain"}).equals(clf.explain(X[:3]).to_frame())
    with pytest.raises(InputError, match="method 'fit' is not known: use one of 'predict', 'predict_proba'"):
        served.predict(X, params={"method": "fit"})


def test_networks_are_logged_with_their_extra(tmp_path):
    pytest.importorskip("torch")
    from tests.training.small_runs import QUICK, gaussians

    data = gaussians()
    clf = cs.training.train(data, "crm", "mlp", QUICK, device="cpu")
    cs.mlflow.save_model(clf, tmp_path / "model")
    served = pyfunc.load_model(str(tmp_path / "model"))
    np.testing.assert_allclose(served.predict(data.X, params=PROBABILITIES), clf.predict_proba(data.X), rtol=1e-6)
    assert f"compshift[torch]=={__version__}" in (tmp_path / "model/requirements.txt").read_text()


def test_a_served_column_of_texts_becomes_a_list():
    class Texts:
        kind = "text"

        def predict(self, samples):
            assert isinstance(samples, list)
            return samples

    served = cs.mlflow._PyFunc(Texts())
    assert served.predict(pd.DataFrame({"review": ["good", "bad"]})) == ["good", "bad"]
    assert served.predict(["good"]) == ["good"]
    with pytest.raises(InputError, match="the samples have 2 columns: pass a single one"):
        served.predict(pd.DataFrame({"a": ["x"], "b": ["y"]}))


def test_models_of_other_libraries(tmp_path):
    class Other(pyfunc.PythonModel):
        def predict(self, model_input: list[str]) -> list[str]:
            return model_input

    pyfunc.save_model(str(tmp_path / "other"), python_model=Other(), pip_requirements=[])
    with pytest.raises(InputError, match=r"was not logged by compshift\.mlflow: load it with mlflow\.pyfunc"):
        cs.mlflow.load_model(tmp_path / "other")
    with pytest.raises(InputError, match="cannot be saved"):
        cs.mlflow.save_model(cs.AdditiveGaussian(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_without_mlflow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"needs the package mlflow: pip install 'compshift\[mlflow\]'"):
        cs.mlflow.save_model(fitted(cs.CRMClassifier), tmp_path / "model")


@pytest.mark.slow
def test_a_fresh_process_loads_and_predicts(tmp_path):
    clf = fitted(cs.CRMClassifier)
    cs.mlflow.save_model(clf, tmp_path / "model", input_example=X[:2])
    np.save(tmp_path / "X.npy", X)
    script = (
        "import sys, numpy as np, mlflow.pyfunc\n"
        "model = mlflow.pyfunc.load_model('model')\n"
        "np.save('found.npy', model.predict(np.load('X.npy'), params={'method': 'predict_proba'}))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), clf.predict_proba(X))
