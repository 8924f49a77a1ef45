"""A backbone and a head, trained together."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from compshift.nn.backbones import Backbone


class BackboneClassifier(nn.Module):
    """Samples through a backbone to features, and through a head to class logits or energies."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Features (b, p) of a batch as it was read."""
        return self.backbone(**self.backbone.prepare(inputs))  # type: ignore[no-any-return]

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The head's output: logits (b, c) or energies (b, D)."""
        return self.head(self.features(inputs))  # type: ignore[no-any-return]


def class_head(in_features: int, n_classes: int) -> nn.Linear:
    """A linear head that starts at zero, so that all methods start from the same predictions."""
    head = nn.Linear(in_features, n_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
