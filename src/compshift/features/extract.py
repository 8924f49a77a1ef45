"""Features of every row of a data set, computed once, in shards that survive being killed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from compshift._checks import check_count, check_flag
from compshift._errors import InputError, an
from compshift._files import check_path
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset, check_dataset
from compshift.features.batches import sample_digests
from compshift.features.embedder import Embedder
from compshift.features.shards import ShardFolder, open_folder

SHARD_ROWS = 1024


@dataclass(frozen=True)
class Extraction:
    """What an extraction did.

    Attributes
    ----------
    folder : path
        Where the features are.
    rows, features : int
        Rows that have features, and how many each has.
    shards, reused : int
        Files, and how many of them were there already.
    broken : tuple of str
        One sentence for every sample that was left out.
    seconds, forward_seconds : float
        In all, and in the backbone's forward pass.
    """

    folder: Path
    rows: int
    features: int
    shards: int
    reused: int
    broken: tuple[str, ...]
    seconds: float
    forward_seconds: float


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

    Parameters
    ----------
    data : GroupedDataset
        Images or texts.
    embedder : Embedder
        The backbone, on its device.
    folder : str or path
        Parquet shards, as ``FeatureStore`` and every command read them.
    shard_rows : int, default=1024
        Rows of a shard.
    skip_broken : bool, default=False
        Leave out samples that cannot be read, and list them; otherwise the first one stops the extraction.
    overwrite : bool, default=False
        Whether features of something else in the folder may go.
    progress : callable, optional
        Called with the number of rows that were finished since the last call.

    Returns
    -------
    Extraction
    """
    start = time.perf_counter()
    check_dataset(data)
    if not isinstance(embedder, Embedder):
        raise InputError(f"embedder is {an(type(embedder).__name__)}: pass a compshift.features.Embedder")
    for flag, name in ((skip_broken, "skip_broken"), (overwrite, "overwrite")):
        check_flag(flag, name)
    about = embedder.about()
    shard_rows = check_count(shard_rows, "shard_rows")
    with open_folder(check_path(folder), about, data.space.names, len(data), shard_rows, overwrite=overwrite) as shards:
        broken: dict[int, list[str]] = {}
        todo = []
        for shard in range(shards.n_shards):
            found = _reused(data, shards, shard, skip_broken=skip_broken)
            if found is None:
                shards.discard(shard)
                todo.append(shard)
            else:
                broken[shard] = found
                progress(len(shards.rows(shard)))
        groups = [shards.rows(shard) for shard in todo]
        results = embedder.embed(data.samples, groups, skip_broken=skip_broken, progress=progress)
        for shard, rows, result in zip(todo, groups, results, strict=True):
            digests = (_joined(result.digests), _label_digest(data, rows))
            shards.write(shard, result.features, data.rows(result.rows), result.rows, digests, result.broken)
            broken[shard] = result.broken
    left_out = tuple(sentence for shard in sorted(broken) for sentence in broken[shard])
    if len(left_out) == len(data):
        raise InputError(f"not one of the {len(data)} samples could be read; the first: {left_out[0]}")
    return Extraction(
        Path(folder),
        len(data) - len(left_out),
        embedder.backbone.out_features,
        shards.n_shards,
        shards.n_shards - len(todo),
        left_out,
        time.perf_counter() - start,
        embedder.forward_seconds,
    )


def _reused(data: GroupedDataset, shards: ShardFolder, shard: int, *, skip_broken: bool) -> list[str] | None:
    """The broken samples of a shard whose features can stay; None if they must be computed.

    Where only labels or splits have changed, the shard is written anew with the features that it has.
    """
    found = shards.finished(shard)
    rows = shards.rows(shard)
    if found is None or (found["broken"] and not skip_broken):
        return None
    samples, labels = _joined(sample_digests(data.samples, rows)), _label_digest(data, rows)
    if found["samples"] != samples:
        return None
    broken: list[str] = found["broken"]
    if found["labels"] != labels:
        features, kept = shards.stored(shard)
        shards.write(shard, features, data.rows(kept), kept, (samples, labels), broken)
    return broken


def _joined(digests: list[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _label_digest(data: GroupedDataset, rows: IntArray) -> str:
    """A digest of the attributes and splits of some rows."""
    digest = hashlib.sha256(repr((data.space.names, data.space.values)).encode())
    digest.update(np.ascontiguousarray(data.codes[rows]).tobytes())
    if data.split is not None:
        digest.update(np.ascontiguousarray(data.split[rows]).tobytes())
    return digest.hexdigest()
