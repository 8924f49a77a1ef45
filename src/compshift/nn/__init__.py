"""PyTorch backbones and the CRM head. Needs ``compshift[torch]``."""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

if TYPE_CHECKING:
    from compshift.nn.backbones import Backbone as Backbone
    from compshift.nn.backbones import load_backbone as load_backbone
    from compshift.nn.head import AdditiveEnergyHead as AdditiveEnergyHead

__all__ = ["AdditiveEnergyHead", "Backbone", "load_backbone"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdditiveEnergyHead": "compshift.nn.head",
        "Backbone": "compshift.nn.backbones",
        "load_backbone": "compshift.nn.backbones",
    },
)
