"""Classifiers for combinations of attribute values that are absent from the training data.

Public names are loaded on first use, so importing the package is fast.
"""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from compshift._errors import ExtrapolationWarning as ExtrapolationWarning
    from compshift._errors import InputError as InputError
    from compshift._progress import show_progress as show_progress
    from compshift.core.affine import extrapolate_additive as extrapolate_additive
    from compshift.core.groups import GroupSpace as GroupSpace
    from compshift.core.hull import AffineHull as AffineHull
    from compshift.crm.boosting import CRMBoostingClassifier as CRMBoostingClassifier
    from compshift.crm.classifier import CRMClassifier as CRMClassifier
    from compshift.crm.combination_kfold import CombinationKFold as CombinationKFold
    from compshift.crm.cv import CRMClassifierCV as CRMClassifierCV
    from compshift.estimators.additive_gaussian import AdditiveGaussian as AdditiveGaussian
    from compshift.estimators.affine_extrapolation import AffineExtrapolation as AffineExtrapolation
    from compshift.estimators.compare import compare as compare
    from compshift.estimators.comparison import Comparison as Comparison
    from compshift.estimators.diagnose import diagnose as diagnose
    from compshift.estimators.infer_attributes import infer_attributes as infer_attributes
    from compshift.estimators.logit_adjusted import LogitAdjustedClassifier as LogitAdjustedClassifier
    from compshift.estimators.monitor import monitor as monitor
    from compshift.export.onnx import export_onnx as export_onnx
    from compshift.features.table_classifier import TableFeatures as TableFeatures
    from compshift.features.table_classifier import table_classifier as table_classifier
    from compshift.training.load import load as load
    from compshift.training.load import save as save

__all__ = [
    "AdditiveGaussian",
    "AffineExtrapolation",
    "AffineHull",
    "CRMBoostingClassifier",
    "CRMClassifier",
    "CRMClassifierCV",
    "CombinationKFold",
    "Comparison",
    "ExtrapolationWarning",
    "GroupSpace",
    "InputError",
    "LogitAdjustedClassifier",
    "TableFeatures",
    "__version__",
    "compare",
    "data",
    "diagnose",
    "export_onnx",
    "extrapolate_additive",
    "features",
    "hub",
    "infer_attributes",
    "load",
    "methods",
    "metrics",
    "mlflow",
    "monitor",
    "nn",
    "save",
    "show_progress",
    "table_classifier",
    "training",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdditiveGaussian": "compshift.estimators.additive_gaussian",
        "AffineExtrapolation": "compshift.estimators.affine_extrapolation",
        "AffineHull": "compshift.core.hull",
        "CRMBoostingClassifier": "compshift.crm.boosting",
        "CRMClassifier": "compshift.crm.classifier",
        "CRMClassifierCV": "compshift.crm.cv",
        "CombinationKFold": "compshift.crm.combination_kfold",
        "Comparison": "compshift.estimators.comparison",
        "ExtrapolationWarning": "compshift._errors",
        "GroupSpace": "compshift.core.groups",
        "InputError": "compshift._errors",
        "LogitAdjustedClassifier": "compshift.estimators.logit_adjusted",
        "TableFeatures": "compshift.features.table_classifier",
        "compare": "compshift.estimators.compare",
        "data": "compshift.data",
        "diagnose": "compshift.estimators.diagnose",
        "export_onnx": "compshift.export.onnx",
        "extrapolate_additive": "compshift.core.affine",
        "features": "compshift.features",
        "hub": "compshift.hub",
        "infer_attributes": "compshift.estimators.infer_attributes",
        "load": "compshift.training.load",
        "methods": "compshift.methods",
        "metrics": "compshift.metrics",
        "mlflow": "compshift.mlflow",
        "monitor": "compshift.estimators.monitor",
        "nn": "compshift.nn",
        "save": "compshift.training.load",
        "show_progress": "compshift._progress",
        "table_classifier": "compshift.features.table_classifier",
        "training": "compshift.training",
    },
)
