r"""Offsets by which logit adjustment tells a classifier, in training only, how class and attribute occur together.

With the attribute a of a row known, the loss is the cross-entropy of ``logits + offset[:, a]``, and predictions use the
logits alone. ``log p̂(a)`` is the same for every class and cancels in the softmax, so that the two differ only in how
they treat combinations that training lacks.
"""

import numpy as np

from compshift.core.arrays import FloatArray


def correction_offset(counts: FloatArray, epsilon: float) -> FloatArray:
    r"""Logit correction (Liu et al., 2022), with known attributes.

    .. math:: \log(\hat p(y, a) + \varepsilon)

    ``counts`` (c, a) are the training rows of each class and attribute combination; so is the shape of the result.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(counts / counts.sum() + epsilon))


def adjustment_offset(counts: FloatArray, tau: float, smoothing: float) -> FloatArray:
    r"""Supervised logit adjustment (Tsirigotis et al., 2024), with ``smoothing`` added to every count.

    .. math:: \tau \log \hat p(y \mid a)
    """
    smooth = counts + smoothing
    with np.errstate(divide="ignore"):
        return np.asarray(tau * (np.log(smooth) - np.log(smooth.sum(axis=0))))
