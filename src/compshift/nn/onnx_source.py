"""The head as what a graph of CRM is made from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from compshift.core.arrays import FloatArray
from compshift.estimators.fitted_crm import FittedCRM
from compshift.estimators.onnx_source import Layer, OnnxSource, centred, classifier_source
from compshift.nn.head import AdditiveEnergyHead
from compshift.nn.tensors import to_numpy


def trained_source(head: AdditiveEnergyHead, clf: FittedCRM, prior: Any = None) -> OnnxSource:
    """A trained head, with the prior and the biases of its classifier of features."""
    return replace(classifier_source(clf, prior), feature_mean=np.zeros(head.in_features), networks=_networks(head))


def head_source(head: AdditiveEnergyHead, prior: Any = None) -> OnnxSource:
    """A head whose biases are known, hidden layers included; the first attribute is the target."""
    log_weight = _array(head.log_score("uniform"))  # one constant more than −B*, and a constant cancels
    return OnnxSource(
        candidates=head.candidates,
        n_targets=1,
        feature_mean=np.zeros(head.in_features),
        networks=_networks(head),
        log_prior=head.candidates.log_prior("uniform" if prior is None else to_numpy(prior, "prior")),
        log_weight=log_weight,
    )


def _networks(head: AdditiveEnergyHead) -> tuple[tuple[Layer, ...], ...]:
    """The energies of each attribute."""
    return tuple(_network(layers) for layers in head.layers)


def _network(layers: nn.Module) -> tuple[Layer, ...]:
    """Layers of one attribute's energies."""
    chain = list(layers) if isinstance(layers, nn.Sequential) else [layers]
    *hidden, last = [_layer(module) for module in chain if isinstance(module, nn.Linear)]
    return (*hidden, last._replace(weights=centred(last.weights, (len(last.weights),))))


def _layer(linear: nn.Linear) -> Layer:
    weights = _array(linear.weight)
    return Layer(weights, np.zeros(len(weights)) if linear.bias is None else _array(linear.bias))


def _array(values: Tensor) -> FloatArray:
    return np.asarray(values.detach().cpu().double().numpy())
