"""Configuration, tokeniser and image processor of a Hugging Face backbone, written to a folder and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compshift.data.images import ImagePreprocessing
from compshift.nn.backbones import Backbone, VisionBackbone
from compshift.nn.huggingface import load_part, quiet
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


def restore(about: dict[str, Any], folder: Path) -> Backbone:
    """The backbone, with random weights."""
    from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer

    with quiet():
        config = load_part(AutoConfig.from_pretrained, str(folder))
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
