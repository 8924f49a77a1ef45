"""ONNX files of PyTorch heads and trained models."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from compshift import GroupSpace, InputError, export_onnx
from compshift.nn import AdditiveEnergyHead
from compshift.nn.state import BiasAge
from tests.export.onnx_session import CLOSE, run


def trained_head(cardinalities, hidden, n=300, p=5):
    """Return a head with extrapolated biases, and the features that they were computed from."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.integers(1, space.n_groups, size=n))
    head = AdditiveEnergyHead(p, space, hidden)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.as_tensor(rng.normal(size=tuple(parameter.shape))))
    X = torch.as_tensor(rng.normal(size=(n, p)), dtype=torch.float32)
    head.set_train_groups(codes)
    head.extrapolate([X])
    return head, X


class TestHead:
    """Predictions of a PyTorch head against those of its ONNX file."""

    @pytest.mark.parametrize("hidden", [None, 8, [8, 6]])
    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_the_file_equals_the_head(self, cardinalities, hidden, tmp_path):
        head, X = trained_head(cardinalities, hidden)
        export_onnx(head, tmp_path / "model.onnx")
        found = run(tmp_path / "model.onnx", X.numpy())
        expected = head.double().marginal_log_prob(X, 0).exp().detach().numpy()
        np.testing.assert_allclose(found["probabilities"], expected, atol=CLOSE)
        head.float()
        for prior in ("hull", "train"):
            export_onnx(head, tmp_path / "model.onnx", prior=prior)
            found = run(tmp_path / "model.onnx", X.numpy())
            expected = head.marginal_log_prob(X, 0, prior).exp().detach().numpy()
            np.testing.assert_allclose(found["probabilities"], expected, atol=CLOSE)

    def test_energies_common_to_an_attribute_cancel(self, tmp_path):
        head, X = trained_head((2, 3), 8)
        head.double()
        expected = head.marginal_log_prob(X, 0).exp().detach().numpy()
        with torch.no_grad():
            for layer in head.layers:
                layer[-1].weight += 4096 * torch.arange(8)
        head._age = BiasAge()  # mark the biases as current: they changed only by a constant
        export_onnx(head, tmp_path / "model.onnx")
        found = run(tmp_path / "model.onnx", X.numpy())["probabilities"]
        np.testing.assert_allclose(found, expected, atol=CLOSE)

    def test_a_head_without_biases_is_rejected(self, tmp_path):
        head = AdditiveEnergyHead(3, [2, 2])
        head.set_train_groups(np.array([[0, 1], [1, 0], [1, 1]]))
        with pytest.raises(InputError, match="call extrapolate with the training inputs first"):
            export_onnx(head, tmp_path / "model.onnx")

    @pytest.mark.parametrize("hidden", [0, 6])
    def test_the_file_of_a_trained_model_takes_backbone_features(self, hidden, tmp_path):
        from compshift.methods.crm import CRM
        from compshift.training import Settings, train
        from tests.training.small_runs import Wobbly, gaussians

        data = gaussians()
        settings = Settings(steps=20, batch_size=33, eval_every=10, learning_rate=0.05)
        model = train(data, CRM(hidden=hidden), Wobbly(dropout=0.0), settings, device="cpu").set_prior("train")
        export_onnx(model, tmp_path / "model.onnx")
        samples = data.samples.astype(np.float32)
        with torch.no_grad():
            features = model.model.backbone(torch.as_tensor(samples)).numpy()
        found = run(tmp_path / "model.onnx", features)
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(samples), atol=CLOSE)
        assert set(found["label"]) == {"land", "water"}

    def test_a_model_without_groups_is_rejected(self, tmp_path):
        from compshift.training import Settings, train
        from tests.training.small_runs import Wobbly, gaussians

        model = train(gaussians(), "erm", Wobbly(), Settings(steps=2, eval_every=2), device="cpu")
        with pytest.raises(
            InputError, match="trained with 'erm', which predicts classes but not groups: train it with 'crm'"
        ):
            export_onnx(model, tmp_path / "model.onnx")
