"""CivilComments (Borkan et al. 2019): toxicity × eight identities, one row per identity that a comment mentions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compshift._errors import InputError
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark, Packaging
from compshift.data.dataset import GroupedDataset, Texts
from compshift.data.metadata_files import (
    BINARY,
    SPLIT_CODES,
    SPLIT_WORDS,
    encode_column,
    parse_numbers,
    read_metadata,
    warn_incomplete,
)

IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
SPACE = GroupSpace(("toxicity", "identity"), (("not toxic", "toxic"), IDENTITIES))
THRESHOLD = 0.5
"""Lowest score at which a comment counts as toxic, or as mentioning an identity."""


def _original(root: Path) -> GroupedDataset:
    """Read the published table, without the comments that mention no identity."""
    path = root / "civilcomments" / "all_data_with_identities.csv"
    table = read_metadata(path, ["comment_text", "split", "toxicity", *IDENTITIES])
    toxic = parse_numbers(table["toxicity"], "toxicity", path) >= THRESHOLD
    mentions = np.stack([parse_numbers(table[name], name, path) >= THRESHOLD for name in IDENTITIES], axis=1)  # (n, 8)
    split = encode_column(table["split"], SPLIT_WORDS, "split", path)
    comment, identity = np.nonzero(mentions)
    if not len(comment):
        raise InputError(f"{str(path)!r} has no comment with an identity score ≥ {THRESHOLD}: download it again")
    codes = np.stack([toxic[comment].astype(np.int64), identity], axis=1)
    return GroupedDataset(Texts(table["comment_text"][comment]), SPACE, codes, split[comment], origin=comment)


def _subpopbench(root: Path) -> GroupedDataset:
    """Read SubpopBench's tables, which contain the same rows as the published one.

    Rows with equal texts count as made from one comment: they get the same ``origin``.
    """
    import pandas as pd

    base = root / "civilcomments"
    path, text_path = base / "metadata_civilcomments_fine.csv", base / "civilcomments_fine.csv"
    table = read_metadata(path, ["filename", "split", "y", "a"])
    texts = read_metadata(text_path, ["comment_text"])["comment_text"]
    row = encode_column(table["filename"], {str(number): number for number in range(len(texts))}, "filename", path)
    identities = {str(number): number for number in range(len(IDENTITIES))}
    codes = np.stack(
        [encode_column(table["y"], BINARY, "y", path), encode_column(table["a"], identities, "a", path)], axis=1
    )
    unused = len(texts) - len(np.unique(row))
    if unused:
        warn_incomplete(
            f"{str(path)!r} leaves out {unused} of the {len(texts)} comments of {text_path.name!r}: download both again"
        )
    chosen = texts[row]
    origin = pd.factorize(chosen)[0]
    return GroupedDataset(
        Texts(chosen), SPACE, codes, encode_column(table["split"], SPLIT_CODES, "split", path), origin=origin
    )


BENCHMARK = Benchmark(
    name="civilcomments",
    title="toxicity × identity, comments",
    kind="text",
    groups="2 × 8",
    packagings=(
        Packaging("as published", "civilcomments/all_data_with_identities.csv", _original),
        Packaging("SubpopBench", "civilcomments/metadata_civilcomments_fine.csv", _subpopbench),
    ),
    download="get civilcomments_v1.0.tar.gz (WILDS, wilds.stanford.edu) and unpack it in civilcomments/",
    published={
        "train": (
            *(25373, 31282, 6155, 24292, 10829, 5541, 6785, 12016),
            *(4437, 4962, 2265, 2446, 3125, 1003, 3111, 4682),
        )
    },
    totals={"train": 148304, "val": 24278, "test": 71854},
    max_length=220,
    balanced_classes=True,
)
