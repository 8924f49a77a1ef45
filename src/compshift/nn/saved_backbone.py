"""A backbone's architecture on disk, so that a trained model can be built again without the original."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compshift._errors import InputError
from compshift.data.images import ImagePreprocessing
from compshift.nn.backbones import Backbone, VisionBackbone, efficientnet_lite0
from compshift.nn.small_networks import FeatureBackbone, small_cnn


def save_architecture(backbone: Backbone, folder: Path) -> dict[str, Any]:
    """Everything but the weights: small things as the result, for JSON, and files of a model in ``folder``."""
    about: dict[str, Any] = {"name": backbone.name, "kind": backbone.kind}
    if isinstance(backbone, FeatureBackbone):
        return {**about, "type": "features", **backbone.settings()}
    if isinstance(backbone, VisionBackbone):
        own = isinstance(backbone.preprocessing, ImagePreprocessing)
        about["preprocessing"] = backbone.preprocessing.to_dict() if own else None
        if backbone.name in ("small-cnn", "efficientnet-lite0"):
            return {**about, "type": backbone.name}
    if getattr(backbone, "source_config", None) is None:
        return {**about, "type": "custom"}
    from compshift.nn import huggingface_saved

    return {**about, **huggingface_saved.save(backbone, folder)}


def restore_architecture(about: dict[str, Any], folder: Path, n_weights: int) -> Backbone:
    """The backbone that ``save_architecture`` described, with weights that are yet to be loaded.

    One that would need more than the ``n_weights`` that there are is refused before it takes their memory.
    """
    kind = about.get("type")
    if not isinstance(about.get("name"), str):
        raise InputError(f"the backbone has the name {about.get('name')!r}")
    if kind == "features":
        build = partial(FeatureBackbone, about["name"], about["in_features"], about["widths"])
        check_size(build, n_weights)
        return build()
    if kind in ("small-cnn", "efficientnet-lite0"):
        backbone = small_cnn() if kind == "small-cnn" else efficientnet_lite0()
        backbone.preprocessing = ImagePreprocessing.from_dict(about["preprocessing"])
        return backbone
    if kind in ("huggingface-vision", "huggingface-text"):
        from compshift.nn.backbones import require
        from compshift.nn.huggingface_saved import restore

        require("transformers")
        return restore(about, folder, n_weights)
    if kind == "custom":
        raise InputError(f"the backbone {about['name']!r} is not one of compshift's: pass it, as backbone=")
    raise InputError(f"the backbone is of the kind {kind!r}, which this release does not know")


def check_size(build: Callable[[], nn.Module], n_weights: int) -> None:
    """Refuse a network with more weights than there are; it is built without memory to count them."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build().parameters())
    if size > n_weights:
        raise InputError(f"the network that is described has {size:,} weights, and the file has {n_weights:,}")
