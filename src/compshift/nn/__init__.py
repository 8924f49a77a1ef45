"""PyTorch: backbones and heads. Needs ``compshift[torch]``."""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

if TYPE_CHECKING:
    from compshift.nn.backbones import Backbone as Backbone
    from compshift.nn.backbones import load_backbone as load_backbone

__all__ = ["Backbone", "load_backbone"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "compshift.nn.backbones"))
