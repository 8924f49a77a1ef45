"""The backbone of a run."""

from __future__ import annotations

from compshift._errors import InputError
from compshift.nn.backbones import FRESH, Backbone, load_backbone
from compshift.nn.small_networks import FeatureBackbone, fresh_backbone
from compshift.training.split import TrainingData

DEFAULTS = {"features": "linear", "images": "efficientnet-lite0", "text": "minilm"}


def choose_backbone(backbone: str | Backbone | None, rows: TrainingData, seed: int) -> Backbone:
    """The backbone by name, or as it is, once it is known to take the samples."""
    kind = rows.data.kind
    if backbone is None:
        backbone = DEFAULTS[kind]
    if isinstance(backbone, str):
        if FRESH.get(backbone) == kind:
            width = rows.data.samples.shape[1] if kind == "features" else 0
            backbone = fresh_backbone(backbone, in_features=width, seed=seed)
        else:
            backbone = load_backbone(backbone, kind)
    if backbone.kind != kind:
        raise InputError(f"the backbone {backbone.name!r} takes {backbone.kind}, and the samples are {kind}")
    if isinstance(backbone, FeatureBackbone):
        backbone.set_scale(rows.data.samples[rows.train])
    return backbone
