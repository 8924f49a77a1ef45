"""Features of every row of a data set, computed once, in shards that survive being killed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset
from compshift.features.batches import sample_digests
from compshift.features.embedder import Embedder
from compshift.features.shards import open_folder

SHARD_ROWS = 1024


@dataclass(frozen=True)
class Extraction:
    """What an extraction did."""

    folder: Path
    rows: int  # rows with features
    features: int
    shards: int
    reused: int  # shards that were there already
    broken: tuple[str, ...]  # one sentence for every sample that was left out
    seconds: float
    forward_seconds: float  # of which in the backbone's forward pass


def extract_features(
    data: GroupedDataset,
    embedder: Embedder,
    folder: str | PathLike[str],
    *,
    shard_rows: int = SHARD_ROWS,
    skip_broken: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Extraction:
    """Write the features of all rows to ``folder``; shards that a former run finished are not computed again.

    A sample that cannot be read stops the extraction, or is left out and listed with ``skip_broken``.
    """
    start = time.perf_counter()
    backbone = embedder.backbone
    about = {
        "backbone": backbone.name,
        "settings": backbone.settings(),
        "weights": backbone.fingerprint(),
        "dtype": str(embedder.dtype).removeprefix("torch."),
        "attributes": {name: list(values) for name, values in zip(data.space.names, data.space.values, strict=True)},
    }
    shards = open_folder(Path(folder), about, len(data), check_count(shard_rows, "shard_rows"), overwrite=overwrite)
    broken: dict[int, list[str]] = {}
    todo = []
    for shard in range(shards.n_shards):
        rows = shards.rows(shard)
        found = shards.finished(shard)
        whole = found is not None and (skip_broken or not found["broken"])
        if found is not None and whole and found["inputs"] == _digest(data, rows, sample_digests(data.samples, rows)):
            broken[shard] = found["broken"]
            progress(len(rows))
        else:
            todo.append(shard)
    results = embedder.embed(
        data.samples, [shards.rows(shard) for shard in todo], skip_broken=skip_broken, progress=progress
    )
    for shard, result in zip(todo, results, strict=True):
        inputs = _digest(data, shards.rows(shard), result.digests)
        shards.write(shard, result.features, data.rows(result.rows), result.rows, inputs, result.broken)
        broken[shard] = result.broken
    left_out = tuple(sentence for shard in sorted(broken) for sentence in broken[shard])
    if len(left_out) == len(data):
        raise InputError(f"not one of the {len(data)} samples could be read; the first: {left_out[0]}")
    return Extraction(
        Path(folder),
        len(data) - len(left_out),
        backbone.out_features,
        shards.n_shards,
        shards.n_shards - len(todo),
        left_out,
        time.perf_counter() - start,
        embedder.forward_seconds,
    )


def _digest(data: GroupedDataset, rows: IntArray, samples: list[bytes]) -> str:
    """A digest of some rows: their samples' content, their attributes and their split."""
    digest = hashlib.sha256(b"".join(samples))
    digest.update(np.ascontiguousarray(data.codes[rows]).tobytes())
    if data.split is not None:
        digest.update(np.ascontiguousarray(data.split[rows]).tobytes())
    return digest.hexdigest()
