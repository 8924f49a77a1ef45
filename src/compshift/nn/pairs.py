"""Pairs of texts, such as premise and hypothesis, as the input of a text backbone.

Models such as BERT are trained on pairs and read both texts in one sequence. A sentence encoder is trained on single
texts, and reading two texts in one sequence tells it little about how they relate, so it embeds each text separately.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from compshift._errors import InputError
from compshift.data.dataset import Samples, Texts, Tokens, has_pairs

PAIR_ENCODINGS = ("joint", "separate", "none")
"""Encodings of pairs: both texts in one sequence, each text separately, or pairs are rejected."""

PAIR_PARTS = 4
"""Number of vectors that ``pair_features`` concatenates for each pair."""


def pair_features(embedded: Tensor) -> Tensor:
    """Return [u, v, abs(u − v), u ∗ v] for the embeddings u and v of each pair of texts (Conneau et al. 2017).

    Products are elementwise. ``embedded`` (2 n, p) has the texts of a pair in neighbouring rows; the result is
    (n, 4 p).
    """
    u, v = embedded[::2], embedded[1::2]  # (n, p)
    return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


def interleaved(texts: Texts) -> Texts:
    """Return the texts of all pairs as 2 n single texts, those of a pair next to each other."""
    return Texts(np.stack([texts.first, texts.second], axis=1).ravel())  # type: ignore[list-item] # pairs have both


def separate_tokens(tokens: Tokens, tokeniser: Any) -> dict[str, Tensor]:
    """Return the token ids and attention mask (n, 2, length) of both texts of each pair, each as its own sequence.

    A cached pair is ``[CLS] first [SEP] second [SEP]``, so the second text needs a ``[CLS]`` of its own.
    """
    sequences = []
    for ids, mask, segments in zip(tokens.ids, tokens.mask, tokens.segments, strict=True):
        first, second = (ids[(mask > 0) & (segments == segment)] for segment in (0, 1))
        sequences += [first, np.concatenate([[tokeniser.cls_token_id], second])]
    length = max(map(len, sequences))
    ids = np.full((len(sequences), length), tokeniser.pad_token_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], mask[row, : len(sequence)] = sequence, 1
    return {
        name: torch.from_numpy(array.reshape(len(tokens), 2, length))
        for name, array in (("input_ids", ids), ("attention_mask", mask))
    }


def check_pairs(samples: Samples, backbone: Any) -> None:
    """Check that a backbone that takes either pairs of texts or single texts only was loaded for these samples."""
    encoding = getattr(backbone, "pairs", "joint")
    if encoding == "none" and has_pairs(samples):
        raise InputError(
            f"the backbone {backbone.name!r} was loaded for single texts, but the samples are pairs: load it with "
            "pairs='auto'"
        )
    if encoding == "separate" and not has_pairs(samples):
        raise InputError(
            f"the backbone {backbone.name!r} takes pairs of texts, but the samples are single texts: pass pairs, or "
            "load it without pairs"
        )
