"""One sample through the exported graph, against the same sums in PyTorch and against the classifier itself."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from measure import Row, seconds
from threadpoolctl import threadpool_limits

from compshift import CRMClassifier, GroupSpace, export_onnx
from compshift.nn import AdditiveEnergyHead

FEATURES = 512
CALLS = 100
"""Calls that are timed together, being shorter than what a clock tells apart."""


def rows() -> Iterator[Row]:
    """Latency of one sample of 512 features, on one thread, for two groups times two and for sixty times six."""
    for cardinalities in ((2, 2), (60, 6)):
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clf, X = _classifier(cardinalities)
        yield from _on_one_thread(clf, X)


def _on_one_thread(clf: CRMClassifier, X: np.ndarray) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        head = _head(clf)
        with threadpool_limits(1), torch.inference_mode():
            return list(_rows(clf, head, X))
    finally:
        torch.set_num_threads(threads)


def _rows(clf: CRMClassifier, head: AdditiveEnergyHead, X: np.ndarray) -> Iterator[Row]:
    cardinalities = clf.space_.cardinalities
    sample = X[:1].astype(np.float32)
    tensor = torch.from_numpy(sample)
    coef, mean = (torch.as_tensor(part, dtype=torch.float32) for part in (clf.coef_, clf.feature_mean_))
    values = torch.as_tensor(clf.groups_ + clf.space_.offsets)
    log_score = torch.as_tensor(-clf.bias_, dtype=torch.float32)

    def plain() -> torch.Tensor:
        energies = (tensor - mean) @ coef.T
        logits = log_score - energies[:, values].sum(dim=2)  # (1, g), in the order of a table
        return logits.view(1, *cardinalities).logsumexp(dim=2).softmax(dim=1)

    with tempfile.TemporaryDirectory() as folder:
        export_onnx(clf, Path(folder) / "model.onnx")
        session = _session(Path(folder) / "model.onnx")
    ours = _latency(lambda: session.run(["probabilities"], {"X": sample}))
    difference = np.abs(session.run(["probabilities"], {"X": sample})[0] - clf.predict_proba(sample)).max()
    assert np.abs(plain().numpy() - clf.predict_proba(sample)).max() < 1e-4
    what = f"one sample in onnxruntime, {' × '.join(map(str, cardinalities))} groups"
    for against, work in (
        ("plain PyTorch, a column per group", plain),
        ("marginal_log_prob of the head", lambda: head.marginal_log_prob(tensor, 0)),
        ("predict_proba of the classifier", lambda: clf.predict_proba(sample)),
    ):
        ratio = _latency(work) / ours
        yield Row(what, against, f"{ratio:.1f}× faster ({1e6 * ours:.0f} µs)", "faster", ratio > 1)
    yield Row("the same: largest difference", "the classifier", f"{difference:.0e}", "1e-5", bool(difference < 1e-5))


def _latency(work: Callable[[], object]) -> float:
    """Seconds of one call."""

    def calls() -> None:
        for _ in range(CALLS):
            work()

    return seconds(calls) / CALLS


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _classifier(cardinalities: tuple[int, ...]) -> tuple[CRMClassifier, np.ndarray]:
    """Fitted to additive means, without the first group."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.integers(1, space.n_groups, size=3000))
    X = rng.normal(size=(3000, FEATURES))
    for size, column in zip(cardinalities, codes.T, strict=True):
        X += (0.3 * rng.normal(size=(size, FEATURES)))[column]
    return CRMClassifier(max_iter=50).fit(X, codes[:, 0], attributes=codes[:, 1]), X


@torch.no_grad()
def _head(clf: CRMClassifier) -> AdditiveEnergyHead:
    """The head with the classifier's weights and biases."""
    head = AdditiveEnergyHead(FEATURES, clf.space_)
    head.set_train_groups(clf.groups_[clf.seen_], clf.group_weight_[clf.seen_])
    for layer, start, size in zip(head.layers, clf.space_.offsets, clf.space_.cardinalities, strict=True):
        layer.weight.copy_(torch.as_tensor(clf.coef_[start : start + size]))
    head.bias.copy_(torch.as_tensor(clf.bias_))
    return head
