"""The CRM head: one energy per attribute value on top of any network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._checks import MAX_TABLE_GROUPS, check_codes, check_count, check_flag
from compshift._errors import InputError, check_name, rough
from compshift.core.bias import ExtrapolatedBias
from compshift.core.candidates import candidate_groups
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.core.posterior import group_log_posterior, marginal_log_posterior
from compshift.distributed import ALONE, Collective, check_processes
from compshift.nn.networks import energy_layers
from compshift.nn.state import DAMAGED_STATE, HeadState
from compshift.nn.steps import energy_blocks, step_one_loss, step_two_bias
from compshift.nn.tensors import (
    check_energies,
    check_features,
    evaluation_mode,
    full_precision,
    no_autocast,
    row_weights,
    to_numpy,
)


class AdditiveEnergyHead(HeadState):
    r"""Head with one energy per attribute value, which predicts seen and unseen groups.

    In training, ``loss`` is the negative log-likelihood over the training groups (paper, eq. "CRM1"). Afterwards
    ``extrapolate`` computes the bias of every group from the training inputs (eq. "qz"), and ``log_prob`` and
    ``marginal_log_prob`` predict under any prior (eq. "hatq").

    Parameters
    ----------
    in_features : int
        Number of features per sample, the width of the backbone's output.
    cardinalities : sequence of int, or GroupSpace
        Number of values of each attribute. With a GroupSpace, error messages and priors use its names.
    hidden : int or sequence of int, optional
        Widths of hidden layers; each attribute has a separate network. By default energies are linear in the features.
        The last layer always starts at zero.
    groups : array (g, m), optional
        Codes of the candidate groups; required if there are too many combinations to store. Default: all combinations.

    Attributes
    ----------
    groups : array (g, m)
        Codes of the candidate groups. Tensors of length g follow this order.
    learned_bias : parameter (g,)
        Bias B learned in training; meaningful for the training groups only.
    group_weight : buffer (g,)
        Number of training rows, or their weight, of each candidate group.
    bias : buffer (g,)
        Extrapolated bias B* of every candidate group; NaN before ``extrapolate``.
    effective_sample_size : buffer (g,)
        Effective number of training rows in the average that gives each B*; NaN before ``extrapolate``.
    mean_energy : buffer (D,)
        Mean energy of every attribute value over the training rows; NaN before ``extrapolate``.

    Raises
    ------
    InputError
        If a parameter is out of range, or there are too many combinations and ``groups`` is not given.

    Notes
    -----
    All parameters and buffers exist from the start, so a head can predict once its state dict is loaded. Buffers stay
    in 64 bits when the head is cast to lower precision.

    Training determines the energies of groups inside the affine hull of the training groups
    (``head.candidates.inside_hull``) only; the prior ``"hull"`` excludes all other groups.

    Under DistributedDataParallel the loss must be computed inside the wrapped forward pass: ``head(features, codes)``
    returns the loss.

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
        if not isinstance(cardinalities, GroupSpace):
            cardinalities = GroupSpace.from_cardinalities(cardinalities)
        self.space = cardinalities
        if groups is None and self.space.n_groups > MAX_TABLE_GROUPS:
            raise InputError(
                f"the attributes have {rough(self.space.n_groups)} combinations, too many to store: pass groups with "
                "the codes of the groups to predict"
            )
        empty_hull = AffineHull(self.space, np.zeros((0, len(self.space.names)), dtype=np.int64))
        self.groups = candidate_groups("all" if groups is None else groups, self.space, empty_hull)
        self.layers = energy_layers(self.in_features, self.space.cardinalities, hidden)
        self.learned_bias = nn.Parameter(torch.zeros(len(self.groups)))
        unknown = torch.full((len(self.groups),), math.nan, dtype=torch.float64)
        self.register_buffer("group_weight", torch.zeros_like(unknown))
        self.register_buffer("bias", unknown)
        self.register_buffer("effective_sample_size", unknown.clone())
        self.register_buffer("mean_energy", torch.full((self.space.width,), math.nan, dtype=torch.float64))

    def forward(self, features: Tensor, codes: Any = None) -> Tensor:
        """Return the energies of every attribute value, low if the value is likely, or the loss if ``codes`` is given.

        The loss is computed here for DistributedDataParallel, which must wrap the whole forward pass. Autocasting is
        off inside the head, because biases computed from low-precision energies would be wrong.

        Parameters
        ----------
        features : tensor (n, p)
            Features of a batch.
        codes : array or tensor (n, m), optional
            Codes of the rows' groups.

        Returns
        -------
        tensor
            Energies (n, D), or with ``codes`` the scalar loss.
        """
        if codes is not None:
            return self.loss(features, codes)
        check_features(features, self.in_features, self.learned_bias.device)
        with no_autocast(features):
            features = features.to(self.learned_bias.dtype)
            return torch.cat([layer(features) for layer in self.layers], dim=1)

    def last_features(self, features: Tensor) -> Tensor:
        """Return the inputs of the last linear layers.

        Parameters
        ----------
        features : tensor (n, p)
            Features of a batch.

        Returns
        -------
        tensor (n, q)
            The features themselves or, with hidden layers, the outputs of all attributes' hidden layers side by side.
        """
        hidden = [layer[:-1](features) for layer in self.layers if isinstance(layer, nn.Sequential)]
        return torch.cat(hidden, dim=1) if hidden else features

    def last_weights(self) -> Tensor:
        """Return the weights of the last linear layers.

        Returns
        -------
        tensor (D, q)
            Weights such that the energies are ``last_features(features) @ last_weights().T``.
        """
        hidden = isinstance(self.layers[0], nn.Sequential)
        last = [layer[-1] if isinstance(layer, nn.Sequential) else layer for layer in self.layers]
        weights: list[Any] = [layer.weight for layer in last]
        return torch.block_diag(*weights) if hidden else torch.cat(weights)  # type: ignore[no-untyped-call]

    def loss(self, features: Tensor, codes: Any, *, sample_weight: Any = None, reduction: str = "mean") -> Tensor:
        """Compute the negative log-likelihood of the rows' groups among the training groups (paper, eq. "CRM1").

        Parameters
        ----------
        features : tensor (n, p)
            Features of a batch.
        codes : array or tensor (n, m)
            Integer codes of the rows' groups, which must be training groups.
        sample_weight : array or tensor (n,), optional
            Weight of each row.
        reduction : {"mean", "sum"}, default="mean"
            Weighted mean or weighted sum over the rows.

        Returns
        -------
        tensor
            The scalar loss.

        Raises
        ------
        InputError
            If a row's group is not a training group, or the weights cannot be used.
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
                raise InputError("features has no rows to average over: pass at least one row, or reduction='sum'")
            total = weight.sum()
            if not bool(total > 0):
                raise InputError("sample_weight is zero for every row: pass a weight above 0 for at least one row")
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
        """Compute B* and its effective sample size for every candidate group, in one pass over the training inputs.

        The head and the backbone are in eval mode during the pass. Sums are computed in 64 bits.

        Parameters
        ----------
        batches : iterable
            Batches of features or, with ``backbone``, of the backbone's inputs. If a batch is a tuple or list, its
            first part is used, so a DataLoader can be passed.
        backbone : module or callable, optional
            Network or function that computes the features of a batch.
        weighted : bool, default=False
            Whether the second part of a batch is the weight of each row. The counts passed to ``set_train_groups``
            must then be weighted in the same way.
        processes : Collective, optional
            Processes that share the work; each passes its share of the rows. Default: this process alone.

        Returns
        -------
        ExtrapolatedBias
            ``bias`` (g,) and ``effective_sample_size`` (g,), which are also stored in the head's buffers.

        Raises
        ------
        InputError
            If there are no rows, or energies or weights are not finite.
        """
        if isinstance(batches, Tensor):
            raise InputError("batches is one tensor: pass a list of batches, [features], or a DataLoader")
        if backbone is not None and not callable(backbone):
            raise InputError(f"backbone is {backbone!r}: pass a module or a function, or None for batches of features")
        weighted = check_flag(weighted, "weighted")
        check_processes(processes)
        log_score = self._train_log_score()
        with evaluation_mode(self, *([backbone] if isinstance(backbone, nn.Module) else [])):
            blocks = energy_blocks(self, self.candidates.table, batches, backbone, weighted)
            result, mean_energy = step_two_bias(blocks, self.seen, log_score, processes)
        self._store_bias(result, mean_energy)
        return result

    def _store_bias(self, found: ExtrapolatedBias, mean_energy: Any) -> None:
        """Store biases and effective sample sizes (g,) and mean energies (D,), which the current weights gave."""
        self.bias.copy_(torch.as_tensor(found.bias))
        self.effective_sample_size.copy_(torch.as_tensor(found.effective_sample_size))
        self.mean_energy.copy_(torch.as_tensor(mean_energy))
        self._age.start(self)

    @property
    def bias_gap(self) -> float:
        """Largest ``|B* − B|`` over the training groups; 0 at the optimum of step 1."""
        index = self.seen.index
        return float((self.bias - self.learned_bias.detach())[index].abs().max())

    def log_prob(self, features: Tensor, prior: Any = None, *, codes: Any = None, bias: str = "extrapolated") -> Tensor:
        """Compute the log-probability of every candidate group, log q(z|x) (paper, eq. "hatq").

        Parameters
        ----------
        features : tensor (n, p)
            Features of a batch.
        prior : {"uniform", "hull", "train"}, array (g,) or mapping, optional
            Prior q(z) over the groups. Default: uniform.
        codes : array or tensor (q, m), optional
            Codes of the groups to return. Default: all candidate groups.
        bias : {"extrapolated", "learned"}, default="extrapolated"
            Bias to predict with.

        Returns
        -------
        tensor
            Log-probabilities (n, g) in the order of ``groups`` or, with ``codes``, (n, q) in their order.

        Raises
        ------
        InputError
            If ``extrapolate`` was not called yet.
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
        """Compute the log-probability of every value of one attribute, log q(z_i|x), without an (n, g) tensor.

        Parameters
        ----------
        features : tensor (n, p)
            Features of a batch.
        attribute : int or str, default=0
            Number or name of the attribute.
        prior : {"uniform", "hull", "train"}, array (g,) or mapping, optional
            Prior q(z) over the groups. Default: uniform.
        bias : {"extrapolated", "learned"}, default="extrapolated"
            Bias to predict with.

        Returns
        -------
        tensor (n, d_i)
            One column per value of the attribute.

        Raises
        ------
        InputError
            If ``extrapolate`` was not called yet, or the attribute does not exist.
        """
        attribute = self._attribute(attribute)
        energies = check_energies(full_precision(self(features)))
        with no_autocast(energies):
            return marginal_log_posterior(energies, self.candidates.table, self.log_score(prior, bias), attribute)  # type: ignore[no-any-return]

    def _attribute(self, attribute: int | str) -> int:
        """Return the position of an attribute that is given by name or number."""
        if isinstance(attribute, str):
            check_name("attribute", attribute, self.space.names)
            return self.space.names.index(attribute)
        if not isinstance(attribute, Integral) or not 0 <= attribute < len(self.space.names):
            raise InputError(
                f"attribute is {attribute!r}: pass a name, or a number from 0 to {len(self.space.names) - 1}"
            )
        return int(attribute)

    def log_score(self, prior: Any = None, bias: str = "extrapolated") -> Tensor:
        """Compute log q(z) − B(z) of every candidate group.

        Parameters
        ----------
        prior : {"uniform", "hull", "train"}, array (g,) or mapping, optional
            Prior q(z) over the groups. Default: uniform.
        bias : {"extrapolated", "learned"}, default="extrapolated"
            Bias B: the extrapolated bias B*, or ``centred_learned_bias``.

        Returns
        -------
        tensor (g,)
            One 64-bit entry per candidate group.

        Raises
        ------
        InputError
            If ``extrapolate`` was not called yet, or the bias is not finite.
        """
        check_name("bias", bias, ("extrapolated", "learned"))
        if bool(torch.isnan(self.bias).any()):
            raise InputError("the bias was not computed yet: call extrapolate with the training inputs first")
        if self._age.outdated(self):
            warnings.warn(
                "the head was trained further since extrapolate was called, so its biases belong to earlier weights: "
                "call extrapolate again",
                UserWarning,
                stacklevel=3,
            )
        values = self.bias if bias == "extrapolated" else self.centred_learned_bias()
        if not bool(torch.isfinite(values).all()):
            raise InputError(f"the {bias} bias is NaN or infinite: {DAMAGED_STATE}")
        prior = "uniform" if prior is None else to_numpy(prior, "prior")
        return torch.as_tensor(self.candidates.log_prior(prior)).to(self.bias) - values

    def centred_learned_bias(self) -> Tensor:
        """Return the learned bias, with a default for unseen groups, for the ablation without extrapolation.

        Training does not determine the bias of unseen groups, so they get a default. If the energies were centred over
        the training rows (their mean Ē is ``mean_energy``), the bias of each group z would be larger by ⟨σ(z), Ē⟩. The
        default is the mean of these larger biases over the training rows, minus ⟨σ(z), Ē⟩ of the unseen group.

        Returns
        -------
        tensor (g,)
            The learned bias for training groups, and the default for all other groups.
        """
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
            raise InputError(f"the learned bias is NaN or infinite: {DAMAGED_STATE}")
        return self.seen.log_frequency - bias

    def extra_repr(self) -> str:
        """Return the text shown when the head is printed.

        Returns
        -------
        str
            Number of features, attributes and candidate groups.
        """
        shape = " × ".join(map(str, self.space.cardinalities))
        return f"in_features={self.in_features}, attributes {shape}, {len(self.groups)} candidate groups"
