"""A folder of feature shards: what made it, which shards are whole, and how one is written.

``_features.json`` tells the backbone, its settings and a digest of its weights, all hashed into a key. Every shard
carries that key and digests of the very samples and labels that it was made from, so neither another backbone nor a
changed image or text can be mistaken for what is there. One process at a time writes to a folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift._files import check_folder, check_ordinary, locked, replacing
from compshift._json import read_json_object
from compshift.core.arrays import IntArray
from compshift.data.dataset import SPLITS, GroupedDataset
from compshift.data.table_files import MANIFEST, SHARD, SHARD_METADATA, shard_about

FORMAT_VERSION = 1
LOCK = "_lock"
DAMAGED = "damaged"
"""In place of a key."""

RESERVED = ("row", "split", "features")
"""Columns of a shard that are no attributes."""


def network_key(about: dict[str, Any]) -> str:
    """A digest of everything that decides about features beside the samples: settings, weights, precision."""
    parts = {name: about[name] for name in ("settings", "weights", "dtype")}
    text = json.dumps({"format_version": FORMAT_VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


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
        return self.folder / SHARD.format(shard)

    def finished(self, shard: int) -> dict[str, Any] | None:
        """What a whole shard of this key says of itself; None if there is none."""
        content = shard_about(self.path(shard))
        return content if content.get("key") == self.key else None

    def discard(self, shard: int) -> None:
        """Remove a shard that is not up to date, so that nobody reads it meanwhile."""
        self.path(shard).unlink(missing_ok=True)

    def stored(self, shard: int) -> tuple[Any, IntArray]:
        """Features (n, p) and row numbers (n,) of a whole shard."""
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
        """Write a shard whole or not at all: features (n, p), attributes and split of ``data``, numbers of the rows.

        ``digests`` are those of the samples and of the labels.
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
            pq.write_table(table, temporary)


@contextmanager
def open_folder(
    folder: Path, about: dict[str, Any], names: Sequence[str], n_rows: int, shard_rows: int, *, overwrite: bool = False
) -> Iterator[ShardFolder]:
    """A new or resumed folder, for this process alone. Features of another network are refused, or emptied."""
    taken = [name for name in RESERVED if name in names]
    if taken:
        raise InputError(f"an attribute is called {taken[0]!r}, which feature files use themselves: rename it")
    check_folder(folder, "to write features to")
    if not os.fsencode(folder).isascii() and str(folder) != os.fsencode(folder).decode("utf-8", "replace"):
        raise InputError(f"{str(folder)!r} is not valid UTF-8, which Parquet needs: pass another folder")
    if folder.is_dir() and not (folder / MANIFEST).is_file() and any(map(_is_foreign, folder.iterdir())):
        raise InputError(f"{str(folder)!r} holds other files: pass an empty or a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK) as alone:
        if not alone:
            raise InputError(f"another process is writing features to {str(folder)!r}: wait for it to end")
        yield _opened(folder, about, n_rows, shard_rows, overwrite=overwrite)


def _opened(folder: Path, about: dict[str, Any], n_rows: int, shard_rows: int, *, overwrite: bool) -> ShardFolder:
    """Settle what the folder holds, and note it in the manifest."""
    for leftover in folder.glob(".*.tmp*"):  # of a run that was killed while it wrote
        leftover.unlink()
    key = network_key(about)
    before = _read_manifest(folder / MANIFEST)
    if before.get("key") == key:
        shard_rows = int(before["shard_rows"])  # shards that are whole stay, whatever is asked for now
    elif before.get("key") == DAMAGED and not overwrite:
        raise InputError(f"{str(folder / MANIFEST)!r} is damaged: compute the features again with --overwrite")
    elif before and not overwrite:
        names = ("backbone", "settings", "weights", "dtype")
        changed = ", ".join(name for name in names if before.get(name) != about[name])
        raise InputError(
            f"{str(folder)!r} holds features of another network (they differ in {changed or 'their format'}): pass "
            "another folder, or --overwrite to replace them"
        )
    shards = ShardFolder(folder, key, n_rows, shard_rows)
    whole = {shards.path(shard) for shard in range(shards.n_shards)} if before.get("key") == key else set()
    for path in folder.glob(SHARD.format(0).replace("00000", "*")):
        if path not in whole:
            path.unlink()
    content = {**about, "key": key, "rows": n_rows, "shard_rows": shard_rows, "shards": shards.n_shards}
    if content != before:
        with replacing(folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return shards


def _is_foreign(path: Path) -> bool:
    """Whether a file is none that an extraction leaves behind."""
    return path.name != LOCK and not path.match(".*.tmp*")


def _read_manifest(path: Path) -> dict[str, Any]:
    """What the manifest says; of a damaged one, that it is."""
    if not check_ordinary(path).is_file():
        return {}
    try:
        content = read_json_object(path)
    except ValueError:
        return {"key": DAMAGED}
    whole = type(content.get("shard_rows")) is int and content["shard_rows"] > 0
    return content if whole else {"key": DAMAGED}
