"""Thousands of damaged files, and attacks made by hand: nothing runs, nothing outside is read, memory stays bounded."""

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import compshift as cs
from compshift.cli.train_config import TrainConfig
from compshift.data.audit import read_group_counts
from compshift.data.glue_cache import read_glue_cache
from compshift.data.images import broken_samples
from tests.data import trees
from tests.hardening.formats import MAKERS, NAMES, SPACE, small_data, train_run
from tests.hardening.verdicts import SHARE, Sandbox, Tally, generator

UNIT = "files"
DEEP = 100_000


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("sandbox").resolve())


@pytest.fixture
def folder(box: Sandbox, request: pytest.FixtureRequest) -> Path:
    path = box.inside / request.node.name
    path.mkdir()
    return path


@pytest.fixture
def attack(box: Sandbox, tally: Tally) -> Callable[..., None]:
    """Return a function that counts one read; the file must be rejected."""

    def read(label: str, call: Callable[[], Any]) -> None:
        box.forget()
        box.attempt(tally, label, call, lambda _: "it was accepted")

    return read


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_damaged_files(make: Callable[[Path], Any], box: Sandbox, folder: Path, tally: Tally) -> None:
    for form in make(folder):
        content, accepted = form.file.read_bytes(), tally.accepted
        box.attempt(tally, f"{form.name}, unchanged", form.read, form.check)
        if tally.accepted == accepted:
            tally.fail("wrong result", f"{form.name}: the unchanged file is rejected")
        rng = generator(form.name)
        for number in range(form.rounds // SHARE):  # each gives something valid or one sentence
            mutation = form.mutations[number % len(form.mutations)]
            form.file.write_bytes(mutation(content, rng))
            box.attempt(tally, f"{form.name}, {mutation.__name__} {number}", form.read, form.check)
        form.file.write_bytes(content)


class Payload:
    """Pickles as a command that leaves a mark."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def read_any(path: Path) -> Any:
    """Read a file by its suffix."""
    if path.suffix == ".safetensors":
        return cs.load(path)
    if path.suffix == ".csv":
        return cs.data.load_table(path, target="bird", text="place")
    return cs.data.read_features(path, NAMES)


def test_pickled_code(box: Sandbox, folder: Path, attack: Any) -> None:
    import transformers.models.auto  # noqa: F401 - its import must not be timed

    payload, data = Payload(box.marker), small_data()
    code, plain = pickle.dumps(payload), pickle.dumps(payload, protocol=0)
    for ending in ("npz", "parquet", "safetensors", "csv"):
        for number, content in enumerate((code, plain)):
            path = folder / f"renamed{number}.{ending}"
            path.write_bytes(content)
            attack(f"a pickle as .{ending}", lambda path=path: read_any(path))
    objects, member, backbone = folder / "objects.npz", folder / "member.npz", folder / "backbone"
    np.savez(objects, X=data.X, Z=data.codes, attribute_names=np.array([payload, "place"], dtype=object))
    attack("pickled attribute_names", lambda: read_any(objects))
    np.savez(objects, X=np.array([[payload]], dtype=object), Z=data.codes, attribute_names=np.array(NAMES))
    attack("pickled X", lambda: read_any(objects))
    with zipfile.ZipFile(member, "w") as archive:
        archive.writestr("X.npy", code)
        archive.writestr("Z.npy", code)
    attack("a pickle as a member of .npz", lambda: read_any(member))
    for legacy in (False, True):
        path = folder / f"checkpoint {legacy}.pt"
        torch.save([payload], path, _use_new_zipfile_serialization=not legacy)
        attack("a PyTorch file as a cache", lambda path=path: read_glue_cache(path))
        run = train_run(folder / f"run {legacy}")
        shutil.copy(path, run / "model.safetensors")
        attack("a PyTorch file as weights", lambda run=run: cs.load(run))
    for content in (code, plain):
        objects.write_bytes(content)
        attack("a cache with code", lambda: read_glue_cache(objects))
    backbone.mkdir()
    (backbone / "config.json").write_text(json.dumps({"model_type": "bert", "auto_map": {"AutoModel": "code.Evil"}}))
    (backbone / "code.py").write_text(f"import os; os.system('touch {box.marker}')")
    torch.save({"a": payload}, backbone / "pytorch_model.bin")
    attack("a backbone with code", lambda: cs.nn.load_backbone(str(backbone), "text"))


def npy(header: str) -> bytes:
    """An .npy file with a header of any text."""
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header.encode() + bytes(64)


def test_archives(folder: Path, attack: Any) -> None:
    bomb, beside, codes, data = folder / "bomb.npz", folder / "beside.npz", folder / "codes.npz", small_data()
    packed = zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
    with packed as archive, archive.open("X.npy", "w") as one:
        one.write(npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({4 << 30}, 1)}}"))
        for _ in range(64):
            one.write(bytes(1 << 24))  # a gigabyte of zeros in a megabyte
    attack("a gigabyte of zeros", lambda: read_any(bomb))
    shutil.copy(bomb, beside)
    with zipfile.ZipFile(beside, "a") as archive:
        archive.writestr("X.txt", b"small")
        archive.writestr("a/X.npy", b"small")
    attack("a gigabyte of zeros beside small members", lambda: read_any(beside))
    np.savez(codes, X=data.X, Z=np.where(data.codes, 10**12, 0), attribute_names=np.array(NAMES))
    attack("codes up to a trillion", lambda: read_any(codes))
    form = "{{'descr': {}, 'fortran_order': False, 'shape': {}}}"
    deep = "[('a', " * 200 + "'<f8'" + ")]" * 200
    for number, text in enumerate(
        [
            *(form.format("'<f8'", shape) for shape in ((10**12, 8), (-1, 8), (2**62, 2**62))),
            *("__import__('os').system('true')", "[" * 3000, "{'descr': '<f8', 'shape': " + "9" * 60_000),
            *(form.format("'|O'", (1, 1)), form.format(deep, (1,))),
        ]
    ):
        path = folder / f"header {number}.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", npy(text))
        attack(f"an array with {text:.80}", lambda path=path: read_any(path))
        path.write_bytes(npy(text))
        attack(f"a bare array with {text:.80}", lambda path=path: read_any(path))


def test_parquet_bombs(folder: Path, attack: Any) -> None:
    rows, lists = folder / "bomb.parquet", folder / "lists.parquet"
    block = pa.table({"bird": pa.array(np.zeros(1 << 24, np.int8)).dictionary_encode(), "place": pa.nulls(1 << 24)})
    with pq.ParquetWriter(rows, block.schema, compression="zstd") as writer:
        for _ in range(24):
            writer.write_table(block)
    attack("400 million equal rows", lambda: read_group_counts(rows, NAMES))
    inner = pa.ListArray.from_arrays([0, 1 << 27], pa.array(np.zeros(1 << 27, np.float32)))
    pq.write_table(pa.table({"features": inner, "bird": ["a"], "place": ["b"]}), lists, compression="zstd")
    attack("one list of 100 million numbers", lambda: read_any(lists))
    attack("the same as a store", lambda: cs.data.FeatureStore(lists).n_features)


def test_model_headers(folder: Path, attack: Any) -> None:
    entry = {"dtype": "F64", "shape": [4], "data_offsets": [0, 32]}
    headers: dict[str, tuple[Any, int | None]] = {
        "a header of 2^63 bytes": (b"{}", 2**63), "a header of a terabyte": (b"{}", 1 << 40),
        "a deep header": (b'{"a":' * DEEP, None), "entries that overlap": ({"a": entry, "b": entry}, None),
        "an entry out of bounds": ({"a": {**entry, "data_offsets": [0, 1 << 50]}}, None),
        "a shape of a trillion": ({"a": {**entry, "shape": [10**12]}}, None),
        "a shape that overflows": ({"a": {**entry, "shape": [2**63, 2**63]}}, None),
        "a deep note": ({"__metadata__": {"compshift": "[" * DEEP, "sha256": ""}}, None),
    }  # fmt: skip
    for name, (content, length) in headers.items():
        header = content if isinstance(content, bytes) else json.dumps(content).encode()
        path = folder / f"{name}.safetensors"
        path.write_bytes(struct.pack("<Q", length or len(header)) + header + bytes(32))
        attack(f"a model with {name}", lambda path=path: cs.load(path))


def test_hostile_texts(folder: Path, attack: Any) -> None:
    config = folder / "config.toml"
    deep = ("a = " + "[" * DEEP, "a = " + "{a = " * 20_000, ".".join("a" * DEEP) + " = 1")
    for text in (*deep, "steps = " + "9" * 1_000_000, "steps = 0000-00-00"):
        config.write_text(text)
        attack(f"configuration {text:.30}", lambda: TrainConfig.read(config, {}, [], folder / "new"))
    wide = ",".join(f"c{number}" for number in range(DEEP))
    for name, content in {
        "100 000 columns": f"{wide}\n{','.join('1' * DEEP)}\n".encode(),
        "NUL": b"bird,place\0\na,b\n\0\0,\0\n",
        "a field of 50 MB": b"bird,place\na," + b"x" * (50 << 20) + b"\n",
    }.items():
        (folder / f"{name}.csv").write_bytes(content)
        attack(f"a table with {name}", lambda name=name: read_group_counts(folder / f"{name}.csv", NAMES))


def test_names_that_lead_outside(box: Sandbox, folder: Path, attack: Any) -> None:
    secret, climb = f"{box.outside}/secret.jpg", "../" * 12 + str(box.outside).lstrip("/")
    trees.image(Path(secret))
    sets = {
        "waterbirds": (trees.waterbirds, "subpopbench", "metadata_waterbirds.csv", "filename"),
        "celeba": (trees.celeba, "csv", "data/list_attr_celeba.csv", "image_id"),
        "metashift": (trees.metashift, "table", "metadata_metashift.csv", "filename"),
        "nico++": (trees.nicopp, "table", "metadata.csv", "filename"),
    }

    def load_all(name: str) -> None:
        for sentence in broken_samples(cs.data.benchmark(name).load(folder)):
            raise cs.InputError(sentence)

    for name, (make, packaging, file, column) in sets.items():
        make(folder, packaging)
        table = next(folder.glob(f"*/{file}"))
        content = pd.read_csv(table, dtype=str, keep_default_na=False)
        photo = next((folder / table.relative_to(folder).parts[0]).rglob("*.jpg"))
        parent = content[column][0].rpartition("/")[0]
        for way in (secret, f"{climb}/secret.jpg", f"{parent}/{climb}/secret.jpg"):
            content.assign(**{column: [way, *content[column][1:]]}).to_csv(table, index=False)
            attack(f"{name} names {way[:3]}…", partial(load_all, name))
        content.to_csv(table, index=False)
        photo.unlink()
        photo.symlink_to(secret)
        attack(f"a photograph of {name} is a link", partial(load_all, name))
    shards = folder / "shards"
    shards.mkdir()
    SPACE.frame(small_data().codes).assign(features=list(small_data().X)).to_parquet(box.outside / "secret.parquet")
    (shards / "part-00000.parquet").symlink_to(box.outside / "secret.parquet")
    attack("a shard is a link", lambda: read_any(shards))
    attack("a shard of a store is a link", lambda: cs.data.FeatureStore(shards).frame(["bird"]))
