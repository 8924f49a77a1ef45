"""``extract_features``: the features of a data set, computed once and stored in Parquet shards.

The manifest ``_features.json`` holds the backbone's name, its settings, a digest of its weights and the precision; all
but the name are hashed into a key. Every shard carries that key and digests of its samples and labels, so that a
changed backbone, image, text or label is detected. An extraction that was killed resumes after its last complete shard.
Only one process at a time writes to a folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count, check_flag
from compshift._errors import InputError, an
from compshift._files import check_folder, check_ordinary, check_path, locked, read_json_object, replacing
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset, check_dataset
from compshift.data.shards import MANIFEST, SHARD, SHARD_METADATA, shard_about
from compshift.data.splits import SPLITS
from compshift.features.embedder import Embedder
from compshift.features.reading import sample_digests
from compshift.features.recipe import label_digest, portable_backbone

SHARD_FORMAT = 1
"""Version of the shard format, hashed into every key."""

LOCK = "_lock"
"""File that a process locks while it writes to the folder."""

DAMAGED = "damaged"
"""Value of ``key`` in the result of ``_read_manifest`` if the manifest is damaged."""

SHARD_ROWS = 1024
"""Default number of rows of a shard."""


@dataclass(frozen=True)
class Extraction:
    """Result of an extraction.

    Parameters
    ----------
    folder : path
        Folder that holds the shards.
    rows : int
        Number of rows that have features.
    features : int
        Number of features of a row.
    shards : int
        Number of shards, one file each.
    reused : int
        Number of shards whose features an earlier extraction had computed.
    broken : tuple of str
        One sentence for every sample that was left out.
    seconds : float
        Duration of the extraction.
    forward_seconds : float
        Time spent in the backbone's forward pass.

    Examples
    --------
    >>> result = extract_features(data, embedder, "features")  # doctest: +SKIP
    >>> result.rows, result.reused  # doctest: +SKIP
    (4795, 0)
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
    """Compute the features of a data set and write them to a folder; complete shards are not computed again.

    Parameters
    ----------
    data : GroupedDataset
        Images or texts.
    embedder : Embedder
        The backbone on its device.
    folder : str or path
        Folder of the Parquet shards, which ``FeatureStore`` and all commands read.
    shard_rows : int, default=1024
        Number of rows of a shard. If an extraction is resumed, the shards keep the size they had.
    skip_broken : bool, default=False
        Leave out samples that cannot be read and list them in the result, instead of raising.
    overwrite : bool, default=False
        Whether to replace features of another network in the folder.
    progress : callable, optional
        Called with the number of rows done since the last call.

    Returns
    -------
    Extraction
        Numbers of rows and shards, and the samples that were left out.

    Raises
    ------
    InputError
        If a sample cannot be read, the folder holds other files or features of another network, or another process
        writes to it.

    Examples
    --------
    >>> from compshift.nn import load_backbone
    >>> embedder = Embedder(load_backbone("efficientnet-lite0", "images"))  # doctest: +SKIP
    >>> extract_features(data, embedder, "features").rows  # doctest: +SKIP
    4795
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
        missing = []
        for shard in range(shards.n_shards):
            stored = _reuse(data, shards, shard, skip_broken=skip_broken)
            if stored is None:
                shards.discard(shard)
                missing.append(shard)
            else:
                broken[shard] = stored
                progress(len(shards.rows(shard)))
        blocks = [shards.rows(shard) for shard in missing]
        results = embedder.embed(data.samples, blocks, skip_broken=skip_broken, progress=progress)
        for shard, rows, result in zip(missing, blocks, results, strict=True):
            digests = (_joined(result.digests), label_digest(data, rows, with_splits=True))
            shards.write(shard, result.features, data.rows(result.rows), result.rows, digests, result.broken)
            broken[shard] = result.broken
    left_out = tuple(sentence for shard in sorted(broken) for sentence in broken[shard])
    if len(left_out) == len(data):
        raise InputError(
            f"none of the {len(data)} samples could be read: check the paths and files; the first error: {left_out[0]}"
        )
    return Extraction(
        Path(folder),
        len(data) - len(left_out),
        embedder.backbone.out_features,
        shards.n_shards,
        shards.n_shards - len(missing),
        left_out,
        time.perf_counter() - start,
        embedder.forward_seconds,
    )


def _reuse(data: GroupedDataset, shards: ShardFolder, shard: int, *, skip_broken: bool) -> list[str] | None:
    """Return the errors of a shard's broken samples if its features can be reused; None if they must be computed.

    If only labels or splits have changed, the shard is rewritten with its old features.
    """
    about = shards.finished(shard)
    rows = shards.rows(shard)
    if about is None or (about["broken"] and not skip_broken):
        return None
    samples, labels = _joined(sample_digests(data.samples, rows)), label_digest(data, rows, with_splits=True)
    if about["samples"] != samples:
        return None
    broken: list[str] = about["broken"]
    if about["labels"] != labels:
        features, kept = shards.stored(shard)
        shards.write(shard, features, data.rows(kept), kept, (samples, labels), broken)
    return broken


def _joined(digests: list[bytes]) -> str:
    """Combine several digests into one."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def network_key(about: dict[str, Any]) -> str:
    """Return a digest of everything besides the samples that determines features: settings, weights and precision."""
    parts = {name: about[name] for name in ("settings", "weights", "dtype")}
    text = json.dumps({"format_version": SHARD_FORMAT, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class ShardFolder:
    """Folder with the shards of one extraction."""

    folder: Path
    key: str
    n_rows: int
    shard_rows: int

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return math.ceil(self.n_rows / self.shard_rows)

    def rows(self, shard: int) -> IntArray:
        """Return the rows of the data set that belong to a shard."""
        return np.arange(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.n_rows))

    def path(self, shard: int) -> Path:
        """Return the path of a shard's file."""
        return self.folder / SHARD.format(shard)

    def finished(self, shard: int) -> dict[str, Any] | None:
        """Return the metadata of a shard; None if it is missing, damaged, or was computed by another network."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = shard_about(self.path(shard))
        if content.get("key") != self.key:
            return None
        try:
            pq.read_table(self.path(shard), page_checksum_verification=True)
        except (OSError, ValueError, pa.ArrowException):
            return None
        return content

    def discard(self, shard: int) -> None:
        """Delete an outdated shard, so that it is not read before it is rewritten."""
        self.path(shard).unlink(missing_ok=True)

    def stored(self, shard: int) -> tuple[Any, IntArray]:
        """Return the features (n, p) and row numbers (n,) of a complete shard."""
        import pyarrow.parquet as pq

        table = pq.read_table(self.path(shard), columns=["row", "features"])
        features = table.column("features").combine_chunks()
        width = features.type.list_size
        return features.flatten().to_numpy().reshape(len(table), width), table.column("row").to_numpy()

    def write(
        self,
        shard: int,
        features: Any,
        data: GroupedDataset,
        rows: IntArray,
        digests: Sequence[str],
        broken: Sequence[str],
    ) -> None:
        """Write a shard atomically: features (n, p), attributes and split of ``data``, and row numbers.

        ``digests`` has the digest of the samples and the digest of the labels; ``broken`` has one sentence for each
        sample that was left out.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"row": pa.array(rows)}
        for position, name in enumerate(data.space.names):
            values = pa.array(list(data.space.values[position]))
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(data.codes[:, position], pa.int32()), values)
        if data.split is not None:
            columns["split"] = pa.array([SPLITS[code] for code in data.split], pa.string())
        flat = pa.array(np.ascontiguousarray(features, dtype=np.float32).ravel())
        columns["features"] = pa.FixedSizeListArray.from_arrays(flat, features.shape[1])
        about = {"key": self.key, "samples": digests[0], "labels": digests[1], "broken": list(broken)}
        table = pa.table(columns).replace_schema_metadata({SHARD_METADATA: json.dumps(about, sort_keys=True).encode()})
        with replacing(self.path(shard)) as temporary:
            pq.write_table(table, temporary, write_page_checksum=True)


