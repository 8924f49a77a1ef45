"""Files that were made to do harm: refused in one sentence, before they take memory or lead elsewhere."""

import json
import os
import struct
import zipfile
import zlib

import numpy as np
import pandas as pd
import pytest

from compshift import InputError
from compshift.data.audit import read_group_counts
from compshift.data.benchmarks import benchmark
from compshift.data.feature_files import read_features
from compshift.data.feature_store import FeatureStore
from compshift.data.glue_cache import read_glue_cache
from compshift.data.images import BrokenImageError, broken_samples, check_image, read_image
from compshift.data.shards import read_manifest, shard_files
from compshift.data.table import load_table
from compshift.data.untrusted import column_chunks, pickle_end
from tests.data import trees


def npy(header, content=b""):
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header.encode() + content


def test_an_archive_that_would_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("compshift.data.untrusted.ALWAYS_ALLOWED_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "X.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1048576)}", bytes(3 << 20))
        )
    with pytest.raises(InputError, match="would unpack to 3,14"):
        read_features(tmp_path / "a.npz", ["a"])


@pytest.mark.parametrize("beside", ["X.txt", "X.npy.txt", "a/X.npy", "x.npy"])
def test_an_archive_whose_other_members_are_small(tmp_path, monkeypatch, beside):
    monkeypatch.setattr("compshift.data.untrusted.ALWAYS_ALLOWED_BYTES", 1 << 20)
    big = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1048576)}", bytes(3 << 20))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", big)
        archive.writestr(beside, b"small")
    with pytest.raises(InputError, match="would unpack to 3,14"):
        read_features(tmp_path / "a.npz", ["a"])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["X.npy", "X"])
def test_two_arrays_of_one_name(tmp_path, second):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("X.npy", second):
            archive.writestr(name, npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1)}", b"a"))
    with pytest.raises(InputError, match="has two arrays 'X': write it again, with one of each name"):
        read_features(tmp_path / "a.npz", ["a"])


def test_a_directory_that_lies_about_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr("compshift.data.untrusted.ALWAYS_ALLOWED_BYTES", 1 << 20)
    big = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1048576)}", bytes(3 << 20))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", big)
    content = (tmp_path / "a.npz").read_bytes().replace(struct.pack("<I", len(big)), struct.pack("<I", 200))
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        read_features(tmp_path / "a.npz", ["a"])


OBJECTS = npy("{'descr': '|O', 'shape': (1,), 'fortran_order': False}")


@pytest.mark.parametrize("content", [b"x", npy("[" * 3000), OBJECTS])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_that_are_no_arrays(tmp_path, content, compression):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
        archive.writestr("X.npy", content)
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        read_features(tmp_path / "a.npz", ["a"])


def test_damaged_compression(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.arange(2000.0).reshape(-1, 2))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[200:260] = bytes(60)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        read_features(tmp_path / "a.npz", ["a"])


def test_codes_without_names_and_without_end(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones((2, 1)), Z=[[0], [10**12]], attribute_names=["a"])
    with pytest.raises(InputError, match="Z has the code 1000000000000"):
        read_features(tmp_path / "a.npz", ["a"])


def test_parquet_that_would_fill_the_memory(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    block = pa.table({"a": pa.nulls(1 << 20)})
    with pq.ParquetWriter(tmp_path / "a.parquet", block.schema) as writer:
        for _ in range(40):
            writer.write_table(block)
    with pytest.raises(InputError, match="would unpack to"):
        read_group_counts(tmp_path / "a.parquet", ["a"])


def test_footers_tell_what_pyarrow_tells(tmp_path):
    import pyarrow.parquet as pq

    frame = pd.DataFrame({"a": ["x", None] * 50, "b": np.arange(100.0), "c": [[1, 2, 3]] * 100})
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=30)
    about = pq.read_metadata(tmp_path / "a.parquet")
    told = [about.row_group(group).column(column) for group in range(4) for column in range(3)]
    expected = [(c.path_in_schema.split(".")[0], c.num_values, c.total_uncompressed_size) for c in told]
    assert list(column_chunks(tmp_path / "a.parquet")) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r" + struct.pack("<I", 2**32 - 2) + b"0].",
        b"]p4000000000\n0].",
        b"\x80\x05\x96" + struct.pack("<Q", 8 << 30) + b"abc.",
        b"\x82\x01.",
        b"\x80\x02](K",
    ],
)
def test_pickles_that_ask_for_too_much(tmp_path, content):
    with pytest.raises(ValueError, match=r"memory|cut off|opcode"):
        pickle_end(content)
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as a feature cache"):
        read_glue_cache(tmp_path / "c")


