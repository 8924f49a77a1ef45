"""What the package knows of a published data set, and how it finds one on disk.

Every data set that has a name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError, check_name
from compshift._files import check_inside, check_ordinary
from compshift.data.dataset import SPLITS, GroupedDataset, ImageFiles, Samples
from compshift.data.images import Geometry

LISTED = 3
"""Groups that a sentence about wrong counts names."""


@dataclass(frozen=True)
class Packaging:
    """One of the forms in which a data set is passed around: a file that tells it, and how it is read."""

    label: str
    marker: str  # path below the root
    read: Callable[[Path], GroupedDataset]  # from the root
    needs: tuple[str, ...] = ()  # further paths, without which it is passed over


def _check_links(path: Path, top: Path) -> None:
    """Refuse links beside a file, or beside one of the folders that it lies in, that lead out of ``top``.

    ``top`` itself may be a link: archives are unpacked into it, and users keep data on other disks.
    """
    for folder in reversed([parent for parent in path.parents if parent.is_relative_to(top)]):
        for entry in check_inside(folder, top).iterdir():
            if entry.is_symlink():
                check_inside(entry, top)


@dataclass(frozen=True, eq=False, repr=False)
class Benchmark:
    """A data set with a name."""

    name: str
    title: str
    kind: str  # "features", "images" or "text"
    groups: str  # "2 × 2"
    packagings: tuple[Packaging, ...] = ()
    make: Callable[[], GroupedDataset] | None = None  # for a set that needs no download
    download: str = ""  # what to get, and from where
    published: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # split → rows of each group, flat order
    totals: Mapping[str, int] = field(default_factory=dict)  # split → rows
    geometry: Geometry | None = None  # of images
    max_length: int | None = None  # of texts, in tokens
    balanced_classes: bool = False  # whether the protocol samples classes in balance
    feature_map: Callable[[Samples], Any] | None = None  # features of an embedded set, without a backbone

    def __repr__(self) -> str:
        return f"<Benchmark {self.name}: {self.title}, {self.groups} groups of {self.kind}>"

    @property
    def embedded(self) -> bool:
        """Whether it needs no download."""
        return self.make is not None

    def load(self, root: str | PathLike[str] | None = None) -> GroupedDataset:
        """The data set, from the first packaging that is found below ``root``."""
        if self.make is not None:
            return replace(self.make(), source="made by compshift")
        if root is None:
            raise InputError(f"{self.name} must be downloaded: pass the folder that holds it as root (--root)")
        folder = Path(root)
        if not folder.is_dir():
            raise InputError(f"there is no folder {str(root)!r}: pass the folder that holds {self.name}")
        for packaging in self.packagings:
            if all((folder / path).exists() for path in (packaging.marker, *packaging.needs)):
                top = folder / Path(packaging.marker).parts[0]
                for path in (packaging.marker, *packaging.needs):
                    _check_links(check_ordinary(folder / path), top)
                data = replace(packaging.read(folder), source=f"{packaging.marker} ({packaging.label})")
                if isinstance(data.samples, ImageFiles):
                    return replace(data, samples=replace(data.samples, within=top))
                return data
        probed = ", ".join(" with ".join((packaging.marker, *packaging.needs)) for packaging in self.packagings)
        raise InputError(f"{self.name} was not found below {str(root)!r} (looked for {probed}): {self.download}")

    def features(self) -> GroupedDataset:
        """An embedded set as features: its own, or those of its feature map."""
        data = self.load()
        return data if self.feature_map is None else replace(data, samples=self.feature_map(data.samples))

    def differences(self, dataset: GroupedDataset) -> list[str]:
        """Where the rows of a download differ in number from those that were published, one sentence each."""
        found = []
        split = np.zeros(len(dataset), dtype=np.int64) if dataset.split is None else dataset.split
        for code, name in enumerate(SPLITS):
            rows = split == code
            if name in self.published:
                index = dataset.space.index(dataset.codes[rows])
                counts = np.bincount(index, minlength=dataset.space.n_groups)
                wrong = np.flatnonzero(counts != np.array(self.published[name]))
                listed = [
                    f"{dataset.space.label(code)} has {counts[group]} rows, not {self.published[name][group]}"
                    for group, code in zip(wrong[:LISTED], dataset.space.codes(wrong[:LISTED]), strict=True)
                ]
                if len(wrong):
                    more = f"; {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
                    found.append(f"{name} differs from the published counts: {'; '.join(listed)}{more}")
            elif name in self.totals and rows.sum() != self.totals[name]:
                found.append(f"{name} has {int(rows.sum())} rows, published were {self.totals[name]}")
        return found


MODULES = {
    "waterbirds": "waterbirds",
    "celeba": "celeba:CELEBA",
    "celeba5": "celeba:CELEBA5",
    "metashift": "metashift",
    "multinli": "multinli",
    "civilcomments": "civilcomments",
    "nico++": "nicopp",
    "gaussian2d": "gaussians:GAUSSIAN2D",
    "additive-gaussians": "gaussians:ADDITIVE_GAUSSIANS",
    "digits-backgrounds": "digits_backgrounds",
    "penguins": "penguins",
}
"""Module of compshift.data that holds each benchmark, and its name there unless that is ``BENCHMARK``."""

BENCHMARKS = tuple(MODULES)


def benchmark(name: str) -> Benchmark:
    """What is known of a data set: ``.load(root)`` reads it, ``.features()`` gives an embedded one as features.

    >>> data = benchmark("gaussian2d").features()
    >>> data.space.cardinalities, data.splits
    ((2, 2), ('train', 'val', 'test'))
    """
    check_name("data set", name, BENCHMARKS)
    module, _, attribute = MODULES[name].partition(":")
    found: Benchmark = getattr(importlib.import_module(f"compshift.data.{module}"), attribute or "BENCHMARK")
    return found
