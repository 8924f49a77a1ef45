"""CelebA (Liu et al. 2015): photographs of faces with forty binary attributes.

Two benchmarks use the same files: hair × gender, and hair × gender × eyeglasses × hat × earrings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError, listing
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark, Packaging
from compshift.data.dataset import GroupedDataset
from compshift.data.images import CROP_AND_RESIZE
from compshift.data.metadata_files import (
    BINARY,
    SPLIT_CODES,
    encode_column,
    image_files,
    read_metadata,
    warn_incomplete,
)

DOWNLOAD = (
    "get img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt (mmlab.ie.cuhk.edu.hk/projects/CelebA) "
    "into celeba/ and unpack the images there"
)
"""Instructions for downloading the files by hand."""

SIGNS = {"-1": 0, "1": 1, "0": 0}
"""Codes of the attribute values: −1 and 0 mean no, 1 means yes."""

IMAGE_SIZE = (178, 218)
"""Width and height of the published images, which are aligned and cropped."""

IMAGE = ("image_id", "filename", "id")
"""Possible names of the column with the image files in CSV tables, the likeliest first."""

SPLIT = ("partition", "split")
"""Possible names of the column with the splits in CSV tables, the likeliest first."""

FOLDERS = ("celeba", "celebA/data", "celebA_v1.0", "celebA")
"""Folders below the root folder that may contain the files."""


def _packagings(space: GroupSpace, columns: Sequence[str]) -> tuple[Packaging, ...]:
    """Return a packaging for each of ``FOLDERS`` and each file format: the published text files, or CSV."""

    def reader(folder: str, read: Callable[..., GroupedDataset]) -> Callable[[Path], GroupedDataset]:
        return lambda root: read(root / folder, space, columns)

    return tuple(
        Packaging(label, f"{folder}/list_attr_celeba.{ending}", reader(folder, read))
        for folder in FOLDERS
        for label, ending, read in (("as published", "txt", _read_txt), ("CSV", "csv", _read_csv))
    )


def _subpopbench(space: GroupSpace) -> Packaging:
    """Return SubpopBench's packaging, whose table contains only hair and gender."""

    def read(root: Path) -> GroupedDataset:
        path = root / "celeba" / "metadata_celeba.csv"
        table = read_metadata(path, [IMAGE, SPLIT, "y", "a"])
        codes = np.stack([encode_column(table[name], BINARY, name, path) for name in ("y", "a")], axis=1)
        split = encode_column(table["partition"], SPLIT_CODES, "split", path)
        images = image_files(_image_folders(path.parent), _file_names(table["image_id"]))
        return GroupedDataset(images, space, codes, split)

    return Packaging("SubpopBench", "celeba/metadata_celeba.csv", read)


def _read_txt(folder: Path, space: GroupSpace, columns: Sequence[str]) -> GroupedDataset:
    """Read the published text files: a row count, a line of attribute names, then one line per image."""
    path = folder / "list_attr_celeba.txt"
    with path.open("rb") as stream:
        announced = stream.readline().strip()
        names = stream.readline().decode(errors="replace").split()
    absent = [name for name in columns if name not in names]
    if absent:
        raise InputError(
            f"{str(path)!r} has no attribute {listing(absent)} in line 2, only {listing(names)}: download it again"
        )
    options = {"sep": r"\s+", "header": None}
    table = read_metadata(path, ["file", *columns], skiprows=2, names=["file", *names], **options)
    codes = np.stack([encode_column(table[name], SIGNS, name, path, 3) for name in columns], axis=1)
    if announced.isdigit() and announced.lstrip(b"0") != str(len(codes)).encode():
        warn_incomplete(
            f"{str(path)!r}: line 1 announces {announced.decode()} images, but {len(codes)} follow: unless you "
            "shortened the table yourself, download it again"
        )
    partition = folder / "list_eval_partition.txt"
    parts = read_metadata(partition, ["file", "split"], names=["file", "split"], **options)
    split = encode_column(parts["split"], SPLIT_CODES, "split", partition, 1)
    return _dataset(folder, space, table["file"], codes, parts["file"], split, partition)


