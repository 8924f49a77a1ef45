"""Waterbirds (Sagawa et al. 2020): bird × place, photographs of birds pasted on backgrounds of land or water."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark, Packaging
from compshift.data.dataset import GroupedDataset
from compshift.data.images import STRETCH_AND_CROP
from compshift.data.metadata_files import BINARY, SPLIT_CODES, encode_column, image_files, read_metadata

FOLDER = "waterbird_complete95_forest2water2"
SPACE = GroupSpace(("bird", "place"), (("landbird", "waterbird"), ("land", "water")))


def _read(metadata: Path, folders: list[Path], file: str, place: str) -> GroupedDataset:
    """Read a metadata table; ``file`` and ``place`` name its columns of image files and places."""
    table = read_metadata(metadata, [file, "y", place, "split"])
    codes = np.stack([encode_column(table[name], BINARY, name, metadata) for name in ("y", place)], axis=1)
    split = encode_column(table["split"], SPLIT_CODES, "split", metadata)
    return GroupedDataset(image_files(folders, table[file]), SPACE, codes, split)


def _original(folder: str) -> Packaging:
    """Return the authors' packaging: a metadata table in the same folder as the images."""
    return Packaging(
        "as published",
        f"{folder}/metadata.csv",
        lambda root: _read(root / folder / "metadata.csv", [root / folder], "img_filename", "place"),
    )


def _subpopbench(root: Path) -> GroupedDataset:
    """Read the images and splits listed in SubpopBench's table."""
    base = root / "waterbirds"
    return _read(base / "metadata_waterbirds.csv", [base / FOLDER, base], "filename", "a")


BENCHMARK = Benchmark(
    name="waterbirds",
    title="bird × place, photographs",
    kind="images",
    groups="2 × 2",
    packagings=(
        _original(f"waterbirds/{FOLDER}"),
        _original("waterbirds_v1.0"),
        _original(f"waterbirds_v1.0/{FOLDER}"),
        _original(f"cub/data/{FOLDER}"),
        Packaging("SubpopBench", "waterbirds/metadata_waterbirds.csv", _subpopbench),
    ),
    download=f"get {FOLDER}.tar.gz (group_DRO, nlp.stanford.edu/data/dro) and unpack it in waterbirds/",
    published={
        "train": (3498, 184, 56, 1057),
        "val": (467, 466, 133, 133),
        "test": (2255, 2255, 642, 642),
    },
    totals={"train": 4795, "val": 1199, "test": 5794},
    geometry=STRETCH_AND_CROP,
)
