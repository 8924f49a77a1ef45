"""NICO++ (Zhang et al. 2023): 60 objects × 6 contexts, with 337 of the 360 groups in the training data."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError, listing
from compshift._files import check_inside, read_json_object
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark, Packaging, link_bound
from compshift.data.dataset import GroupedDataset, ImageFiles
from compshift.data.images import RESIZE_AND_CROP
from compshift.data.metadata_files import SPLIT_CODES, encode_column, image_files, read_metadata, warn_incomplete

CONTEXTS = ("autumn", "dim", "grass", "outdoor", "rock", "water")
IMAGES = ("public_dg_0416/train", "track_1/public_dg_0416/train", "track_1/track_1/train")
"""Folders below ``nicopp`` that may contain the images."""

HELD_OUT = 75
"""Maximum number of rows of a group that go to val (a third of them) and test; only the rest are training rows."""


def _space(base: Path) -> GroupSpace:
    """Read the names of the objects and return the attributes, with the objects in the order of their numbers."""
    path = base / "dg_label_id_mapping.json"
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: the download is incomplete; download it again")
    try:
        mapping = read_json_object(path)
        objects = sorted(mapping, key=mapping.__getitem__)
        numbers = [mapping[name] for name in objects]
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{str(path)!r} is not a JSON object of names and numbers ({error}): download it again"
        ) from None
    if numbers != list(range(len(numbers))):
        raise InputError(
            f"{str(path)!r} does not number its {len(numbers)} objects from 0 without gaps: download it again"
        )
    unsafe = [name for name in objects if name in ("", ".", "..") or any(sign in name for sign in "/\\\0")]
    if unsafe:
        raise InputError(
            f"{str(path)!r} has the object {unsafe[0]!r}, which cannot be the name of a folder: download it again"
        )
    return GroupSpace(("object", "context"), (tuple(objects), CONTEXTS))


def _from_table(root: Path) -> GroupedDataset:
    """Read the images and splits listed in ``metadata.csv``."""
    base = root / "nicopp"
    path = base / "metadata.csv"
    space = _space(base)
    table = read_metadata(path, ["filename", "y", "a", "split"])
    codes = np.stack(
        [
            encode_column(table[name], {str(code): code for code in range(size)}, name, path)
            for name, size in zip(("y", "a"), space.cardinalities, strict=True)
        ],
        axis=1,
    )
    names = ["/".join(name.replace("\\", "/").split("/")[-3:]) for name in table["filename"]]
    for row, (name, code) in enumerate(zip(names, codes, strict=True)):
        context, thing = space.values[1][code[1]], space.values[0][code[0]]
        if not name.startswith(f"{context}/{thing}/"):
            raise InputError(
                f"{str(path)!r}, row {row}: the file {name!r} is not in {context}/{thing}, the folder of its y and a: "
                "correct this row, or download the table again"
            )
    images = image_files([base / folder for folder in IMAGES], names)
    return GroupedDataset(images, space, codes, encode_column(table["split"], SPLIT_CODES, "split", path))


def _from_folders(root: Path, folder: str) -> GroupedDataset:
    """Read the images of all folders and split each group at random.

    The split of a group depends on the groups before it, because one generator shuffles them all.
    """
    base = root / "nicopp"
    bound = link_bound(base / folder, base)
    space = _space(base)
    names: list[str] = []
    values: list[tuple[Any, ...]] = []
    split: list[int] = []
    empty: list[str] = []
    shuffler = random.Random(666)
    for context in CONTEXTS:
        found = {path.name for path in check_inside(base / folder / context, bound).glob("*") if path.is_dir()}
        if found - set(space.values[0]):
            raise InputError(
                f"{str(base / folder / context)!r} contains {listing(sorted(found - set(space.values[0])))}, which "
                "dg_label_id_mapping.json does not list: remove it, or download both again"
            )
        for thing in space.values[0]:
            group_folder = check_inside(base / folder / context / str(thing), bound)
            files = sorted(path.name for path in group_folder.glob("*.jpg"))
            empty += [] if files else [f"{context}/{thing}"]
            shuffler.shuffle(files)
            held = min(len(files), HELD_OUT)
            names += [f"{context}/{thing}/{file}" for file in files]
            values += [(thing, context)] * len(files)
            split += [1] * (held // 3) + [2] * (held - held // 3) + [0] * (len(files) - held)
    if not names:
        raise InputError(
            f"there are no images in {str(base / folder)!r}: it must contain the folders {listing(CONTEXTS)}, each "
            "with a folder for every object in dg_label_id_mapping.json"
        )
    if empty:
        warn_incomplete(
            f"{len(empty)} of the {space.n_groups} folders in {str(base / folder)!r} have no .jpg file, such as "
            f"{empty[0]!r}: the download is incomplete"
        )
    return GroupedDataset(
        ImageFiles(base / folder, np.array(names), base / folder), space, space.encode(values), np.array(split)
    )


BENCHMARK = Benchmark(
    name="nico++",
    title="object × context, photographs",
    kind="images",
    groups="60 × 6",
    packagings=(
        Packaging("with a table of splits", "nicopp/metadata.csv", _from_table),
        *(
            Packaging("folders, split anew", f"nicopp/{folder}", partial(_from_folders, folder=folder))
            for folder in IMAGES
        ),
    ),
    download=(
        "get track_1.zip and dg_label_id_mapping.json of NICO++ (nicochallenge.com/dataset) and unpack them in nicopp/"
    ),
    totals={"train": 62657, "val": 8726, "test": 17483},
    geometry=RESIZE_AND_CROP,
)
