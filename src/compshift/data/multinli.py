"""MultiNLI (Williams et al. 2018): entailment × presence of negation words in the hypothesis."""

from __future__ import annotations

import string
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift._files import parse_json
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark, Packaging, check_links
from compshift.data.dataset import GroupedDataset, Texts, Tokens
from compshift.data.glue_cache import read_glue_cache
from compshift.data.metadata_files import BINARY, SPLIT_CODES, encode_column, read_metadata, warn_incomplete

LABELS = {"contradiction": 0, "entailment": 1, "neutral": 2}
SPACE = GroupSpace(("label", "negation"), (tuple(LABELS), ("no negation", "negation")))
CACHES = tuple(
    f"multinli/glue_data/MNLI/cached_{name}"
    for name in (
        "train_bert-base-uncased_128_mnli",
        "dev_bert-base-uncased_128_mnli",
        "dev_bert-base-uncased_128_mnli-mm",
    )
)
"""Paths, relative to the root folder, of the caches with BERT's token ids, one for each file of ``TEXTS``."""

METADATA = "multinli/data/metadata_random.csv"
"""Path, relative to the root folder, of the table with the published splits."""

TEXTS = tuple(f"multinli_1.0_{name}.jsonl" for name in ("train", "dev_matched", "dev_mismatched"))
"""Names of the three text files."""

TEXT_FOLDERS = ("multinli/data", "multinli/multinli_1.0", "multinli/data/multinli_1.0", "multinli")
"""Folders below the root folder that may contain the text files."""

NEGATIONS = frozenset({"nobody", "no", "never", "nothing"})
"""Words whose presence makes a hypothesis count as negated."""

SHARES = (0.5, 0.2, 0.3)
"""Shares of train, val and test in the random split that is used if the table of splits is missing."""


def has_negation(hypothesis: str) -> bool:
    """Return whether a sentence contains one of ``NEGATIONS``, ignoring case and punctuation."""
    bare = hypothesis.translate(str.maketrans("", "", string.punctuation)).lower()
    return not NEGATIONS.isdisjoint(bare.split(" "))


def _metadata(path: Path) -> tuple[Any, IntArray, IntArray]:
    """Read the table of splits: line number of each row in the text files, codes (n, 2) and split (n,)."""
    table = read_metadata(path, ["Unnamed: 0", "gold_label", "sentence2_has_negation", "split"])
    labels = {str(code): code for code in LABELS.values()}
    codes = [
        encode_column(table["gold_label"], labels, "gold_label", path),
        encode_column(table["sentence2_has_negation"], BINARY, "sentence2_has_negation", path),
    ]
    return table["Unnamed: 0"], np.stack(codes, axis=1), encode_column(table["split"], SPLIT_CODES, "split", path)


def _cached(root: Path) -> GroupedDataset:
    """Read the cached token ids of the three files, one file after the other.

    Row i of the table of splits belongs to the i-th example of all files together.


    The line numbers in the table are not used, because the caches leave out examples without a gold label.
    """
    path = root / METADATA
    _, codes, split = _metadata(path)
    parts = [read_glue_cache(root / name) for name in CACHES]
    if len({part["ids"].shape[1] for part in parts}) > 1:
        raise InputError(f"the caches beside {str(root / CACHES[0])!r} differ in length: download all of them again")
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if len(whole["label"]) != len(codes):
        raise InputError(
            f"{str(path)!r} has {len(codes)} rows but the caches have {len(whole['label'])} examples: "
            "download both again"
        )
    wrong = np.flatnonzero(whole["label"] != codes[:, 0])
    if len(wrong):
        raise InputError(
            f"{str(path)!r}, line {wrong[0] + 2}: gold_label is {codes[wrong[0], 0]} but the cached example has "
            f"{whole['label'][wrong[0]]}: the table and the caches do not match; download both again"
        )
    tokens = Tokens(whole["ids"], whole["mask"], whole["segments"], "bert-base-uncased")
    return GroupedDataset(tokens, SPACE, codes, split)


