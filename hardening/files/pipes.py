"""Pipes in the place of files. Whoever opened one would wait for a writer that never comes."""

import os
from collections.abc import Iterator

import compshift as cs
from compshift.data.feature_files import read_features
from compshift.data.feature_store import FeatureStore
from hardening.files.hostile import NAMES, Attack, read_any
from hardening.files.sandbox import Sandbox


def attacks(box: Sandbox) -> Iterator[Attack]:
    """Pipes that nobody writes to: whoever opened one would wait without end."""
    from compshift.cli.train_config import TrainConfig

    folder = box.inside / "pipes"
    for name in ("p.npz", "p.csv", "p.parquet", "p.safetensors", "p.toml", "shards/a.parquet", "run/run.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / name)
    for ending in ("npz", "csv", "parquet", "safetensors"):
        yield Attack(f"a pipe as .{ending}", lambda path=folder / f"p.{ending}": read_any(path))
    yield Attack("a pipe as a shard", lambda: read_features(folder / "shards", NAMES))
    yield Attack("a pipe as a shard of a store", lambda: FeatureStore(folder / "shards").n_rows)
    yield Attack("a pipe as the file of a run", lambda: cs.load(folder / "run"))
    yield Attack("a pipe as a configuration", lambda: TrainConfig.read(folder / "p.toml", {}, [], folder / "new"))
