"""Configuration, tokeniser and image processor of a Hugging Face backbone, written to a folder and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from compshift.data.images import ImagePreprocessing
from compshift.nn.backbones import Backbone, VisionBackbone
from compshift.nn.huggingface import load_config, load_part, quiet
from compshift.nn.huggingface_text import TextBackbone
from compshift.nn.huggingface_vision import PooledVision, ProcessorPreprocessing


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
