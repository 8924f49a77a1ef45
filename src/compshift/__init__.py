"""Classifiers that keep working on combinations of attributes they never saw in training.

Names are loaded when they are first used, so importing the package costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from compshift import metrics as metrics
    from compshift._errors import ExtrapolationWarning as ExtrapolationWarning
    from compshift._errors import InputError as InputError
    from compshift.core.additive import extrapolate_additive as extrapolate_additive
    from compshift.core.groups import GroupSpace as GroupSpace
    from compshift.core.hull import AffineHull as AffineHull
    from compshift.estimators.crm import CRMClassifier as CRMClassifier
    from compshift.estimators.load import load as load

_HOMES = {
    "AffineHull": "compshift.core.hull",
    "CRMClassifier": "compshift.estimators.crm",
    "ExtrapolationWarning": "compshift._errors",
    "GroupSpace": "compshift.core.groups",
    "InputError": "compshift._errors",
    "extrapolate_additive": "compshift.core.additive",
    "load": "compshift.estimators.load",
}
_PACKAGES = ("metrics",)

__all__ = [
    "AffineHull",
    "CRMClassifier",
    "ExtrapolationWarning",
    "GroupSpace",
    "InputError",
    "__version__",
    "extrapolate_additive",
    "load",
    "metrics",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"compshift.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'compshift' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
