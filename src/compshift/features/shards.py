"""A folder of feature shards: what made it, which shards are whole, and how one is written.

``_features.json`` tells the backbone, its settings and a digest of its weights, all hashed into a key. Every shard
carries that key and a digest of the very samples that it was computed from, so neither another backbone nor a changed
image or text can be mistaken for what is there.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift._files import replacing
from compshift.core.arrays import IntArray
from compshift.data.dataset import SPLITS, GroupedDataset
from compshift.data.table_files import MANIFEST

FORMAT_VERSION = 1
METADATA = b"compshift"
SHARDS = "part-*.parquet"
RESERVED = ("row", "split", "features")
"""Columns of a shard that are no attributes."""


@dataclass(frozen=True)
class ShardFolder:
    """Where the shards of one extraction lie."""

    folder: Path
    key: str
    n_rows: int
    shard_rows: int

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return math.ceil(self.n_rows / self.shard_rows)

    def rows(self, shard: int) -> IntArray:
        """The rows of the data set that a shard holds."""
        return np.arange(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.n_rows))

    def path(self, shard: int) -> Path:
        """The file of a shard."""
        return self.folder / f"part-{shard:05d}.parquet"

    def finished(self, shard: int) -> dict[str, Any] | None:
        """What a whole shard of this key says of itself; None if there is none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_schema(self.path(shard)).metadata or {}
            content: dict[str, Any] = json.loads(metadata.get(METADATA, b"{}"))
        except (OSError, ValueError, pa.ArrowException):
            return None
        return content if content.get("key") == self.key else None

    def write(
        self, shard: int, features: Any, data: GroupedDataset, rows: IntArray, inputs: str, broken: Sequence[str]
    ) -> None:
        """Write a shard whole or not at all: features (n, p), attributes and split of ``data``, numbers of the rows."""
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
        about = json.dumps({"key": self.key, "inputs": inputs, "broken": list(broken)}, sort_keys=True)
        table = pa.table(columns).replace_schema_metadata({METADATA: about.encode()})
        with replacing(self.path(shard)) as temporary:
            pq.write_table(table, temporary)


def open_folder(
    folder: Path, about: dict[str, Any], n_rows: int, shard_rows: int, *, overwrite: bool = False
) -> ShardFolder:
    """A new or resumed folder. One that holds something else is refused, or emptied with ``overwrite``."""
    taken = [name for name in RESERVED if name in about["attributes"]]
    if taken:
        raise InputError(f"an attribute is called {taken[0]!r}, which features files use themselves: rename it")
    described = {"format_version": FORMAT_VERSION, **about, "rows": n_rows}
    key = hashlib.sha256(json.dumps({**described, "backbone": None}, sort_keys=True).encode()).hexdigest()
    manifest = folder / MANIFEST
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file: pass a folder to write features to")
    if manifest.is_file():
        before = _read_manifest(manifest)
        if before.get("key") == key:
            shard_rows = int(before["shard_rows"])  # shards that are whole stay, whatever is asked for now
        elif overwrite:
            _empty(folder)
        else:
            changed = sorted(name for name in {**described, **before} if before.get(name) != described.get(name))
            names = ", ".join(name for name in changed if name not in ("key", "shard_rows", "shards", "versions"))
            raise InputError(
                f"{str(folder)!r} holds features of something else (they differ in {names or 'the key'}): pass another "
                "folder, or --overwrite to replace them"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{str(folder)!r} holds other files: pass an empty or a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.tmp*"):  # a run that was killed while it wrote
        leftover.unlink()
    shards = ShardFolder(folder, key, n_rows, shard_rows)
    content = {**described, "key": key, "shard_rows": shard_rows, "shards": shards.n_shards}
    if not manifest.is_file():
        with replacing(manifest) as temporary:
            temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return shards


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{str(path)!r} is damaged ({error}): pass another folder or --overwrite") from None
    return content


def _empty(folder: Path) -> None:
    """Remove the shards and the manifest, and nothing else."""
    for path in [*folder.glob(SHARDS), folder / MANIFEST]:
        path.unlink(missing_ok=True)
