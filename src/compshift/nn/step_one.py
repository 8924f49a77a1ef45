"""The risk of step 1 as a differentiable loss: value and gradient in closed form, nothing of size n × g."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compshift.core.objective import step_one_risk
from compshift.nn.seen_groups import SeenGroups


def step_one_loss(
    energies: Tensor, position: Tensor, sample_weight: Tensor, seen: SeenGroups, learned_bias: Tensor
) -> Tensor:
    """Weighted sum of negative log-likelihoods of the rows' groups (paper, eq. "CRM1").

    ``energies`` (n, D), ``position`` (n,) among the seen groups, ``learned_bias`` (g,) of the candidates. Reduced
    precision is widened to 32 bits first.
    """
    wide = energies.float() if energies.dtype in (torch.float16, torch.bfloat16) else energies
    log_score = seen.log_frequency.to(wide) - learned_bias[seen.index].to(wide)  # (k,)
    result: Tensor = _StepOne.apply(wide, log_score, position, sample_weight, seen.table)  # type: ignore[no-untyped-call]
    return result


class _StepOne(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, energies: Tensor, log_score: Tensor, position: Tensor, weight: Tensor, seen: Any) -> Any:
        with torch.autocast(energies.device.type, enabled=False):
            risk = step_one_risk(energies, position, weight, seen, log_score)
        context.save_for_backward(risk.energy_gradient, risk.score_gradient)
        return risk.value

    @staticmethod
    def backward(context: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():  # create_graph=True: what follows would be taken for a constant
            raise RuntimeError("the CRM loss is differentiable once: use it without create_graph=True")
        energy_gradient, score_gradient = context.saved_tensors
        return upstream[0] * energy_gradient, upstream[0] * score_gradient, None, None, None
