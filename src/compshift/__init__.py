"""Classifiers that keep working on combinations of attributes they never saw in training.

Names are loaded when they are first used, so importing the package costs next to nothing.
"""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from compshift import data as data
    from compshift import features as features
    from compshift import methods as methods
    from compshift import metrics as metrics
    from compshift import nn as nn
    from compshift import training as training
    from compshift._errors import ExtrapolationWarning as ExtrapolationWarning
    from compshift._errors import InputError as InputError
    from compshift.core.additive import extrapolate_additive as extrapolate_additive
    from compshift.core.groups import GroupSpace as GroupSpace
    from compshift.core.hull import AffineHull as AffineHull
    from compshift.estimators.attributes import infer_attributes as infer_attributes
    from compshift.estimators.crm import CRMClassifier as CRMClassifier
    from compshift.estimators.crm_cv import CRMClassifierCV as CRMClassifierCV
    from compshift.estimators.diagnose import diagnose as diagnose
    from compshift.estimators.generative import AdditiveGaussian as AdditiveGaussian
    from compshift.estimators.logit_adjusted import LogitAdjustedClassifier as LogitAdjustedClassifier
    from compshift.estimators.model_selection import CombinationKFold as CombinationKFold
    from compshift.estimators.posthoc import AffineExtrapolation as AffineExtrapolation
    from compshift.training.load import load as load
    from compshift.training.onnx_export import export_onnx as export_onnx

__all__ = [
    "AdditiveGaussian",
    "AffineExtrapolation",
    "AffineHull",
    "CRMClassifier",
    "CRMClassifierCV",
    "CombinationKFold",
    "ExtrapolationWarning",
    "GroupSpace",
    "InputError",
    "LogitAdjustedClassifier",
    "__version__",
    "data",
    "diagnose",
    "export_onnx",
    "extrapolate_additive",
    "features",
    "infer_attributes",
    "load",
    "methods",
    "metrics",
    "nn",
    "training",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdditiveGaussian": "compshift.estimators.generative",
        "AffineExtrapolation": "compshift.estimators.posthoc",
        "AffineHull": "compshift.core.hull",
        "CRMClassifier": "compshift.estimators.crm",
        "CRMClassifierCV": "compshift.estimators.crm_cv",
        "CombinationKFold": "compshift.estimators.model_selection",
        "ExtrapolationWarning": "compshift._errors",
        "GroupSpace": "compshift.core.groups",
        "InputError": "compshift._errors",
        "LogitAdjustedClassifier": "compshift.estimators.logit_adjusted",
        "data": "compshift.data",
        "diagnose": "compshift.estimators.diagnose",
        "export_onnx": "compshift.training.onnx_export",
        "extrapolate_additive": "compshift.core.additive",
        "features": "compshift.features",
        "infer_attributes": "compshift.estimators.attributes",
        "load": "compshift.training.load",
        "methods": "compshift.methods",
        "metrics": "compshift.metrics",
        "nn": "compshift.nn",
        "training": "compshift.training",
    },
)
