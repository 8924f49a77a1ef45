"""Configuration, tokeniser and image processor of a Hugging Face backbone, written to a folder and read again.

A backbone's architecture on disk, so that a trained model can be built again without the original.
"""

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
from compshift.nn.huggingface import PooledVision, ProcessorPreprocessing, TextBackbone, load_config, load_part, quiet
from compshift.nn.networks import FeatureBackbone, small_cnn


def save(backbone: Any, folder: Path) -> dict[str, Any]:
    """Write what ``restore`` needs beside the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    backbone.source_config.save_pretrained(folder)
    if isinstance(backbone, TextBackbone):
        backbone.tokeniser.save_pretrained(folder)
        keys = ("pooling", "normalised", "max_length")
        return {"type": "huggingface-text", **{key: getattr(backbone, key) for key in keys}}
    if isinstance(backbone.preprocessing, ProcessorPreprocessing):
        backbone.preprocessing.processor.save_pretrained(folder)
    return {"type": "huggingface-vision", "pooling": backbone.network.pooling}


PARTS = 10
"""A whole model may be this many times as large as the part of it that was trained, such as its text model."""


def restore(about: dict[str, Any], folder: Path, n_weights: int) -> Backbone:
    """The backbone, with random weights; a configuration that asks for far more than there are is refused."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    with quiet():
        config = load_config(str(folder))
        load_part(lambda _, **options: _check_config(config, PARTS * n_weights, **options), str(folder))
        model = load_part(lambda _, **options: AutoModel.from_config(config, **options), str(folder))  # type: ignore[no-untyped-call]
        if about["type"] == "huggingface-text":
            text: Backbone = TextBackbone(
                about["name"],
                getattr(model, "text_model", model),
                load_part(AutoTokenizer.from_pretrained, str(folder)),
                source_config=config,
                pooling=about["pooling"],
                normalised=about["normalised"],
                max_length=about["max_length"],
            )
            return text
        if about["preprocessing"] is None:
            processor = load_part(AutoImageProcessor.from_pretrained, str(folder))
            preprocessing: Any = ProcessorPreprocessing(processor)
        else:
            preprocessing = ImagePreprocessing.from_dict(about["preprocessing"])
    network = PooledVision(getattr(model, "vision_model", model), about["pooling"])
    return VisionBackbone(about["name"], network, preprocessing, source_config=config)


def _check_config(config: Any, most: int, **options: Any) -> None:
    from transformers import AutoModel

    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModel.from_config(config, **options).parameters())  # type: ignore[no-untyped-call]
    if size > most:
        raise ValueError(f"its configuration asks for {size:,} weights, and the run has not even a tenth of that")


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
    return {**about, **save(backbone, folder)}


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