def _read_csv(folder: Path, space: GroupSpace, columns: Sequence[str]) -> GroupedDataset:
    """Read CSV versions of the two published tables; public copies differ in column names and file names."""
    path, partition = folder / "list_attr_celeba.csv", folder / "list_eval_partition.csv"
    table = read_metadata(path, [IMAGE, *columns])
    codes = np.stack([encode_column(table[name], SIGNS, name, path) for name in columns], axis=1)
    parts = read_metadata(partition, [IMAGE, SPLIT])
    split = encode_column(parts["partition"], SPLIT_CODES, "partition", partition)
    files, split_files = _file_names(table["image_id"]), _file_names(parts["image_id"])
    return _dataset(folder, space, files, codes, split_files, split, partition)


def _file_names(values: Any) -> Any:
    """Return the file names (n,) in a column of names or numbers: image 1 is ``000001.jpg``."""
    return np.array([f"{value:0>6}.jpg" if value.isdecimal() else value for value in values], dtype=object)


def _dataset(
    folder: Path,
    space: GroupSpace,
    files: np.ndarray[tuple[int], np.dtype[np.object_]],
    codes: IntArray,
    split_files: np.ndarray[tuple[int], np.dtype[np.object_]],
    split: IntArray,
    partition: Path,
) -> GroupedDataset:
    """Return the rows of the attribute table with the splits that the partition table lists for their files."""
    split_of_file = dict(zip(split_files, split, strict=True))
    absent = [file for file in files if file not in split_of_file]
    if absent:
        raise InputError(
            f"{str(partition)!r} has no split for {listing(absent, 3)}: it is incomplete; download it again"
        )
    extra = set(split_of_file).difference(files)
    if extra:
        warn_incomplete(
            f"{str(partition)!r} lists {len(extra)} images without attributes, such as {min(extra)!r}: they are left "
            "out; unless you shortened the table of attributes yourself, download it again"
        )
    row_split = np.array([split_of_file[file] for file in files], dtype=np.int64)
    return GroupedDataset(image_files(_image_folders(folder), files), space, codes, row_split)


def _image_folders(folder: Path) -> list[Path]:
    """Return the folders that may contain the images; unpacking the archive can create a second, nested folder."""
    return [folder / "img_align_celeba", folder / "img_align_celeba" / "img_align_celeba"]


SPACE = GroupSpace(("hair", "gender"), (("not blond", "blond"), ("female", "male")))

CELEBA = Benchmark(
    name="celeba",
    title="hair × gender, photographs of faces",
    kind="images",
    groups="2 × 2",
    packagings=(*_packagings(SPACE, ("Blond_Hair", "Male")), _subpopbench(SPACE)),
    download=DOWNLOAD,
    published={
        "train": (71629, 66874, 22880, 1387),
        "val": (8535, 8276, 2874, 182),
        "test": (9767, 7535, 2480, 180),
    },
    totals={"train": 162770, "val": 19867, "test": 19962},
    geometry=CROP_AND_RESIZE,
    image_size=IMAGE_SIZE,
)


SPACE5 = GroupSpace(
    ("hair", "gender", "eyeglasses", "hat", "earrings"),
    (
        ("not blond", "blond"),
        ("female", "male"),
        ("no eyeglasses", "eyeglasses"),
        ("no hat", "hat"),
        ("no earrings", "earrings"),
    ),
)

CELEBA5 = Benchmark(
    name="celeba5",
    title="hair × gender × eyeglasses × hat × earrings",
    kind="images",
    groups="2⁵",
    packagings=_packagings(SPACE5, ("Blond_Hair", "Male", "Eyeglasses", "Wearing_Hat", "Wearing_Earrings")),
    download=DOWNLOAD,
    totals={"train": 162770, "val": 19867, "test": 19962},
    geometry=CROP_AND_RESIZE,
    image_size=IMAGE_SIZE,
)
