"""A backbone and a head, trained together.

Small backbones that start from random weights, or from none: for small images, and for features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from compshift._checks import check_count
from compshift._errors import InputError, check_name
from compshift.data.images import Geometry, ImagePreprocessing, Resize, scaled
from compshift.nn.backbones import FRESH, Backbone, VisionBackbone


class BackboneClassifier(nn.Module):
    """Samples through a backbone to features, and through a head to class logits or energies."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Features (b, p) of a batch as it was read."""
        return self.backbone(**self.backbone.prepare(inputs))  # type: ignore[no-any-return]

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The head's output: logits (b, c) or energies (b, D)."""
        return self.head(self.features(inputs))  # type: ignore[no-any-return]


def class_head(in_features: int, n_classes: int) -> nn.Linear:
    """A linear head that starts at zero, so that all methods start from the same predictions."""
    head = nn.Linear(in_features, n_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


SIDE = 32
"""Pixels of the side of the images that the small network takes."""

CONVOLUTIONS = ((32, 5), (64, 3), (128, 3))
"""Channels and width of its convolutions; each halves the image."""

POOLED = 2
"""Features are averaged over this many rows and columns of fields."""

MLP_WIDTHS = (256,)


class SmallConvolutions(nn.Sequential):
    """Three convolutions, averaged over the quarters of the image, 512 features.

    Group normalisation sees one sample at a time, so features do not depend on the batch, nor on the mode.
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        previous = 3
        for channels, width in CONVOLUTIONS:
            convolution = nn.Conv2d(previous, channels, width, stride=2, padding=width // 2, bias=False)
            layers += [convolution, nn.GroupNorm(8, channels), nn.ReLU()]
            previous = channels
        super().__init__(*layers, nn.AdaptiveAvgPool2d(POOLED), nn.Flatten())

    def settings(self) -> dict[str, Any]:
        """What decides about the features beside the weights."""
        return {"convolutions": [list(pair) for pair in CONVOLUTIONS], "pooled": POOLED}


def small_cnn(geometry: Geometry | None = None) -> VisionBackbone:
    """A small convolutional network with random weights, for images of 32 × 32."""
    preprocessing = ImagePreprocessing(
        geometry=(Resize(SIDE, SIDE),) if geometry is None else scaled(geometry, SIDE), mean=(0.5,) * 3, std=(0.25,) * 3
    )
    network = VisionBackbone("small-cnn", SmallConvolutions(), preprocessing)
    network.pretrained = False
    return network


class FeatureBackbone(Backbone):
    """Features (n, p), centred and brought to one scale, through hidden layers if there are any.

    The scale is one number for all features, the root of the mean square over the training rows: weight decay on a
    linear head then means what ``alpha`` means to ``CRMClassifier``.
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
        self._kept: tuple[tuple[int, ...], Tensor, Tensor] | None = None  # key, features (so that its id stays), scaled
        sizes = (in_features, *self.widths)
        self.layers = nn.Sequential(*(layer for size in pairwise(sizes) for layer in (nn.Linear(*size), nn.ReLU())))
        self.out_features = sizes[-1]

    def forward(self, features: Tensor) -> Tensor:
        """Features of the last hidden layer, or the scaled ones."""
        if features.ndim != 2 or features.shape[1] != self.in_features:
            raise InputError(
                f"there are {features.shape[-1]} features, and the model was trained on {self.in_features}: pass "
                "features of the same kind"
            )
        return self.layers(self._scaled(features))  # type: ignore[no-any-return]

    def _scaled(self, features: Tensor) -> Tensor:
        """Scaled features. The last are kept while nothing changes: a full batch is the same in every step."""
        if features.requires_grad or features.is_inference() or torch.is_inference_mode_enabled():
            return (features - self.mean) / self.scale
        used = (features, self.mean, self.scale)
        key = (*map(id, used), *(tensor._version for tensor in used))
        if self._kept is None or self._kept[0] != key:
            self._kept = key, features, (features - self.mean).div_(self.scale)
        return self._kept[2]

    def __getstate__(self) -> dict[str, Any]:
        """Without the last batch."""
        return {**self.__dict__, "_kept": None}

    def set_scale(self, X: Any) -> None:
        """Centre and scale by the training rows (n, p)."""
        mean = X.mean(axis=0, dtype="float64")
        spread = ((X - mean) ** 2).mean() ** 0.5
        self.mean.copy_(torch.as_tensor(mean))
        self.scale.fill_(float(spread) or 1.0)

    def settings(self) -> dict[str, Any]:
        """The widths of its layers."""
        return {"in_features": self.in_features, "widths": list(self.widths)}


def fresh_backbone(name: str, *, in_features: int = 0, geometry: Geometry | None = None, seed: int = 0) -> Backbone:
    """A backbone that starts from random weights: ``small-cnn``, ``mlp`` (one hidden layer) or ``linear`` (none)."""
    check_name("backbone", name, tuple(FRESH))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "small-cnn":
            return small_cnn(geometry)
        return FeatureBackbone(name, in_features, MLP_WIDTHS if name == "mlp" else ())
