"""Hugging Face vision models as backbones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._errors import InputError, check_name
from compshift.data.geometry import SIZE, Geometry, scaled
from compshift.data.images import RESAMPLING, ImagePreprocessing
from compshift.nn.backbones import VisionBackbone, black_image
from compshift.nn.huggingface import config_digest, load_model, load_part, quiet

POOLING = ("auto", "pooler", "cls", "mean")


class ProcessorPreprocessing:
    """A Hugging Face image processor, which gives the numbers that its network takes."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def pixels(self, image: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The prepared image, (height, width, 3)."""
        values = self.processor(image, return_tensors="np")["pixel_values"][0]  # (3, h, w)
        return np.ascontiguousarray(np.moveaxis(values, 0, -1), dtype=np.float32)

    def normalise(self, pixels: Any) -> Any:
        """Nothing is left to do."""
        return pixels

    def to_dict(self) -> dict[str, Any]:
        """The processor's settings."""
        content: dict[str, Any] = json.loads(self.processor.to_json_string())
        return content


class PooledVision(nn.Module):
    """A vision model followed by the pooling of its output."""

    def __init__(self, model: nn.Module, pooling: str) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling

    def settings(self) -> dict[str, Any]:
        """What decides about the features beside the weights."""
        return {"pooling": self.pooling, "model": config_digest(self.model)}

    def forward(self, pixel_values: Tensor) -> Tensor:
        output = self.model(pixel_values)
        if self.pooling == "pooler":
            return output.pooler_output.flatten(1)  # type: ignore[no-any-return]
        hidden = output.last_hidden_state
        if hidden.ndim == 4:  # a map (n, c, h, w)
            return hidden.mean(dim=(2, 3))  # type: ignore[no-any-return]
        return hidden[:, 0] if self.pooling == "cls" else hidden.mean(dim=1)  # type: ignore[no-any-return]


def vision_backbone(name: str, *, geometry: Geometry | None = None, pooling: str = "auto") -> VisionBackbone:
    """A vision model with the preprocessing that it was published with, or with another geometry.

    ``auto`` takes the model's own pooled output if its weights came with it, and otherwise the class token of a
    transformer or the mean of a convolutional map.
    """
    check_name("pooling", pooling, POOLING)
    from transformers import AutoImageProcessor

    with quiet():
        processor = load_part(AutoImageProcessor.from_pretrained, name)
    model, missing = load_model(name)
    config = model.config
    model = getattr(model, "vision_model", model)
    preprocessing: Any = ProcessorPreprocessing(processor)
    if geometry is not None:
        preprocessing = _with_geometry(processor, geometry)
    pooled = load_part(lambda _, **__: _has_pooled_output(model, preprocessing), name)
    own_pooler = pooled and not any("pooler" in key for key in missing)
    if pooling == "pooler" and not own_pooler:
        raise InputError(f"the model {name!r} comes without weights for its pooler: use --pooling cls or mean")
    chosen = ("pooler" if own_pooler else "cls") if pooling == "auto" else pooling
    return VisionBackbone(name, PooledVision(model, chosen), preprocessing, source_config=config)


@torch.inference_mode()
def _has_pooled_output(model: nn.Module, preprocessing: Any) -> bool:
    """Whether the model pools its output itself; any error that model and preprocessing can make shows here."""
    return getattr(model(black_image(preprocessing)), "pooler_output", None) is not None


def _with_geometry(processor: Any, geometry: Geometry) -> ImagePreprocessing:
    """The processor's colours and size with another way of cutting and scaling."""
    settings = processor.to_dict()
    size = settings.get("crop_size") or settings.get("size") or {}
    side = size.get("height") or size.get("shortest_edge") or SIZE
    resample = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
    plain = not settings.get("do_normalize", True)
    return ImagePreprocessing(
        geometry=scaled(geometry, int(side)),
        mean=(0.0,) * 3 if plain else tuple(settings["image_mean"]),
        std=(1.0,) * 3 if plain else tuple(settings["image_std"]),
        scale=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0,
        resample=resample.get(int(settings.get("resample", 2)), RESAMPLING[2]),
    )