@contextmanager
def open_folder(
    folder: Path, about: dict[str, Any], names: Sequence[str], n_rows: int, shard_rows: int, *, overwrite: bool = False
) -> Iterator[ShardFolder]:
    """Create a folder, or open one to resume, and lock it; raise if it holds other files or another process uses it."""
    # columns of a shard that are not attributes
    taken = [name for name in ("row", "split", "features") if name in names]
    if taken:
        raise InputError(
            f"an attribute is called {taken[0]!r}, a name that feature files reserve: rename the attribute"
        )
    check_folder(folder, "to write features to")
    if not os.fsencode(folder).isascii() and str(folder) != os.fsencode(folder).decode("utf-8", "replace"):
        raise InputError(f"{str(folder)!r} is not valid UTF-8, which Parquet needs: pass another folder")
    if folder.is_dir() and not (folder / MANIFEST).is_file() and any(map(_is_foreign, folder.iterdir())):
        raise InputError(f"{str(folder)!r} holds other files: pass an empty or a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK) as alone:
        if not alone:
            raise InputError(f"another process is writing features to {str(folder)!r}: wait for it to end")
        yield _prepare(folder, about, n_rows, shard_rows, overwrite=overwrite)


def _prepare(folder: Path, about: dict[str, Any], n_rows: int, shard_rows: int, *, overwrite: bool) -> ShardFolder:
    """Remove outdated files, write the manifest, and return the folder's shards."""
    for leftover in folder.glob(".*.tmp*"):  # left by a process that was killed while writing
        leftover.unlink()
    key = network_key(about)
    about = about | {"backbone": portable_backbone(about["backbone"])}
    before = _read_manifest(folder / MANIFEST)
    if before.get("key") == key:
        shard_rows = int(before["shard_rows"])  # complete shards are kept, so their size must stay the same
        about = about | {"backbone": before.get("backbone", about["backbone"])}
    elif before.get("key") == DAMAGED and not overwrite:
        raise InputError(f"{str(folder / MANIFEST)!r} is damaged: compute the features again with overwrite=True")
    elif before and not overwrite:
        names = ("backbone", "settings", "weights", "dtype")
        changed = ", ".join(name for name in names if before.get(name) != about[name])
        raise InputError(
            f"{str(folder)!r} holds features of another network (they differ in {changed or 'their format'}): pass "
            "another folder, or overwrite=True to replace them"
        )
    shards = ShardFolder(folder, key, n_rows, shard_rows)
    current = {shards.path(shard) for shard in range(shards.n_shards)} if before.get("key") == key else set()
    for path in folder.glob(SHARD.format(0).replace("00000", "*")):
        if path not in current:
            path.unlink()
    content = {**about, "key": key, "rows": n_rows, "shard_rows": shard_rows, "shards": shards.n_shards}
    if content != before:
        with replacing(folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return shards


def _is_foreign(path: Path) -> bool:
    """Return whether a file is neither the lock nor a temporary file of an extraction."""
    return path.name != LOCK and not path.match(".*.tmp*")


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the content of the manifest; empty if there is none, with the key ``DAMAGED`` if it cannot be read."""
    if not check_ordinary(path).is_file():
        return {}
    try:
        content = read_json_object(path)
    except ValueError:
        return {"key": DAMAGED}
    valid = type(content.get("shard_rows")) is int and content["shard_rows"] > 0
    return content if valid else {"key": DAMAGED}
