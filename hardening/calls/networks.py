"""Calls that need PyTorch: the head, backbones, methods, settings and training."""

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

import compshift as cs
from compshift.training import Settings, train
from hardening.calls import array_kinds, kinds, made
from hardening.calls.table import Call


def calls() -> Iterator[Call]:
    """Every public call of compshift.nn, methods, features and training."""
    rows = made.rows()
    X, codes = torch.tensor(rows.X), torch.tensor(rows.codes)
    yield Call(
        "nn.AdditiveEnergyHead",
        lambda **a: cs.nn.AdditiveEnergyHead(**a).learned_bias,
        {"in_features": 4, "cardinalities": [3, 3], "hidden": None, "groups": None},
        {
            "in_features": kinds.SIZES,
            "cardinalities": {**kinds.SIZES, **kinds.CHOICES, "many": kinds.Odd([2] * 2000)},
            "hidden": {**kinds.SIZES, **kinds.CHOICES},
            "groups": kinds.without_same(array_kinds.codes(made.SEEN)),
        },
    )
    head = _head(X, codes)
    tensors = _tensors(X)
    of_codes = {**kinds.without_same(array_kinds.codes(rows.codes)), **_unreadable(codes)}
    of_weights = {**kinds.without_same(array_kinds.weights(len(X))), **_unreadable(torch.ones(len(X)))}
    not_finite = {"NaN": kinds.Odd(X * torch.nan), "inf": kinds.Odd(X * torch.inf), "1e308": kinds.Odd(X * 1e308)}
    yield Call("nn.AdditiveEnergyHead.forward", head.forward, {"features": X}, {"features": tensors})
    yield Call(
        "nn.AdditiveEnergyHead.loss",
        head.loss,
        {"features": X, "codes": codes},
        {
            "features": tensors,
            "codes": of_codes,
            "reduction": kinds.CHOICES,
            "sample_weight": of_weights,
        },
    )
    prior = {**kinds.without_same(array_kinds.priors(9, (0, 0), (9, 9))), **_unreadable(torch.full((9,), 1 / 9))}
    yield Call(
        "nn.AdditiveEnergyHead.log_prob",
        head.log_prob,
        {"features": X},
        {"features": {**tensors, **not_finite}, "prior": prior, "codes": of_codes, "bias": kinds.CHOICES},
    )
    yield Call(
        "nn.AdditiveEnergyHead.marginal_log_prob",
        head.marginal_log_prob,
        {"features": X, "attribute": 0},
        {
            "features": {**tensors, **not_finite},
            "attribute": {**kinds.COUNTS, **kinds.CHOICES},
            "prior": prior,
            "bias": kinds.CHOICES,
        },
    )
    yield Call(
        "nn.AdditiveEnergyHead.set_train_groups",
        _new_head().set_train_groups,
        {"codes": made.SEEN, "counts": np.ones(7)},
        {
            "codes": {**array_kinds.codes(made.SEEN), **_unreadable(codes[:7])},
            "counts": {**array_kinds.weights(7), **_unreadable(torch.ones(7))},
        },
    )
    yield Call(
        "nn.AdditiveEnergyHead.set_train_groups",
        _new_head().set_train_groups,
        {"codes": [(X, codes)]},
        {"codes": {**kinds.CHOICES, **_batches({**of_codes, "no parts": kinds.Odd(())})}},
    )
    yield Call(
        "nn.AdditiveEnergyHead.extrapolate",
        lambda **a: head.extrapolate(**a).bias,
        {"batches": [X], "backbone": None},
        {
            "batches": {**kinds.CHOICES, **_batches({**tensors, **not_finite, "no parts": kinds.Odd(())})},
            "backbone": {**kinds.CHOICES, "of other inputs": kinds.Odd(torch.nn.Linear(7, 4).double())},
            "weighted": kinds.CHOICES,
            "processes": kinds.CHOICES,
        },
    )
    yield Call(
        "nn.AdditiveEnergyHead.extrapolate",
        lambda weight: head.extrapolate([(X, weight)], weighted=True).bias,
        {"weight": torch.ones(len(X))},
        {"weight": of_weights},
    )
    yield Call(
        "nn.AdditiveEnergyHead.load_state_dict",
        lambda name, entry: _loaded(head, name, entry).marginal_log_prob(X),
        {"name": "bias", "entry": 0.0},
        {
            "name": kinds.all_of({name: name for name, part in head.state_dict().items() if part.is_floating_point()}),
            "entry": kinds.all_of({"NaN": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "1e308": 1e308}),
        },
    )
    yield Call(
        "nn.load_backbone",
        cs.nn.load_backbone,
        {"name": "efficientnet-lite0", "kind": "images"},
        {"name": kinds.CHOICES, "kind": kinds.CHOICES, "pooling": kinds.CHOICES},
    )
    yield Call(
        "methods.make_method",
        cs.methods.make_method,
        {"name": "crm", "hyperparameters": None},
        {
            "name": kinds.CHOICES,
            "hyperparameters": {
                **kinds.CHOICES,
                **{kind: kinds.Odd({"eta": odd.value}) for kind, odd in kinds.NUMBERS.items()},
            },
        },
    )
    for method in cs.methods.METHODS:
        known = cs.methods.make_method(method).hyperparameters()
        yield Call(
            "methods.make_method",
            lambda method=method, **a: cs.methods.make_method(method, a),
            known,
            {name: {**kinds.NUMBERS, **kinds.CHOICES} for name in known},
        )
    every = {**kinds.NUMBERS, **kinds.COUNTS, **kinds.CHOICES}
    yield Call("training.Settings", Settings, {}, {field.name: every for field in fields(Settings)})
    data = cs.data.load_table(
        {"bird": rows.bird, "place": rows.place},
        target="bird",
        attributes="place",
        features=rows.X,
        split={"train": 0.7, "val": 0.3},
    )
    good = {"data": data, "method": "crm", "backbone": "linear", "settings": Settings(steps=2, batch_size=8)}
    yield Call(
        "training.train",
        lambda **a: train(**a).predict_proba(rows.X),
        {**good, "device": "cpu"},
        {
            "data": kinds.CHOICES,
            "method": kinds.CHOICES,
            "backbone": kinds.CHOICES,
            "settings": kinds.CHOICES,
            "folder": kinds.PATHS,
            "device": kinds.CHOICES,
            "workers": {**kinds.COUNTS, "10**9": kinds.Odd(10**9)},
            "overwrite": kinds.CHOICES,
            "inputs": kinds.CHOICES,
            "files": {**kinds.CHOICES, "outside": kinds.Odd({"../a": "b"}), "of bytes": kinds.Odd({"a": b"b"})},
            "listener": kinds.CHOICES,
        },
    )
    trained = train(**good, device="cpu")
    yield Call("training.TrainedClassifier.load", trained.load, {"folder": _run(good)}, {"folder": kinds.PATHS})
    yield Call(
        "training.Settings.from_dict",
        Settings.from_dict,
        {"content": {"steps": 3}},
        {"content": {**kinds.CHOICES, "unknown name": kinds.Odd({"stesp": 3}), "odd key": kinds.Odd({3: 3})}},
    )
    yield from _features()
    samples = {**kinds.without_same(array_kinds.matrix(rows.X)), **kinds.without_same(array_kinds.labels(rows.bird))}
    for name in ("predict", "predict_proba", "features"):
        yield Call(
            f"training.TrainedClassifier.{name}", getattr(trained, name), {"samples": rows.X}, {"samples": samples}
        )
    yield Call(
        "training.TrainedClassifier.set_prior",
        lambda prior: trained.set_prior(prior).predict_proba(rows.X),
        {"prior": "uniform"},
        {"prior": kinds.without_same(array_kinds.priors(9, ("duck", "lake"), ("duck", "moon")))},
    )


