"""Arrays of a CRM model that the ONNX graph needs: energies, weights and prior, in float64.

``onnx_source`` accepts a fitted classifier, a ``CRMClassifier`` behind scalers in a pipeline, a head, or a classifier
trained by CRM. It needs neither the package onnx nor, for a fitted classifier, PyTorch.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from compshift._errors import InputError, an
from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.crm.boosting import CRMBoostingClassifier
from compshift.crm.classifier import CRMClassifier
from compshift.crm.cv import CRMClassifierCV
from compshift.crm.linear_columns import LinearColumns, TreesAndColumns
from compshift.crm.pipelines import without_scalers
from compshift.crm.trees import Trees

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compshift.nn.head import AdditiveEnergyHead


class Layer(NamedTuple):
    """Linear layer with outputs ``weights @ x + intercept``."""

    weights: FloatArray  # (q, p)
    intercept: FloatArray  # (q,)


@dataclass(frozen=True, eq=False)
class OnnxSource:
    """Arrays of a CRM model: energies as networks with ReLU between layers, log prior and log weight of the groups."""

    candidates: Candidates
    n_targets: int
    feature_mean: FloatArray  # (p,), or (q,) with a basis
    networks: tuple[tuple[Layer, ...], ...]  # their concatenated outputs are the energies (n, D)
    log_prior: FloatArray  # (g,)
    log_weight: FloatArray  # (g,) score of each group without its prior: −B(z), plus the offset if the group is unseen
    feature_names: tuple[str, ...] | None = None
    feature_transform: str = "none"  # of the features, one of ``crm.problem.TRANSFORMS``
    basis: Trees | LinearColumns | TreesAndColumns | None = None  # computes features of energies from mixed columns
    categories: tuple[tuple[Any, ...] | None, ...] | None = None  # (p,) values of each column; None for numbers

    @property
    def space(self) -> GroupSpace:
        """All attributes, targets first."""
        return self.candidates.space

    @property
    def n_features(self) -> int:
        """Number of columns of the input."""
        return len(self.feature_mean) if self.basis is None else self.basis.n_features


def onnx_source(model: Any, prior: Any = None) -> OnnxSource:
    """Return the arrays of any model that can be exported; ``prior``, if passed, replaces its current prior."""
    model, steps = without_scalers(model)
    if steps:
        name, step = steps[-1]
        raise InputError(
            f"the step {name!r} ({type(step).__name__}) of the pipeline cannot be written as ONNX: export the last "
            "step by itself, and pass it the features that the other steps make"
        )
    if isinstance(model, CRMClassifier | CRMClassifierCV | CRMBoostingClassifier):
        return classifier_source(model, prior)
    if "compshift.nn.head" in sys.modules:  # otherwise the model cannot be a head, and torch is not imported
        from compshift.nn.head import AdditiveEnergyHead

        if isinstance(model, AdditiveEnergyHead):
            return _head_source(model, prior)
        trained = sys.modules.get("compshift.training.classifier")
        if trained is not None and isinstance(model, trained.TrainedClassifier):
            if isinstance(model.model.head, AdditiveEnergyHead):
                return _trained_source(model.model.head, model.head_, prior)
            raise InputError(
                f"the model was trained with {model.method.name!r}, which predicts classes but not groups: train it "
                "with 'crm' or 'crm-resolved', the methods whose models can be written as ONNX"
            )
    given = f"the class {model.__name__}" if isinstance(model, type) else an(type(model).__name__)
    stored = f", for example compshift.load({fspath(model)!r})" if isinstance(model, str | PathLike) else ""
    raise InputError(
        f"{given} cannot be written as ONNX: pass a fitted CRMClassifier, CRMClassifierCV or CRMBoostingClassifier, an "
        f"AdditiveEnergyHead, or a TrainedClassifier of CRM{stored}"
    )


def classifier_source(clf: CRMClassifier | CRMClassifierCV | CRMBoostingClassifier, prior: Any = None) -> OnnxSource:
    """Return the arrays of a fitted classifier; ``prior``, if passed, replaces its current prior."""
    check_is_fitted(clf)
    without_prior = copy.copy(clf)
    without_prior.log_prior_ = np.zeros(len(clf.groups_))
    model, columns = clf._model, getattr(clf, "_columns", None)
    candidates = model.candidates
    names = getattr(clf, "feature_names_in_", None)
    return OnnxSource(
        candidates=candidates,
        n_targets=len(clf.targets_.names),
        feature_mean=model.feature_mean,
        networks=((Layer(_centred(model.coef, clf.space_.cardinalities), np.zeros(len(model.coef))),),),
        log_prior=clf.log_prior_ if prior is None else candidates.log_prior(prior),
        log_weight=without_prior._log_score(),
        feature_names=None if names is None else tuple(str(name) for name in names),
        feature_transform=model.feature_transform,
        basis=model.basis,
        categories=None if columns is None else columns.categories,
    )


def _trained_source(head: AdditiveEnergyHead, clf: Any, prior: Any) -> OnnxSource:
    """Return the arrays of a trained model: energies of its network; prior and biases of ``clf``, its ``head_``."""
    return replace(classifier_source(clf, prior), feature_mean=np.zeros(head.in_features), networks=_networks(head))


def _head_source(head: AdditiveEnergyHead, prior: Any) -> OnnxSource:
    """Return the arrays of a head whose biases are extrapolated; its first attribute is the target."""
    from compshift.nn.tensors import to_numpy

    return OnnxSource(
        candidates=head.candidates,
        n_targets=1,
        feature_mean=np.zeros(head.in_features),
        networks=_networks(head),
        log_prior=head.candidates.log_prior("uniform" if prior is None else to_numpy(prior, "prior")),
        log_weight=_array(head.log_score("uniform")),  # −B* plus a constant that cancels
    )


def _networks(head: AdditiveEnergyHead) -> tuple[tuple[Layer, ...], ...]:
    """Return, for each attribute, the layers of the network that computes its energies."""
    return tuple(_network(layers) for layers in head.layers)


def _network(layers: nn.Module) -> tuple[Layer, ...]:
    """Return the linear layers of one attribute's network, with the last one centred."""
    from torch import nn

    chain = list(layers) if isinstance(layers, nn.Sequential) else [layers]
    *hidden, last = [_layer(module) for module in chain if isinstance(module, nn.Linear)]
    return (*hidden, last._replace(weights=_centred(last.weights, (len(last.weights),))))


def _layer(linear: nn.Linear) -> Layer:
    weights = _array(linear.weight)
    return Layer(weights, np.zeros(len(weights)) if linear.bias is None else _array(linear.bias))


def _array(values: Tensor) -> FloatArray:
    return np.asarray(values.detach().cpu().double().numpy())


def _centred(weights: FloatArray, cardinalities: tuple[int, ...]) -> FloatArray:
    """Subtract from weights (D, q), for each attribute, their mean over its values.

    This shifts the energies of all groups equally, which cancels in every probability. Without it, rounding errors of
    a large common part would hide the differences between groups, for features far from the training data.
    """
    blocks = np.split(weights, np.cumsum(cardinalities)[:-1])
    return np.concatenate([block - block.mean(axis=0) for block in blocks])
