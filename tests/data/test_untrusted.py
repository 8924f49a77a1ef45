"""Files that are designed to exhaust memory raise an InputError before memory is allocated."""

import os
import struct
import zipfile

import numpy as np
import pandas as pd
import pytest

from compshift import InputError
from compshift.data.audit import read_group_counts
from compshift.data.feature_files import read_features
from compshift.data.glue_cache import read_glue_cache
from compshift.data.images import BrokenImageError, read_image
from compshift.data.untrusted import column_chunks, pickle_end


def npy(header, content=b""):
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header.encode() + content


def test_npz_that_would_fill_the_memory_raises(tmp_path, monkeypatch):
    monkeypatch.setattr("compshift.data.untrusted.ALWAYS_ALLOWED_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "X.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1048576)}", bytes(3 << 20))
        )
    with pytest.raises(InputError, match="would unpack to 3,14"):
        read_features(tmp_path / "a.npz", ["a"])


@pytest.mark.parametrize("beside", ["X.txt", "X.npy.txt", "a/X.npy", "x.npy"])
def test_npz_size_is_that_of_the_member_that_is_read(tmp_path, monkeypatch, beside):
    monkeypatch.setattr("compshift.data.untrusted.ALWAYS_ALLOWED_BYTES", 1 << 20)
    big = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1048576)}", bytes(3 << 20))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", big)
        archive.writestr(beside, b"small")
    with pytest.raises(InputError, match="would unpack to 3,14"):
        read_features(tmp_path / "a.npz", ["a"])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["X.npy", "X"])
def test_npz_with_two_arrays_of_one_name_raises(tmp_path, second):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("X.npy", second):
            archive.writestr(name, npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1)}", b"a"))
    with pytest.raises(InputError, match="has two arrays named 'X': write it again with unique names"):
        read_features(tmp_path / "a.npz", ["a"])


def test_npz_with_a_false_size_in_its_directory_raises(tmp_path, monkeypatch):
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
def test_npz_members_that_are_not_arrays_raise(tmp_path, content, compression):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
        archive.writestr("X.npy", content)
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        read_features(tmp_path / "a.npz", ["a"])


def test_npz_with_damaged_compression_raises(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.arange(2000.0).reshape(-1, 2))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[200:260] = bytes(60)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        read_features(tmp_path / "a.npz", ["a"])


def test_parquet_that_would_fill_the_memory_raises(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    block = pa.table({"a": pa.nulls(1 << 20)})
    with pq.ParquetWriter(tmp_path / "a.parquet", block.schema) as writer:
        for _ in range(40):
            writer.write_table(block)
    with pytest.raises(InputError, match="would unpack to"):
        read_group_counts(tmp_path / "a.parquet", ["a"])


def test_column_chunks_agree_with_pyarrow(tmp_path):
    import pyarrow.parquet as pq

    frame = pd.DataFrame({"a": ["x", None] * 50, "b": np.arange(100.0), "c": [[1, 2, 3]] * 100})
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=30)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    chunks = [metadata.row_group(group).column(column) for group in range(4) for column in range(3)]
    expected = [(c.path_in_schema.split(".")[0], c.num_values, c.total_uncompressed_size) for c in chunks]
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
def test_pickles_that_would_fill_the_memory_raise(tmp_path, content):
    with pytest.raises(ValueError, match=r"memory|cut off|opcode"):
        pickle_end(content)
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as a feature cache"):
        read_glue_cache(tmp_path / "c")


def test_a_pipe_raises_and_is_not_opened_as_an_image(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(BrokenImageError, match="not a regular file"):
        read_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("value", [b"\x19", b"\x1c"])
def test_deeply_nested_footers_raise(tmp_path, value):
    """Lists of lists, and structures in structures; each level takes one byte."""
    content = value * 50_000 + bytes(50_000)
    path = tmp_path / "deep.parquet"
    path.write_bytes(b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="its footer is nested too deeply"):
        list(column_chunks(path))
