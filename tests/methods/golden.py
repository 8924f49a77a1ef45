"""A tiny task with three groups and fixed logits, whose losses can be computed by hand."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from compshift import GroupSpace
from compshift.distributed import ALONE
from compshift.methods.base import Batch, Task
from compshift.nn.networks import BackboneClassifier

SPACE = GroupSpace(("y", "a"), ((0, 1), (0, 1)))
SEEN = np.array([[0, 0], [0, 1], [1, 1]])  # (1, 0) is never seen
COUNTS = np.array([6.0, 3.0, 1.0])


class Given(nn.Module):
    """Backbone that returns its inputs as features."""

    name, kind, out_features, pretrained = "given", "features", 2, False

    def prepare(self, inputs):
        return dict(inputs)

    def forward(self, features):
        return features


def task(counts=COUNTS, seen=SEEN, space=SPACE):
    return Task(space, seen, np.asarray(counts, dtype=float), np.asarray(counts, dtype=float))


def model(method, the_task=None):
    """Return the method's head on a ``Given`` backbone; class logits equal the features."""
    head = method.head(2, the_task or task())
    if isinstance(head, nn.Linear):
        with torch.no_grad():
            head.weight.copy_(torch.eye(head.out_features, 2))
    return BackboneClassifier(Given(), head)


def batch(logits, group, the_task=None, seed=0, processes=ALONE):
    features = torch.tensor(logits, dtype=torch.float32)
    return Batch(
        {"features": features}, torch.tensor(group), the_task or task(), np.random.default_rng(seed), processes
    )


LOGITS = [[2.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, -1.0]]
GROUPS = [0, 0, 1, 2]  # classes 0, 0, 0, 1; attributes 0, 0, 1, 1

ROW_LOSSES = [np.log1p(np.exp(-2.0)), np.log(2.0), np.log1p(np.exp(1.0)), np.log1p(np.exp(2.0))]
"""Cross-entropy of each row with two classes: log(1 + exp(other − own))."""


def loss_of(method, logits=LOGITS, groups=GROUPS, step=0, state=None, the_task=None):
    the_task = the_task or task()
    state = method.state(the_task) if state is None else state
    value, after = method.loss(model(method, the_task), batch(logits, groups, the_task), state, step)
    return value.item(), after
