"""Files that were made to do harm: pickled code, archives that fill the memory, sizes without end, odd text."""

import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import compshift as cs
from compshift.data.audit import read_group_counts
from compshift.data.feature_files import read_features
from compshift.data.feature_store import FeatureStore
from compshift.data.glue_cache import read_glue_cache
from compshift.data.images import check_image, read_image
from compshift.data.shards import read_manifest
from compshift.data.table import load_table
from hardening.files.formats import small_data
from hardening.files.sandbox import Sandbox

NAMES = ["bird", "place"]
DEEP = 100_000
GIGABYTE = 1 << 30


class Attack(NamedTuple):
    """A file, and what is done with it; it is refused, unless a check tells that the answer is right."""

    name: str
    read: Callable[[], Any]
    check: Callable[[Any], str | None] = lambda _: "it was accepted"


class Payload:
    """Pickles as a command that leaves a mark."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def attacks(box: Sandbox) -> Iterator[Attack]:
    """All of them, each once its file is there."""
    folder = box.inside / "hostile"
    folder.mkdir()
    yield from pickled_code(folder, box.marker)
    yield from archives(folder)
    yield from parquets(folder)
    yield from safetensors(folder)
    yield from texts(folder)
    yield from images(folder)


def pickled_code(folder: Path, marker: Path) -> Iterator[Attack]:
    """Code in a pickle, wherever one can be put."""
    import torch
    import transformers.models.auto  # noqa: F401 - so that no attack is timed with it

    code, plain = pickle.dumps(Payload(marker)), pickle.dumps(Payload(marker), protocol=0)
    data = small_data()
    for ending in ("npz", "parquet", "safetensors", "csv"):
        for number, content in enumerate((code, plain)):
            path = folder / f"renamed{number}.{ending}"
            path.write_bytes(content)
            yield Attack(f"a pickle as .{ending}", lambda path=path: read_any(path))
    objects = folder / "objects.npz"
    np.savez(objects, X=data.X, Z=data.codes, attribute_names=np.array([Payload(marker), "place"], dtype=object))
    yield Attack("pickled attribute_names", lambda: read_features(objects, NAMES))
    np.savez(objects, X=np.array([[Payload(marker)]], dtype=object), Z=data.codes, attribute_names=np.array(NAMES))
    yield Attack("pickled X", lambda: read_features(objects, NAMES))
    member = folder / "member.npz"
    with zipfile.ZipFile(member, "w") as archive:
        archive.writestr("X.npy", code)
        archive.writestr("Z.npy", code)
    yield Attack("a pickle as a member of .npz", lambda: read_features(member, NAMES))
    for name, legacy in (("torch", False), ("torch, old", True)):
        path = folder / f"{name}.pt"
        torch.save([Payload(marker)], path, _use_new_zipfile_serialization=not legacy)
        yield Attack(f"a cache by {name} with code", lambda path=path: read_glue_cache(path))
        run = folder / f"run {name}"
        cs.training.train(data, "erm", "linear", cs.training.Settings(steps=2, eval_every=2), folder=run, device="cpu")
        (run / "model.safetensors").write_bytes(path.read_bytes())
        yield Attack(f"a run whose weights are a checkpoint by {name}", lambda run=run: cs.load(run))
    for name, content in {
        "code": code,
        "code, protocol 0": plain,
        "a memo without end": b"\x80\x02]r" + struct.pack("<I", 2**32 - 2) + b"0].",
        "a memo without end, as text": b"]p4000000000\n0].",
        "a text without end": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc.",
        "bytes without end": b"\x80\x05\x96" + struct.pack("<Q", 8 << 30) + b"abc.",
        "ten lists in ten lists in …": _laughs(),
    }.items():
        path = folder / f"cache {len(name)} {len(content)}"
        path.write_bytes(content)
        yield Attack(f"a cache with {name}", lambda path=path: read_glue_cache(path))
    backbone = folder / "backbone"
    backbone.mkdir()
    (backbone / "config.json").write_text(json.dumps({"model_type": "bert", "auto_map": {"AutoModel": "code.Evil"}}))
    (backbone / "code.py").write_text(f"import os; os.system('touch {marker}')")
    torch.save({"a": Payload(marker)}, backbone / "pytorch_model.bin")
    yield Attack("a backbone with code", lambda: cs.nn.load_backbone(str(backbone), "text"))


def _laughs() -> bytes:
    """Ten lists of the same ten lists of …: a kilobyte that stands for 10¹² numbers."""
    content = b"\x80\x02](" + b"K\x00" * 10 + b"eq\x00"
    for level in range(1, 12):
        content += b"](" + b"h" + bytes([level - 1]) + (b"h" + bytes([level - 1])) * 9 + b"eq" + bytes([level])
    record = b"\x80\x02]cutils_glue\nInputFeatures\n)\x81}("
    fields = (b"input_ids", b"input_mask", b"segment_ids")
    for field in fields:
        record += b"X" + struct.pack("<I", len(field)) + field + content[2:]
    return record + b"X\x08\x00\x00\x00label_idK\x00uba."


def archives(folder: Path) -> Iterator[Attack]:
    """.npz files that declare or hold more than memory has."""
    bomb = folder / "bomb.npz"
    header = _npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({4 * GIGABYTE}, 1)}}")
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("X.npy", "w") as one,
    ):
        one.write(header)
        for _ in range(64):
            one.write(bytes(1 << 24))  # a gigabyte of nothing in a megabyte
    yield Attack("a gigabyte of zeros", lambda: read_features(bomb, NAMES))
    beside = folder / "beside.npz"
    shutil.copy(bomb, beside)
    with zipfile.ZipFile(beside, "a") as archive:
        for name in ("X.txt", "a/X.npy"):
            archive.writestr(name, b"small")
    yield Attack("a gigabyte of zeros beside small members", lambda: read_features(beside, NAMES))
    data = small_data()
    codes = folder / "codes.npz"
    np.savez(codes, X=data.X, Z=np.where(data.codes, 10**12, 0), attribute_names=np.array(NAMES))
    yield Attack("codes up to a trillion", lambda: read_features(codes, NAMES))
    for name, text in {
        "a shape of a trillion": f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**12}, 8)}}",
        "a negative shape": "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 8)}",
        "a shape that overflows": f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**62}, {2**62})}}",
        "code for a header": "__import__('os').system('true')",
        "a deep header": "[" * 3000,
        "a long header": "{'descr': '<f8', 'shape': " + "9" * 60_000,
        "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1, 1)}",
        "a deep type": "{'descr': "
        + "[('a', " * 200
        + "'<f8'"
        + ")]" * 200
        + ", 'fortran_order': False, 'shape': (1,)}",
    }.items():
        path = folder / f"header {len(name)} {len(text)}.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", _npy(text) + bytes(64))
        yield Attack(f"an array with {name}", lambda path=path: read_features(path, NAMES))
        bare = path.with_name(f"bare {path.name}")
        bare.write_bytes(_npy(text) + bytes(64))
        yield Attack(f"a bare array with {name}", lambda bare=bare: read_features(bare, NAMES))


def _npy(header: str) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def parquets(folder: Path) -> Iterator[Attack]:
    """Parquet files that unpack to gigabytes: equal entries are stored once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "bomb.parquet"
    block = pa.table({"bird": pa.array(np.zeros(1 << 24, np.int8)).dictionary_encode(), "place": pa.nulls(1 << 24)})
    with pq.ParquetWriter(path, block.schema, compression="zstd") as writer:
        for _ in range(24):
            writer.write_table(block)  # 400 million rows in some kilobytes
    yield Attack("400 million equal rows", lambda: read_group_counts(path, NAMES))
    lists = folder / "lists.parquet"
    inner = pa.ListArray.from_arrays([0, 1 << 27], pa.array(np.zeros(1 << 27, np.float32)))
    pq.write_table(pa.table({"features": inner, "bird": ["a"], "place": ["b"]}), lists, compression="zstd")
    yield Attack("one list of 100 million numbers", lambda: read_features(lists, NAMES))
    yield Attack("the same as a store", lambda: FeatureStore(lists).n_features)


