"""The backbone of a run."""

from __future__ import annotations

from compshift._errors import InputError, an
from compshift.data.dataset import GroupedDataset
from compshift.data.images import Geometry
from compshift.nn.backbones import FRESH, Backbone, check_own_pooling, load_backbone
from compshift.nn.networks import FeatureBackbone, fresh_backbone
from compshift.training.batches import TrainingData

DEFAULTS = {"features": "linear", "images": "efficientnet-lite0", "text": "minilm"}


def named_backbone(
    name: str | None,
    data: GroupedDataset,
    seed: int,
    *,
    geometry: Geometry | None = None,
    max_length: int | None = None,
    default_length: int | None = None,
    pooling: str = "auto",
) -> Backbone:
    """The backbone of a name, or the usual one, for a data set's kind of samples; options as in ``load_backbone``."""
    name = name or DEFAULTS[data.kind]
    if FRESH.get(name) == data.kind:
        check_own_pooling(name, pooling)
        width = data.samples.shape[1] if data.kind == "features" else 0
        return fresh_backbone(name, in_features=width, geometry=geometry, seed=seed)
    return load_backbone(
        name, data.kind, geometry=geometry, max_length=max_length, default_length=default_length, pooling=pooling
    )


def choose_backbone(backbone: str | Backbone | None, rows: TrainingData, seed: int) -> Backbone:
    """The backbone by name, or as it is, once it is known to take the samples."""
    kind = rows.data.kind
    if backbone is None or isinstance(backbone, str):
        backbone = named_backbone(backbone, rows.data, seed)
    if not isinstance(backbone, Backbone):
        raise InputError(
            f"the backbone is {an(type(backbone).__name__)}: pass a subclass of compshift.nn.Backbone, a module with a "
            "name, the kind of samples it takes, and out_features"
        )
    if backbone.kind != kind:
        raise InputError(f"the backbone {backbone.name!r} takes {backbone.kind}, and the samples are {kind}")
    if isinstance(backbone, FeatureBackbone):
        backbone.set_scale(rows.data.samples[rows.train])
    return backbone
