"""Networks that give the energies of an attribute's values.

The CRM head: one energy per attribute value on top of any network.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._checks import MAX_TABLE_GROUPS, check_codes, check_count, check_flag, check_list, check_sample_weight
from compshift._errors import InputError, check_name, rough
from compshift.core.bias import ExtrapolatedBias
from compshift.core.candidates import Candidates, candidate_groups
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.core.posterior import group_log_posterior, marginal_log_posterior
from compshift.distributed import ALONE, Collective, check_processes
from compshift.nn.state import HeadState, SeenGroups
from compshift.nn.steps import all_codes, energy_blocks, step_one_loss, step_two_bias
from compshift.nn.tensors import (
    check_energies,
    check_features,
    evaluation_mode,
    full_precision,
    no_autocast,
    row_weights,
    to_numpy,
)

MAX_WEIGHTS = 1 << 38
"""More weights than this, a terabyte of them, are never made."""


def energy_layers(
    in_features: int, cardinalities: Sequence[int], hidden: int | Sequence[int] | None = None
) -> nn.ModuleList:
    """One network per attribute, linear or with hidden layers; the last layer is zero and has no intercept.

    An intercept would be one number per value, which the bias of the groups takes in. Energies that start at zero are
    nearer to their optimum than random ones, which few steps never forget.
    """
    widths: list[Any] = []
    if hidden is not None:
        widths = [hidden] if np.ndim(hidden) == 0 else check_list(hidden, "hidden", "widths of layers")
    sizes = [in_features, *(check_count(width, "hidden") for width in widths)]
    count = len(cardinalities) * sum(a * b for a, b in pairwise(sizes)) + sizes[-1] * sum(cardinalities)
    if count > MAX_WEIGHTS:
        raise InputError(
            f"the head would have {rough(count)} weights, more than a machine can hold: choose fewer in_features "
            f"({in_features!r}), narrower hidden layers ({hidden!r}) or attributes of fewer values"
        )
    return nn.ModuleList(_network(sizes, cardinality) for cardinality in cardinalities)


def _network(sizes: Sequence[int], out_features: int) -> nn.Module:
    layers: list[nn.Module] = [layer for size in pairwise(sizes) for layer in (nn.Linear(*size), nn.ReLU())]
    last = nn.Linear(sizes[-1], out_features, bias=False)
    nn.init.zeros_(last.weight)
    return nn.Sequential(*layers, last) if layers else last


BIASES = ("extrapolated", "learned")
DAMAGED = "training has diverged, or the state that was loaded is damaged; train or load it again"


class AdditiveEnergyHead(HeadState):
    r"""Energies of every attribute value, and with them the probabilities of every combination, seen or not.

    In training (paper, eq. "CRM1") ``loss`` is the negative log-likelihood of the groups that training has. Afterwards
    ``extrapolate`` computes the bias of every group from the training inputs (eq. "qz"), and ``log_prob`` and
    ``marginal_log_prob`` predict under any prior (eq. "hatq").

    Parameters
    ----------
    in_features : int
        Number of features that the network before it gives.
    cardinalities : sequence of int, or GroupSpace
        Number of values of each attribute. With a GroupSpace, messages and priors use its names.
    hidden : int or sequence of int, optional
        Widths of hidden layers. Each attribute then has a network of its own; without it energies are linear. The last
        layer starts at zero either way.
    groups : array (g, m), optional
        Codes of the candidate groups, where the attributes have too many combinations to hold them all.

    Parameters and buffers exist from the start, so a checkpoint of the state predicts by itself: ``learned_bias`` (g,),
    ``group_weight`` (g,), the training rows of each candidate, ``bias`` (g,), B*, ``effective_sample_size`` (g,) and
    ``mean_energy`` (D,). Those of length g follow ``groups``. Buffers keep 64 bits when the head is cast to fewer.

    Training determines the groups inside the affine hull of its own (``head.candidates.inside_hull``), and no others;
    the prior ``"hull"`` leaves the others out. Under DistributedDataParallel the loss must be part of the forward pass
    that is wrapped: ``head(features, codes)`` is the loss.

    Examples
    --------
    >>> head = AdditiveEnergyHead(5, [2, 2])
    >>> codes = torch.tensor([[0, 1], [1, 0], [1, 1], [1, 1]])
    >>> head.set_train_groups(codes)
    >>> features = torch.randn(4, 5)
    >>> round(head.loss(features, codes).item(), 4)  # energies start at zero: the entropy of the training groups
    1.0397
    >>> _ = head.extrapolate([features])
    >>> head.marginal_log_prob(features, attribute=0).exp()[0].detach()
    tensor([0.5000, 0.5000])
    """

    group_weight: Tensor
    bias: Tensor
    effective_sample_size: Tensor
    mean_energy: Tensor

    def __init__(
        self,
        in_features: int,
        cardinalities: Sequence[int] | GroupSpace,
        hidden: int | Sequence[int] | None = None,
        *,
        groups: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = check_count(in_features, "in_features")
        self.space = _space(cardinalities)
        if groups is None and self.space.n_groups > MAX_TABLE_GROUPS:
            raise InputError(
                f"the attributes have {rough(self.space.n_groups)} combinations, too many to hold at once: pass "
                "groups= with the codes of those to predict"
            )
        nothing = AffineHull(self.space, np.zeros((0, len(self.space.names)), dtype=np.int64))
        self.groups = candidate_groups("all" if groups is None else groups, self.space, nothing)
        self.layers = energy_layers(self.in_features, self.space.cardinalities, hidden)
        self.learned_bias = nn.Parameter(torch.zeros(len(self.groups)))
        unknown = torch.full((len(self.groups),), math.nan, dtype=torch.float64)
        self.register_buffer("group_weight", torch.zeros_like(unknown))
        self.register_buffer("bias", unknown)
        self.register_buffer("effective_sample_size", unknown.clone())
        self.register_buffer("mean_energy", torch.full((self.space.width,), math.nan, dtype=torch.float64))

    def forward(self, features: Tensor, codes: Any = None) -> Tensor:
        """Energies (n, D) of every attribute value, low where the value is likely; with ``codes``, the loss.

        The latter is for DistributedDataParallel, which must see the pass forward that ends in the loss. Autocasting
        does not reach the head: biases that follow from energies of few digits would be off.
        """
        if codes is not None:
            return self.loss(features, codes)
        check_features(features, self.in_features, self.learned_bias.device)
        with no_autocast(features):
            features = features.to(self.learned_bias.dtype)
            return torch.cat([layer(features) for layer in self.layers], dim=1)

    def last_features(self, features: Tensor) -> Tensor:
        """What the last layers take, side by side: the features themselves, or those of the hidden layers."""
        hidden = [layer[:-1](features) for layer in self.layers if isinstance(layer, nn.Sequential)]
        return torch.cat(hidden, dim=1) if hidden else features

    def last_weights(self) -> Tensor:
        """Weights (D, q) by which energies follow from ``last_features`` (n, q)."""
        hidden = isinstance(self.layers[0], nn.Sequential)
        last = [layer[-1] if isinstance(layer, nn.Sequential) else layer for layer in self.layers]
        weights: list[Any] = [layer.weight for layer in last]
        return torch.block_diag(*weights) if hidden else torch.cat(weights)  # type: ignore[no-untyped-call]

    def set_train_groups(self, codes: Any, counts: Any = None) -> None:
        """Say which groups training has, and how many rows each.

        ``codes`` are those of the groups (q, m) with their ``counts`` (q,); or, without ``counts``, those of all rows
        (n, m), or an iterable of batches, such as a DataLoader, whose last part is the codes. With a sampler that
        balances, the counts must be those of what it draws; a loader that drops its last batch leaves rows out.
        """
        codes = to_numpy(codes, "codes")
        if counts is None:
            codes = all_codes(codes, len(self.space.names))
        codes = check_codes(codes, self.space.cardinalities)
        if not len(codes):
            raise InputError("codes is empty: pass the codes of the training rows")
        weight = check_sample_weight(to_numpy(counts, "counts"), len(codes), "counts")
        position = self.space.locate(codes, self.groups)
        if (position < 0).any():
            outside = self.space.label(codes[int(np.argmax(position < 0))])
            raise InputError(f"training has the group {outside}, which is not among the candidate groups: add it")
        total = np.bincount(position, weights=weight, minlength=len(self.groups))
        self.group_weight.copy_(torch.as_tensor(total))
        for result in (self.bias, self.effective_sample_size, self.mean_energy):
            result.fill_(math.nan)  # they were of other groups
        self._seen = None

    @property
    def seen(self) -> SeenGroups:
        """The training groups, ready for the sums of step 1 on the head's device."""
        device = self.learned_bias.device
        if self._seen is None or self._seen.device != device:
            weight = to_numpy(self.group_weight, "group_weight")
            if not weight.any():
                raise InputError("the head knows no training groups: call set_train_groups first")
            if not math.isfinite(weight.sum()) or weight.min() < 0:
                raise InputError(f"group_weight is negative, NaN or infinite: {DAMAGED}")
            self._seen = SeenGroups.of(self.space, self.groups, weight, device)
        return self._seen

    @property
    def candidates(self) -> Candidates:
        """The groups that can be predicted, and what training had of them."""
        return self.seen.candidates

    def loss(self, features: Tensor, codes: Any, *, sample_weight: Any = None, reduction: str = "mean") -> Tensor:
        """Negative log-likelihood of the rows' groups among the training groups (paper, eq. "CRM1").

        ``features`` (b, p), ``codes`` (b, m) integers; the ``reduction`` is ``"mean"`` or ``"sum"`` over the rows,
        weighted by ``sample_weight`` (b,).
        """
        check_name("reduction", reduction, ("mean", "sum"))
        energies = self(features)
        position = self.seen.locate(codes, len(energies))
        weight = torch.ones(
            len(energies), dtype=torch.promote_types(energies.dtype, torch.float32), device=energies.device
        )
        if sample_weight is not None:
            weight = row_weights(sample_weight, len(energies), weight, "sample_weight")
        if reduction == "mean":
            if not len(energies):
                raise InputError("features has no rows, and no mean: pass a batch of at least one, or reduction='sum'")
            total = weight.sum()
            if not bool(total > 0):
                raise InputError("sample_weight is zero for every row: at least one must have a weight above 0")
            if not bool(total < math.inf):
                raise InputError("sample_weight is too large to add up: divide it by its mean")
            weight = weight / total
        return step_one_loss(energies, position, weight, self.seen, self.learned_bias)

    @torch.no_grad()
    def extrapolate(
        self,
        batches: Iterable[Any],
        backbone: Callable[..., Any] | None = None,
        *,
        weighted: bool = False,
        processes: Collective = ALONE,
    ) -> ExtrapolatedBias:
        """Compute B* and its effective sample size for every candidate group, from one pass over the training inputs.

        ``batches`` are tensors of features or, with a ``backbone``, a module or a function, of its inputs; of a tuple
        or list the first part is taken, so a DataLoader will do. With ``weighted`` the second part is the weight of
        each row, which the training groups' counts must describe too. The head and the backbone are in eval mode
        meanwhile. With several ``processes`` each passes its own share of the rows. Sums are in 64 bits.
        """
        if isinstance(batches, Tensor):
            raise InputError("batches is one tensor: pass a list of batches, [features], or a DataLoader")
        if backbone is not None and not callable(backbone):
            raise InputError(f"backbone is {backbone!r}: pass a module or a function, or none for batches of features")
        weighted = check_flag(weighted, "weighted")
        check_processes(processes)
        log_score = self._train_log_score()
        with evaluation_mode(self, *([backbone] if isinstance(backbone, nn.Module) else [])):
            blocks = energy_blocks(self, self.candidates.table, batches, backbone, weighted)
            result, mean_energy = step_two_bias(blocks, self.seen, log_score, processes)
        self.bias.copy_(result.bias)
        self.effective_sample_size.copy_(result.effective_sample_size)
        self.mean_energy.copy_(torch.as_tensor(mean_energy))
        self._age.start(self)
        return result

    @property
    def bias_gap(self) -> float:
        """Largest ``|B* − B|`` over the training groups, which is 0 where step 1 is at its optimum."""
        index = self.seen.index
        return float((self.bias - self.learned_bias.detach())[index].abs().max())

    def log_prob(self, features: Tensor, prior: Any = None, *, codes: Any = None, bias: str = "extrapolated") -> Tensor:
        """Log q(z|x) of every candidate group in the order of ``groups``, (n, g), or of the listed ones, (n, q).

        ``prior`` is ``"uniform"`` (the default), ``"hull"``, ``"train"``, an array over all groups or a mapping.
        """
        position = None
        if codes is not None:
            position = self.space.locate(check_codes(to_numpy(codes, "codes"), self.space.cardinalities), self.groups)
        energies = check_energies(full_precision(self(features)))
        with no_autocast(energies):
            return group_log_posterior(energies, self.candidates.table, self.log_score(prior, bias), position)  # type: ignore[no-any-return]

    def marginal_log_prob(
        self, features: Tensor, attribute: int | str = 0, prior: Any = None, *, bias: str = "extrapolated"
    ) -> Tensor:
        """Log q(z_i|x) of every value of one attribute, (n, d_i), without a column per group."""
        attribute = self._attribute(attribute)
        energies = check_energies(full_precision(self(features)))
        with no_autocast(energies):
            return marginal_log_posterior(energies, self.candidates.table, self.log_score(prior, bias), attribute)  # type: ignore[no-any-return]

    def _attribute(self, attribute: int | str) -> int:
        """The position of an attribute that is named or numbered."""
        if isinstance(attribute, str):
            check_name("attribute", attribute, self.space.names)
            return self.space.names.index(attribute)
        if not isinstance(attribute, Integral) or not 0 <= attribute < len(self.space.names):
            raise InputError(
                f"attribute is {attribute!r}: pass a name, or a number from 0 to {len(self.space.names) - 1}"
            )
        return int(attribute)

    def log_score(self, prior: Any = None, bias: str = "extrapolated") -> Tensor:
        """Log q(z) − B(z) of each candidate, (g,), in 64 bits.

        The learned bias has no value for unseen groups; it is 0 there once energies have mean 0 over the training
        rows, and the biases of the training groups mean 0 over theirs.
        """
        check_name("bias", bias, BIASES)
        if bool(torch.isnan(self.bias).any()):
            raise InputError("the bias of unseen groups is not known: call extrapolate with the training inputs first")
        if self._age.outdated(self):
            warnings.warn(
                "the head was trained further since extrapolate: its biases belong to earlier weights; call it again",
                UserWarning,
                stacklevel=3,
            )
        values = self.bias if bias == "extrapolated" else self.centred_learned_bias()
        if not bool(torch.isfinite(values).all()):
            raise InputError(f"the {bias} bias is NaN or infinite: {DAMAGED}")
        given = "uniform" if prior is None else to_numpy(prior, "prior")
        return torch.as_tensor(self.candidates.log_prior(given)).to(self.bias) - values

    def centred_learned_bias(self) -> Tensor:
        """B̂ (g,) as it enters with the energies as they are: −⟨σ(z), Ē⟩ for unseen groups, up to one constant."""
        values = torch.as_tensor(self.groups + self.space.offsets, device=self.mean_energy.device)  # (g, m)
        shift = self.mean_energy[values].sum(dim=1)  # (g,) ⟨σ(z), Ē⟩
        index, weight = self.seen.index, self.group_weight
        level = (weight[index] * (self.learned_bias.detach() + shift)[index]).sum() / weight.sum()
        result = level - shift
        result[index] = self.learned_bias.detach().to(result)[index]
        return result

    def _train_log_score(self) -> Tensor:
        """Log p̂(z) − B(z) of the training groups, (k,), in 64 bits on the CPU."""
        bias = self.learned_bias.detach()[self.seen.index].cpu().double()
        if not bool(torch.isfinite(bias).all()):
            raise InputError(f"the learned bias is NaN or infinite: {DAMAGED}")
        return self.seen.log_frequency - bias

    def extra_repr(self) -> str:
        """Shown when the head is printed."""
        shape = " × ".join(map(str, self.space.cardinalities))
        return f"in_features={self.in_features}, attributes {shape}, {len(self.groups)} candidate groups"


def _space(cardinalities: Sequence[int] | GroupSpace) -> GroupSpace:
    if isinstance(cardinalities, GroupSpace):
        return cardinalities
    return GroupSpace.from_cardinalities(cardinalities)