def _raw(root: Path, folder: str) -> GroupedDataset:
    """Read the three text files one after the other, without the examples that have no gold label.

    Splits come from the published table if it exists, which numbers the lines of all files consecutively from 0.
    """
    rows: list[tuple[int, str, str, str]] = []
    number = 0
    for name in TEXTS:
        path = root / folder / name
        if not path.is_file():
            raise InputError(f"there is no file {str(path)!r}: the download is incomplete; download it again")
        before = len(rows)
        with path.open("rb") as stream:
            for line_number, line in enumerate(stream, start=1):
                rows += _example(number, line, path, line_number)
                number += 1
        if len(rows) == before:
            warn_incomplete(
                f"{str(path)!r} has no examples with a gold label: the download is incomplete; download it again"
            )
    if not rows:
        raise InputError(
            f"the files beside {str(root / folder / TEXTS[0])!r} contain no gold labels: download them again"
        )
    numbers, premises, hypotheses, labels = (list(column) for column in zip(*rows, strict=True))
    codes = np.array(
        [(LABELS[label], has_negation(text)) for label, text in zip(labels, hypotheses, strict=True)], dtype=np.int64
    )
    table = root / METADATA
    if table.parent.is_dir():
        check_links(table, root / "multinli")
    if table.is_file():
        split = _published_split(table, numbers, codes)
    else:
        warn_incomplete(
            f"there is no file {str(table)!r}: the rows are split at random; for the published splits, add it"
        )
        split = _random_split(len(codes))
    return GroupedDataset(Texts(np.array(premises, object), np.array(hypotheses, object)), SPACE, codes, split)


def _example(number: int, line: bytes, path: Path, line_number: int) -> list[tuple[int, str, str, str]]:
    """Return a list with the example of one line; an empty list if the example has no gold label."""
    try:
        content = parse_json(line)
        label, premise, hypothesis = (content[name] for name in ("gold_label", "sentence1", "sentence2"))
        if not all(isinstance(text, str) for text in (label, premise, hypothesis)):
            raise TypeError("gold_label, sentence1 and sentence2 must be text")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{str(path)!r}, line {line_number}: not a JSON object with the texts gold_label, sentence1 and sentence2 "
            f"({error!r}): download the file again"
        ) from None
    if label == "-":
        return []
    if label not in LABELS:
        raise InputError(
            f"{str(path)!r}, line {line_number}: gold_label is {label!r}, not one of {list(LABELS)}: download the file "
            "again"
        )
    return [(number, premise, hypothesis, label)]


def _published_split(path: Path, numbers: list[int], codes: IntArray) -> IntArray:
    """Check that the published table describes the same examples, and return its splits (n,)."""
    listed, published, split = _metadata(path)
    if list(listed) != [str(number) for number in numbers]:
        raise InputError(f"{str(path)!r} and the .jsonl files have different line numbers: download both again")
    wrong = np.flatnonzero((published != codes).any(axis=1))
    if len(wrong):
        raise InputError(
            f"{str(path)!r}, line {wrong[0] + 2}: the group is {SPACE.label(published[wrong[0]])} but that of the "
            f"text is {SPACE.label(codes[wrong[0]])}: the table and the .jsonl files do not match; download both again"
        )
    return split


def _random_split(n: int) -> IntArray:
    """Split at random by ``SHARES`` with a fixed seed."""
    bounds = np.rint(np.cumsum(SHARES)[:2] * n).astype(np.int64)
    return np.searchsorted(bounds, np.random.default_rng(0).permutation(n), side="right").astype(np.int64)


BENCHMARK = Benchmark(
    name="multinli",
    title="entailment × negation, pairs of sentences",
    kind="text",
    groups="3 × 2",
    packagings=(
        Packaging("cached BERT features", CACHES[0], _cached, needs=(METADATA,)),
        *(Packaging("raw text", f"{folder}/{TEXTS[0]}", partial(_raw, folder=folder)) for folder in TEXT_FOLDERS),
    ),
    download=(
        "get multinli_bert_features.tar.gz (group_DRO, nlp.stanford.edu/data/dro) into multinli/glue_data/MNLI/ and "
        "metadata_random.csv (group_DRO, dataset_metadata/multinli) into multinli/data/, or multinli_1.0.zip "
        "(cims.nyu.edu/~sbowman/multinli) into multinli/"
    ),
    published={
        "train": (57498, 11158, 67376, 1521, 66630, 1992),
        "val": (22814, 4634, 26949, 613, 26655, 797),
        "test": (34597, 6655, 40496, 886, 39930, 1148),
    },
    totals={"train": 206175, "val": 82462, "test": 123712},
    max_length=128,
)