def _features() -> Iterator[Call]:
    """Embeddings of a few small images."""
    from compshift.data.dataset import ImageArrays
    from compshift.features import Embedder, extract_features

    backbone = cs.nn.load_backbone("efficientnet-lite0", "images")
    options = {"device": "cpu", "dtype": "auto", "batch_size": 2, "num_workers": 0}
    yield Call(
        "features.Embedder",
        lambda **a: Embedder(**a).about() is None,
        {"backbone": backbone, **options},
        {
            "backbone": kinds.CHOICES,
            "device": kinds.CHOICES,
            "dtype": kinds.CHOICES,
            "batch_size": kinds.COUNTS,
            "num_workers": kinds.COUNTS,
        },
    )
    pixels = np.zeros((2, 8, 8, 3), dtype=np.uint8)
    data = cs.data.GroupedDataset(ImageArrays(pixels), cs.GroupSpace.from_cardinalities([2]), np.array([[0], [1]]))
    embedder = Embedder(backbone, **options)
    yield Call(
        "features.extract_features",
        lambda **a: extract_features(**a).rows,
        {"data": data, "embedder": embedder, "folder": Path(tempfile.mkdtemp()) / "f", "shard_rows": 2},
        {
            "data": kinds.CHOICES,
            "embedder": kinds.CHOICES,
            "folder": kinds.PATHS,
            "shard_rows": kinds.COUNTS,
            "skip_broken": kinds.CHOICES,
            "overwrite": kinds.CHOICES,
        },
    )


