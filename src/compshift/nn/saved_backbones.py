"""Saving and restoring a backbone's architecture, so that a trained model needs none of the original files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compshift._errors import InputError, check_name
from compshift.data.images import ImagePreprocessing
from compshift.nn.backbones import Backbone, VisionBackbone, efficientnet_lite0, require
from compshift.nn.huggingface import PooledVision, ProcessorPreprocessing, TextBackbone, load_config, load_part, quiet
from compshift.nn.networks import FeatureBackbone, small_cnn
from compshift.nn.pairs import PAIR_ENCODINGS

WHOLE_TO_PART = 10
"""Maximum number of weights of a model, as a multiple of the weights that a run's file has.

A run may use only a part of a model, such as the text model of CLIP.
"""


def save_architecture(backbone: Backbone, folder: Path) -> dict[str, Any]:
    """Return a description of a backbone's architecture as JSON values; write Hugging Face's files to ``folder``."""
    about: dict[str, Any] = {"name": backbone.name, "kind": backbone.kind}
    if isinstance(backbone, FeatureBackbone):
        return {**about, "type": "features", **backbone.settings()}
    if isinstance(backbone, VisionBackbone):
        is_builtin = isinstance(backbone.preprocessing, ImagePreprocessing)
        about["preprocessing"] = backbone.preprocessing.to_dict() if is_builtin else None
        if backbone.name in ("small-cnn", "efficientnet-lite0"):
            return {**about, "type": backbone.name}
    if getattr(backbone, "source_config", None) is None:
        return {**about, "type": "custom"}
    return {**about, **_save_huggingface(backbone, folder)}


def restore_architecture(about: dict[str, Any], folder: Path, n_weights: int) -> Backbone:
    """Build the backbone that ``save_architecture`` described; the caller loads its weights afterwards.

    ``n_weights`` is the number of weights in the run's file. A feature network with more, or a Hugging Face model with
    more than ``WHOLE_TO_PART`` times as many, raises an InputError before memory is allocated.
    """
    kind = about.get("type")
    if not isinstance(about.get("name"), str):
        raise InputError(f"the backbone's name is {about.get('name')!r}, which is not text")
    if kind == "features":
        build = partial(FeatureBackbone, about["name"], about["in_features"], about["widths"])
        check_size(build, n_weights)
        return build()
    if kind in ("small-cnn", "efficientnet-lite0"):
        backbone = small_cnn() if kind == "small-cnn" else efficientnet_lite0()
        backbone.preprocessing = ImagePreprocessing.from_dict(about["preprocessing"])
        return backbone
    if kind in ("huggingface-vision", "huggingface-text"):
        require("transformers")
        return _restore_huggingface(about, folder, n_weights)
    if kind == "custom":
        raise InputError(f"the backbone {about['name']!r} is not one of compshift's: pass it as backbone")
    raise InputError(f"the backbone has the type {kind!r}, which this release does not support")


def check_size(build: Callable[[], nn.Module], n_weights: int) -> None:
    """Check that a network has at most ``n_weights`` weights; it is built on the meta device, without memory."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build().parameters())
    if size > n_weights:
        raise InputError(f"the described network has {size:,} weights, but the file has {n_weights:,}")


def _save_huggingface(backbone: Any, folder: Path) -> dict[str, Any]:
    """Write a model's configuration, tokeniser and image processor to ``folder``; return the rest as JSON values."""
    folder.mkdir(parents=True, exist_ok=True)
    backbone.source_config.save_pretrained(folder)
    if isinstance(backbone, TextBackbone):
        backbone.tokeniser.save_pretrained(folder)
        keys = ("pooling", "normalised", "max_length", *(("dropout",) if backbone.dropout else ()))
        pairs = {"pairs": backbone.pairs} if backbone.pairs == "separate" else {}
        return {"type": "huggingface-text", **{key: getattr(backbone, key) for key in keys}, **pairs}
    if isinstance(backbone.preprocessing, ProcessorPreprocessing):
        backbone.preprocessing.processor.save_pretrained(folder)
    return {"type": "huggingface-vision", "pooling": backbone.network.pooling}


def _restore_huggingface(about: dict[str, Any], folder: Path, n_weights: int) -> Backbone:
    """Build a Hugging Face backbone with random weights, after checking the size of its configuration."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    with quiet():
        config = load_config(str(folder))
        load_part(lambda _, **options: _check_config(config, WHOLE_TO_PART * n_weights, **options), str(folder))
        model = load_part(lambda _, **options: AutoModel.from_config(config, **options), str(folder))  # type: ignore[no-untyped-call]
        if about["type"] == "huggingface-text":
            pairs = about.get("pairs", "joint")  # runs of older releases do not record it
            check_name("pairs", pairs, PAIR_ENCODINGS)
            text: Backbone = TextBackbone(
                about["name"],
                getattr(model, "text_model", model),
                load_part(AutoTokenizer.from_pretrained, str(folder)),
                source_config=config,
                pooling=about["pooling"],
                normalised=about["normalised"],
                max_length=about["max_length"],
                pairs=pairs,
                dropout=about.get("dropout", 0.0),  # only runs that use it store it
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
    """Check that a configuration needs at most ``most`` weights, without allocating them."""
    from transformers import AutoModel

    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModel.from_config(config, **options).parameters())  # type: ignore[no-untyped-call]
    if size > most:
        raise ValueError(f"its configuration needs {size:,} weights, more than {WHOLE_TO_PART} times those of the run")