def test_lists_that_stand_for_many_numbers(tmp_path):
    import pickle

    features = trees.glue_features([0], length=10)
    for _ in range(12):
        features[0].input_ids = [features[0].input_ids] * 10
    (tmp_path / "c").write_bytes(trees.pickled(features, lambda found: pickle.dumps(found, protocol=2)))
    with pytest.raises(InputError, match="all of them whole numbers"):
        read_glue_cache(tmp_path / "c")
    features = trees.glue_features([0], length=3000) * 3000
    (tmp_path / "c").write_bytes(trees.pickled(features, lambda found: pickle.dumps(found, protocol=2)))
    with pytest.raises(InputError, match="3000 examples of length 3000 do not fit into the file"):
        read_glue_cache(tmp_path / "c")


NO_MANIFESTS = ("[" * 100_000, '{"shards": 1e400, "key": "k"}', '{"shards": -1, "key": "k"}', "[]", "\xff")


@pytest.mark.parametrize("text", NO_MANIFESTS)
def test_manifests(tmp_path, text):
    (tmp_path / "_features.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is damaged"):
        read_manifest(tmp_path)


def test_a_manifest_with_shards_without_end(tmp_path):
    (tmp_path / "_features.json").write_text(json.dumps({"shards": 10**12, "key": "k"}))
    with pytest.raises(InputError, match="has 0 of 1000000000000 shards"):
        shard_files(tmp_path)


def test_shards_that_are_links(tmp_path):
    pd.DataFrame({"features": [[1.0]], "a": ["x"]}).to_parquet(tmp_path / "secret.parquet")
    (tmp_path / "shards").mkdir()
    os.symlink(tmp_path / "secret.parquet", tmp_path / "shards" / "a.parquet")
    for read in (lambda path: read_features(path, ["a"]), lambda path: FeatureStore(path).columns):
        with pytest.raises(InputError, match="leads out of"):
            read(tmp_path / "shards")


@pytest.mark.parametrize("name", ["/secret.jpg", "../../secret.jpg", "a/../../../secret.jpg", "..\\..\\secret.jpg"])
def test_metadata_that_leads_elsewhere(tmp_path, name):
    trees.waterbirds(tmp_path, "authors")
    trees.image(tmp_path / "secret.jpg")
    path = tmp_path / "waterbirds/waterbird_complete95_forest2water2/metadata.csv"
    table = pd.read_csv(path)
    table["img_filename"] = table["img_filename"].where(table.index != 3, name)
    table.to_csv(path, index=False)
    with pytest.raises(InputError, match="row 3 is not below"):
        benchmark("waterbirds").load(tmp_path)


def test_links_in_a_data_set(tmp_path):
    trees.waterbirds(tmp_path / "root", "authors")
    trees.image(tmp_path / "secret.jpg")
    folder = tmp_path / "root/waterbirds/waterbird_complete95_forest2water2"
    first = folder / trees.BIRDS[0][0]
    first.unlink()
    os.symlink(tmp_path / "secret.jpg", first)
    assert "leads out of" in next(broken_samples(benchmark("waterbirds").load(tmp_path / "root")))
    (tmp_path / "root/waterbirds").rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "root/waterbirds")  # the user's own: data on another disk
    assert len(benchmark("waterbirds").load(tmp_path / "root")) == len(trees.BIRDS)
    folder.rename(tmp_path / "moved")
    os.symlink(tmp_path / "moved", folder)
    with pytest.raises(InputError, match="leads out of"):
        benchmark("waterbirds").load(tmp_path / "root")


def test_objects_that_name_other_folders(tmp_path):
    trees.nicopp(tmp_path, "plain")
    (tmp_path / "nicopp/dg_label_id_mapping.json").write_text(json.dumps({"../../..": 0}))
    with pytest.raises(InputError, match="cannot be the name of a folder"):
        benchmark("nico++").load(tmp_path)


def test_a_table_with_a_root_stays_below_it(tmp_path):
    trees.image(tmp_path / "photos/a.jpg")
    trees.image(tmp_path / "secret.jpg")
    frame = pd.DataFrame({"photo": ["a.jpg", "../secret.jpg"], "bird": ["x", "y"]})
    images = load_table(frame, target="bird", path="photo", root=tmp_path / "photos").samples
    assert images.path(0).is_file()
    with pytest.raises(InputError, match="leads out of"):
        images.path(1)
    frame.assign(photo=[str(tmp_path / "photos/a.jpg"), str(tmp_path / "secret.jpg")]).to_csv(tmp_path / "t.csv")
    images = load_table(tmp_path / "t.csv", target="bird", path="photo").samples  # no root: the user's own word
    assert images.path(1).is_file()


def png(width, height):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"


@pytest.mark.parametrize("content", [png(9_000, 9_000), png(200_000, 1), POSTSCRIPT])
@pytest.mark.parametrize("read", [read_image, check_image])
def test_images_that_are_too_large_or_programs(tmp_path, content, read):
    pytest.importorskip("PIL")
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(BrokenImageError, match="cannot be decoded"):
        read(tmp_path / "a.jpg")


def test_a_pipe_is_no_image(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(BrokenImageError, match="no ordinary file"):
        read_image(tmp_path / "a.jpg")