def _run(arguments: dict[str, Any]) -> Path:
    """The folder of a run."""
    folder = Path(tempfile.mkdtemp()) / "run"
    train(**arguments, device="cpu", folder=folder)
    return folder


def _new_head() -> Any:
    return cs.nn.AdditiveEnergyHead(4, [3, 3]).double()


def _head(X: Any, codes: Any) -> Any:
    """A head that knows its groups and their biases."""
    head = _new_head()
    head.set_train_groups(codes)
    head.extrapolate([X])
    return head.eval()


def _loaded(head: Any, name: str, entry: float) -> Any:
    """A head with the state of another but for the first number of one tensor."""
    state = {key: value.clone() for key, value in head.state_dict().items()}
    state[name].view(-1)[0] = entry
    loaded = _new_head()
    loaded.load_state_dict(state)
    return loaded


def _batches(parts: kinds.Kinds) -> kinds.Kinds:
    """Lists of one batch."""
    return {name: kinds.Odd([odd.value]) for name, odd in parts.items()}


def _unreadable(values: Any) -> kinds.Kinds:
    """A tensor in layouts and types whose entries NumPy cannot read, some of which PyTorch itself warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kinds.all_of(
            {
                "tensor of bfloat16": values.bfloat16(),
                "sparse tensor": values.to_sparse(),
                "meta tensor": values.to("meta"),
                "quantized tensor": torch.quantize_per_tensor(values.float(), 1.0, 0, torch.qint8),
                "nested tensor": torch.nested.as_nested_tensor([values]),
                "tensor of complex32": values.to(torch.complex32),
            }
        )


def _tensors(X: Any) -> kinds.Kinds:
    """Features as tensors, and what is none."""
    return {
        "not contiguous": kinds.Odd(X.T.contiguous().T, same=True),
        "no rows": kinds.Odd(X[:0]),
        "one column too few": kinds.Odd(X[:, :-1]),
        "one dimension": kinds.Odd(X[:, 0]),
        "three dimensions": kinds.Odd(X[None]),
        "integers": kinds.Odd(X.long()),
        "float32": kinds.Odd(X.float()),
        "float16": kinds.Odd(X.half()),
        "complex": kinds.Odd(X.to(torch.complex128)),
        **_unreadable(X),
        "array": kinds.Odd(X.numpy()),
        "lists": kinds.Odd(X.tolist()),
        "None": kinds.Odd(None),
        "text": kinds.Odd("abc"),
        "object": kinds.Odd(object()),
    }