def safetensors(folder: Path) -> Iterator[Attack]:
    """Model files whose headers do not fit."""
    entry = {"dtype": "F64", "shape": [4], "data_offsets": [0, 32]}
    for name, header, length in (
        ("a header of 2⁶³ bytes", b"{}", 2**63),
        ("a header of a terabyte", b"{}", 1 << 40),
        ("a deep header", b'{"a":' * DEEP, None),
        ("entries that overlap", json.dumps({"a": entry, "b": entry}).encode(), None),
        ("an entry out of bounds", json.dumps({"a": {**entry, "data_offsets": [0, 1 << 50]}}).encode(), None),
        ("a shape of a trillion", json.dumps({"a": {**entry, "shape": [10**12]}}).encode(), None),
        ("a shape that overflows", json.dumps({"a": {**entry, "shape": [2**63, 2**63]}}).encode(), None),
        ("a deep note", json.dumps({"__metadata__": {"compshift": "[" * DEEP, "sha256": ""}}).encode(), None),
    ):
        path = folder / f"model {len(name)} {len(header)}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + bytes(32))
        yield Attack(f"a model with {name}", lambda path=path: cs.load(path))


def texts(folder: Path) -> Iterator[Attack]:
    """JSON, TOML and CSV that are deep, long or strangely written."""
    from compshift.cli.train_config import TrainConfig

    shards = folder / "shards"
    shards.mkdir()
    for name, text in {
        "depth": "[" * DEEP,
        "a number of a million digits": '{"shards": ' + "9" * 1_000_000 + ', "key": "k"}',
        "shards without end": '{"shards": 1000000000000, "key": "k"}',
        "infinitely many shards": '{"shards": Infinity, "key": "k"}',
        "no number of shards": '{"shards": NaN, "key": "k"}',
        "a key twice": '{"shards": -1, "shards": -2, "key": "k"}',
    }.items():
        path = folder / "shards" / "_features.json"

        def read(path: Path = path, text: str = text) -> Any:
            path.write_text(text)
            read_manifest(path.parent)
            return read_features(path.parent, NAMES)

        yield Attack(f"a manifest with {name}", read)
    for name, text in {
        "depth": "a = " + "[" * DEEP,
        "deep tables": "a = " + "{a = " * 20_000,
        "a long key": ".".join("a" * 100_000) + " = 1",
        "a number of a million digits": "steps = " + "9" * 1_000_000,
        "a date that is none": "steps = 0000-00-00",
    }.items():
        path = folder / f"config {len(name)}.toml"
        path.write_text(text)
        yield Attack(f"a configuration with {name}", lambda path=path: TrainConfig.read(path, {}, [], folder / "new"))
    wide = ",".join(f"c{number}" for number in range(100_000)) + "\n" + ",".join("1" * 100_000) + "\n"
    for name, content in {
        "100 000 columns": wide.encode(),
        "NUL": b"bird,place\0\na,b\n\0\0,\0\n",
        "UTF-16": "bird,place\na,b\n".encode("utf-16"),
        "a field of 50 MB": b"bird,place\na," + b"x" * (50 << 20) + b"\n",
        "an open quotation": b'bird,place\n"a,b\n',
        "nothing": b"",
        "no line end": b"bird,place",
    }.items():
        path = folder / f"table {len(name)} {len(content)}.csv"
        path.write_bytes(content)
        yield Attack(f"a table with {name}", lambda path=path: read_group_counts(path, NAMES))
    marked = folder / "marked.csv"
    marked.write_bytes(b"\xef\xbb\xbfbird,place\na,b\n")
    yield Attack("a table with a byte order mark", lambda: read_group_counts(marked, NAMES), lambda _: None)


def images(folder: Path) -> Iterator[Attack]:
    """Images that are large, long, or programs."""
    for name, width, height in (("pixels without end", 60_000, 60_000), ("a very long side", 60_000_000, 1)):
        path = folder / f"{width}.png"
        path.write_bytes(_png(width, height))
        yield Attack(f"an image with {name}", lambda path=path: check_image(path))
        yield Attack(f"an image with {name}, read", lambda path=path: read_image(path))
    script = folder / "photo.jpg"
    script.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) (w) file\nshowpage\n%%EOF\n")
    yield Attack("PostScript as an image", lambda: read_image(script))
    pipe = folder / "pipe.jpg"
    os.mkfifo(pipe)
    yield Attack("a pipe as an image", lambda: read_image(pipe))


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")


def read_any(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return cs.load(path)
    if path.suffix == ".csv":
        return load_table(path, target="bird", text="place")
    return read_features(path, NAMES)
