"""Folders of Parquet shards must match their manifest and must not contain links out of the folder."""

import json
import os

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compshift import InputError
from compshift.data.feature_files import read_features
from compshift.data.feature_store import FeatureStore
from compshift.data.shards import read_manifest, shard_files

DAMAGED_MANIFESTS = ("[" * 100_000, '{"shards": 1e400, "key": "k"}', '{"shards": -1, "key": "k"}', "[]", "\xff")


@pytest.mark.parametrize("text", DAMAGED_MANIFESTS)
def test_damaged_manifests_raise(tmp_path, text):
    (tmp_path / "_features.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is damaged"):
        read_manifest(tmp_path)


def test_a_manifest_with_a_huge_number_of_shards_raises(tmp_path):
    (tmp_path / "_features.json").write_text(json.dumps({"shards": 10**12, "key": "k"}))
    with pytest.raises(InputError, match="has 0 of 1000000000000 shards"):
        shard_files(tmp_path)


def test_a_shard_of_another_network_is_missing(tmp_path):
    (tmp_path / "_features.json").write_text(json.dumps({"shards": 2, "key": "k"}))
    for number, key in enumerate(["k", "other"]):
        table = pa.table({"features": [[1.0]]}).replace_schema_metadata({"compshift": json.dumps({"key": key})})
        pq.write_table(table, tmp_path / f"part-{number:05d}.parquet")
    with pytest.raises(InputError, match="has 1 of 2 shards: run the same `compshift features` command again"):
        shard_files(tmp_path)


def test_shards_that_are_links_out_of_the_folder_raise(tmp_path):
    pd.DataFrame({"features": [[1.0]], "a": ["x"]}).to_parquet(tmp_path / "secret.parquet")
    (tmp_path / "shards").mkdir()
    os.symlink(tmp_path / "secret.parquet", tmp_path / "shards" / "a.parquet")
    for read in (lambda path: read_features(path, ["a"]), lambda path: FeatureStore(path).columns):
        with pytest.raises(InputError, match="leads out of"):
            read(tmp_path / "shards")
