"""MetaShift cats and dogs (Liang and Zou 2022): animal × place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compshift._errors import InputError
from compshift._files import check_inside
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark, Packaging
from compshift.data.dataset import GroupedDataset, ImageFiles
from compshift.data.images import RESIZE_AND_CROP
from compshift.data.metadata_files import SPLIT_CODES, encode_column, image_files, read_metadata, strip_folder

FOLDER = "MetaShift-Cat-Dog-indoor-outdoor"
SPACE = GroupSpace(("animal", "place"), (("cat", "dog"), ("indoor", "outdoor")))
GROUP_FOLDERS = {
    "train/cat/cat(indoor)": ("cat", "indoor"),
    "train/dog/dog(outdoor)": ("dog", "outdoor"),
    "test/cat/cat(outdoor)": ("cat", "outdoor"),
    "test/dog/dog(indoor)": ("dog", "indoor"),
}
"""Group of the images in each folder."""


def _from_table(root: Path) -> GroupedDataset:
    """Read the images and splits listed in SubpopBench's table."""
    path = root / "metashift" / "metadata_metashift.csv"
    table = read_metadata(path, ["filename", "y", "a", "split"])
    # cat and indoor are 1 in the table, but have code 0 in SPACE
    codes = np.stack([encode_column(table[name], {"1": 0, "0": 1}, name, path) for name in ("y", "a")], axis=1)
    images = image_files([root / "metashift" / FOLDER], strip_folder(table["filename"], FOLDER, path))
    return GroupedDataset(images, SPACE, codes, encode_column(table["split"], SPLIT_CODES, "split", path))


def _from_folders(root: Path) -> GroupedDataset:
    """Read the images of the four folders and split them as in the published split."""
    base = root / "metashift" / FOLDER
    names: list[str] = []
    values: list[tuple[str, str]] = []
    for folder, group in GROUP_FOLDERS.items():
        found = sorted(path.name for path in check_inside(base / folder, base).glob("*.jpg"))
        if not found:
            raise InputError(
                f"there is no .jpg file in {str(base / folder)!r}: the download is incomplete; download it again"
            )
        names += [f"{folder}/{name}" for name in found]
        values += [group] * len(found)
    return GroupedDataset(ImageFiles(base, np.array(names), base), SPACE, SPACE.encode(values), _split(len(names)))


def _split(n: int) -> IntArray:
    """Draw a quarter of the rows for test and a tenth for val, with the generator of the published split."""
    rng = np.random.RandomState(42)  # the published split was drawn with this generator and seed
    test = rng.choice(np.arange(n), size=int(0.25 * n), replace=False)
    val = rng.choice(np.setdiff1d(np.arange(n), test), size=int(0.1 * n), replace=False)
    split = np.zeros(n, dtype=np.int64)
    split[val], split[test] = 1, 2
    return split


BENCHMARK = Benchmark(
    name="metashift",
    title="animal × place, photographs",
    kind="images",
    groups="2 × 2",
    packagings=(
        Packaging("with a table of splits", "metashift/metadata_metashift.csv", _from_table),
        Packaging("folders, split anew", f"metashift/{FOLDER}", _from_folders),
    ),
    download="get metashift.tar.gz (SubpopBench's scripts/download.py has the address) and unpack it in metashift/",
    published={"train": (789, 196, 507, 784), "val": (114, 33, 75, 127), "test": (345, 65, 191, 273)},
    totals={"train": 2276, "val": 349, "test": 874},
    geometry=RESIZE_AND_CROP,
)
