"""A classifier of backbone and head, small backbones with random weights, layers of heads, and backbones by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._checks import check_count, check_list
from compshift._errors import InputError, check_name, rough
from compshift.data.dataset import DEFAULT_BACKBONES, GroupedDataset, has_pairs
from compshift.data.images import Geometry, ImagePreprocessing, Resize, scaled
from compshift.nn.backbones import FRESH, Backbone, VisionBackbone, check_backbone, load_backbone

CNN_SIDE = 32
"""Height and width, in pixels, of the images that ``small-cnn`` takes."""

CNN_LAYERS = ((32, 5), (64, 3), (128, 3))
"""Channels and kernel size of each convolution of ``small-cnn``; each convolution halves the image."""

CNN_POOLED = 2
"""Height and width to which ``small-cnn`` pools its last feature map."""

MAX_WEIGHTS = 1 << 38
"""Maximum number of weights of a head (a terabyte in 32 bits)."""


class BackboneClassifier(nn.Module):
    """A backbone followed by a head that returns class logits or energies."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Features (b, p) of a batch."""
        return self.backbone(**self.backbone.prepare(inputs))  # type: ignore[no-any-return]

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Output of the head: class logits (b, c) or energies (b, D)."""
        return self.head(self.features(inputs))  # type: ignore[no-any-return]


def class_head(in_features: int, n_classes: int) -> nn.Linear:
    """Make a linear head that starts at zero, so that all methods start from the same predictions."""
    head = nn.Linear(in_features, n_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def energy_layers(
    in_features: int, cardinalities: Sequence[int], hidden: int | Sequence[int] | None = None
) -> nn.ModuleList:
    """Make one network per attribute, linear or with hidden layers, from features to an energy for each of its values.

    The last layer has no intercept, because the groups' bias would absorb it. It starts at zero, because zero energies
    are closer to the optimum than random ones.
    """
    widths: list[Any] = []
    if hidden is not None:
        widths = [hidden] if np.ndim(hidden) == 0 else check_list(hidden, "hidden", "widths of layers")
    sizes = [in_features, *(check_count(width, "hidden") for width in widths)]
    count = len(cardinalities) * sum(a * b for a, b in pairwise(sizes)) + sizes[-1] * sum(cardinalities)
    if count > MAX_WEIGHTS:
        raise InputError(
            f"the head would have {rough(count)} weights, more than a machine can store: choose fewer in_features "
            f"({in_features!r}), narrower hidden layers ({hidden!r}) or attributes with fewer values"
        )
    networks = []
    for cardinality in cardinalities:
        layers = _hidden_layers(sizes)
        last = nn.Linear(sizes[-1], cardinality, bias=False)
        nn.init.zeros_(last.weight)
        networks.append(nn.Sequential(*layers, last) if layers else last)
    return nn.ModuleList(networks)


def _hidden_layers(sizes: Sequence[int]) -> list[nn.Module]:
    """Make linear layers between consecutive sizes, each followed by a ReLU."""
    return [layer for size in pairwise(sizes) for layer in (nn.Linear(*size), nn.ReLU())]


class SmallConvolutions(nn.Sequential):
    """Three convolutions, then average pooling over each quadrant of the image: 512 features.

    Group normalisation works on one sample at a time, so the features of a sample depend neither on the rest of the
    batch nor on train or eval mode.
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        previous = 3
        for channels, width in CNN_LAYERS:
            convolution = nn.Conv2d(previous, channels, width, stride=2, padding=width // 2, bias=False)
            layers += [convolution, nn.GroupNorm(8, channels), nn.ReLU()]
            previous = channels
        super().__init__(*layers, nn.AdaptiveAvgPool2d(CNN_POOLED), nn.Flatten())

    def settings(self) -> dict[str, Any]:
        """Architecture, as JSON values."""
        return {"convolutions": [list(pair) for pair in CNN_LAYERS], "pooled": CNN_POOLED}


def small_cnn(geometry: Geometry | None = None) -> VisionBackbone:
    """Make a small convolutional network with random weights, for images of 32 × 32 pixels."""
    preprocessing = ImagePreprocessing(
        geometry=(Resize(CNN_SIDE, CNN_SIDE),) if geometry is None else scaled(geometry, CNN_SIDE),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )
    network = VisionBackbone("small-cnn", SmallConvolutions(), preprocessing)
    network.pretrained = False
    return network


class FeatureBackbone(Backbone):
    """Backbone for features (n, p): centres and scales them, then applies the hidden layers, if any.

    The scale is one number for all features, their root mean square over the training rows after centring, so that
    weight decay on a linear head corresponds to ``alpha`` of ``CRMClassifier``.
    """

    kind = "features"
    pretrained = False
    mean: Tensor
    scale: Tensor

    def __init__(self, name: str, in_features: int, widths: Sequence[int] = ()) -> None:
        super().__init__()
        self.name = name
        self.in_features = check_count(in_features, "in_features")
        self.widths = tuple(widths)
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("scale", torch.ones(()))
        # Key, features and scaled features of the last call. The features are stored so that their id is not reused.
        self._cache: tuple[tuple[int, ...], Tensor, Tensor] | None = None
        sizes = (in_features, *self.widths)
        self.layers = nn.Sequential(*_hidden_layers(sizes))
        self.out_features = sizes[-1]

    def forward(self, features: Tensor) -> Tensor:
        """Output of the last hidden layer, or the scaled features."""
        if features.ndim != 2 or features.shape[1] != self.in_features:
            raise InputError(
                f"the features have shape {tuple(features.shape)}, but the model takes (n, {self.in_features}): pass "
                "one row per sample, with the features of training"
            )
        return self.layers(self._scaled(features))  # type: ignore[no-any-return]

    def _scaled(self, features: Tensor) -> Tensor:
        """Centre and scale the features; cache the last result, because a full batch is the same in every step."""
        if features.requires_grad or features.is_inference() or torch.is_inference_mode_enabled():
            return (features - self.mean) / self.scale
        used = (features, self.mean, self.scale)
        key = (*map(id, used), *(tensor._version for tensor in used))
        if self._cache is None or self._cache[0] != key:
            self._cache = key, features, (features - self.mean).div_(self.scale)
        return self._cache[2]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies, without the cached batch."""
        return {**self.__dict__, "_cache": None}

    def set_scale(self, X: Any) -> None:
        """Set the mean and the scale from the training rows ``X`` (n, p)."""
        mean = X.mean(axis=0, dtype="float64")
        spread = ((X - mean) ** 2).mean() ** 0.5
        self.mean.copy_(torch.as_tensor(mean))
        self.scale.fill_(float(spread) or 1.0)

    def settings(self) -> dict[str, Any]:
        """Widths of the layers, as JSON values."""
        return {"in_features": self.in_features, "widths": list(self.widths)}


def fresh_backbone(name: str, *, in_features: int = 0, geometry: Geometry | None = None, seed: int = 0) -> Backbone:
    """Make a backbone with random weights: ``small-cnn``, ``mlp`` (one hidden layer) or ``linear`` (none)."""
    check_name("backbone", name, tuple(FRESH))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "small-cnn":
            return small_cnn(geometry)
        return FeatureBackbone(name, in_features, (256,) if name == "mlp" else ())


def named_backbone(
    name: str | None,
    data: GroupedDataset,
    seed: int,
    *,
    geometry: Geometry | None = None,
    max_length: int | None = None,
    default_length: int | None = None,
    pooling: str = "auto",
    weights: str | PathLike[str] | None = None,
    dropout: float = 0.0,
    resampling: str = "backbone",
) -> Backbone:
    """Return the backbone to train on a data set, pretrained or with random weights drawn with ``seed``.

    Without a name, it is the default for the data set's kind of samples. ``resampling`` is the filter with which images
    are resized, or "backbone" for the network's own. The other keyword arguments are those of ``load_backbone``.
    """
    name = name or DEFAULT_BACKBONES[data.kind]
    if FRESH.get(name) == data.kind:
        check_backbone(name, data.kind, pooling=pooling, weights=weights, dropout=dropout)
        width = data.samples.shape[1] if data.kind == "features" else 0
        return _resampled(fresh_backbone(name, in_features=width, geometry=geometry, seed=seed), resampling)
    backbone = load_backbone(
        name,
        data.kind,
        geometry=geometry,
        max_length=max_length,
        default_length=default_length,
        pooling=pooling,
        pairs="auto" if has_pairs(data.samples) else None,
        weights=weights,
        dropout=dropout,
    )
    return _resampled(backbone, resampling)


def _resampled(backbone: Backbone, resampling: str) -> Backbone:
    """Set the filter with which an image backbone resizes images, unless ``resampling`` is "backbone"."""
    if resampling != "backbone" and isinstance(backbone, VisionBackbone):
        backbone.resample(resampling)
    return backbone
