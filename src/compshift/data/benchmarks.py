"""Registry of named data sets, and how to find a published one on disk.

To add a data set: write a module in ``compshift.data`` that defines a ``Benchmark`` (short examples:
``penguins.py``, which is bundled with the package, and ``waterbirds.py``, which is downloaded), and add a line to
``MODULES`` below. ``benchmark(name)`` and all commands look data sets up in ``MODULES``.
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
from compshift.data.dataset import GroupedDataset, ImageFiles, Samples
from compshift.data.images import Geometry, image_sizes, resized
from compshift.data.metadata_files import warn_incomplete
from compshift.data.splits import SPLITS

MODULES = {
    "waterbirds": "waterbirds:BENCHMARK",
    "celeba": "celeba:CELEBA",
    "celeba5": "celeba:CELEBA5",
    "metashift": "metashift:BENCHMARK",
    "multinli": "multinli:BENCHMARK",
    "civilcomments": "civilcomments:BENCHMARK",
    "nico++": "nicopp:BENCHMARK",
    "gaussian2d": "gaussians:GAUSSIAN2D",
    "additive-gaussians": "gaussians:ADDITIVE_GAUSSIANS",
    "digits-backgrounds": "digits_backgrounds:BENCHMARK",
    "penguins": "penguins:BENCHMARK",
}
"""Location of each ``Benchmark``, as ``"module:variable"`` in ``compshift.data``."""

BENCHMARKS = tuple(MODULES)
"""Names of all registered data sets."""

LISTED_SIZES = 3
"""Maximum number of image sizes that the warning of ``Benchmark.fitted_geometry`` names."""

LISTED_GROUPS = 3
"""Maximum number of groups with wrong counts that ``Benchmark.differences`` names per split."""


@dataclass(frozen=True)
class Packaging:
    """One way in which a data set is distributed: a path that identifies it, and a function that reads it."""

    label: str
    marker: str  # path below the root folder that identifies this packaging
    read: Callable[[Path], GroupedDataset]  # called with the root folder
    needs: tuple[str, ...] = ()  # other paths below the root folder that must exist


def link_bound(folder: Path, top: Path) -> Path:
    """Return the folder that must contain all files of ``folder`` after links are resolved.

    It is ``top``, unless folders on the way from ``top`` to ``folder`` are links that lead out of ``top``; then it is
    the last of these folders. Users keep data on other disks, so a folder whose path compshift itself names, such as
    ``celeba/img_align_celeba``, may be a symbolic link. File names that come from a table, and links inside the linked
    folder, must stay below it.
    """
    bound = top
    for step in reversed([step for step in (folder, *folder.parents) if step.is_relative_to(top)]):
        if step.resolve().is_relative_to(bound.resolve()):
            continue
        if any(inner.resolve().is_relative_to(step.resolve()) for inner in (top, bound)):
            raise InputError(
                f"{str(step)!r} is a link to {str(step.resolve())!r}, a folder that contains the data set: replace "
                "it by a link to the folder that holds the data"
            )
        bound = step
    return bound


def check_links(path: Path, top: Path) -> Path:
    """Return ``path`` after checking that no file in the folders from ``top`` down to it is a link that leads outside.

    All files of these folders are checked, because loaders read files beside ``path`` too. The folders may be links;
    ``link_bound`` returns the folder that must then contain their files.
    """
    for folder in reversed([parent for parent in path.parents if parent.is_relative_to(top)]):
        bound = link_bound(folder, top)
        for entry in check_ordinary(folder).iterdir():
            if entry.is_symlink() and not entry.is_dir():
                check_inside(entry, bound)
    return check_ordinary(path)


@dataclass(frozen=True, eq=False, repr=False)
class Benchmark:
    """A named data set: how to load it, its published row counts and its published preprocessing."""

    name: str
    title: str
    kind: str  # kind of samples: "features", "images" or "text"
    groups: str  # number of values of each attribute, as text, for example "2 × 2"
    packagings: tuple[Packaging, ...] = ()
    make: Callable[[], GroupedDataset] | None = None  # builds a bundled data set; None for downloads
    download: str = ""  # instructions: files to download, their address and the target folder
    published: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # split → row counts of groups 0, 1, …
    totals: Mapping[str, int] = field(default_factory=dict)  # split → row count
    geometry: Geometry | None = None  # published cropping and scaling of images
    image_size: tuple[int, int] | None = None  # published width and height of all images; None if they vary
    max_length: int | None = None  # published length limit of texts, in tokens
    balanced_classes: bool = False  # whether the protocol samples all classes equally often
    feature_map: Callable[[Samples], Any] | None = None  # computes features of bundled samples

    def __repr__(self) -> str:
        return f"<Benchmark {self.name}: {self.title}, {self.groups} groups of {self.kind}>"

    @property
    def bundled(self) -> bool:
        """Whether compshift ships or generates the data set, so that no download is needed."""
        return self.make is not None

    def find(self, root: Path) -> Packaging | None:
        """Return the first packaging that exists below the folder ``root``; None if there is none."""
        for packaging in self.packagings:
            if all((root / path).exists() for path in (packaging.marker, *packaging.needs)):
                return packaging
        return None

    def load(self, root: str | PathLike[str] | None = None) -> GroupedDataset:
        """Load the data set; a download is read from the first packaging that exists below the folder ``root``."""
        if self.make is not None:
            return replace(self.make(), source="made by compshift")
        if root is None:
            raise InputError(f"{self.name} must be downloaded: pass the folder that holds it as root")
        folder = Path(root)
        if not folder.is_dir():
            raise InputError(f"there is no folder {str(root)!r}: pass the folder that holds {self.name}")
        packaging = self.find(folder)
        if packaging is not None:
            top = folder / Path(packaging.marker).parts[0]
            for path in (packaging.marker, *packaging.needs):
                check_links(folder / path, top)
            data = replace(packaging.read(folder), source=f"{packaging.marker} ({packaging.label})")
            if isinstance(data.samples, ImageFiles):
                within = link_bound(data.samples.root, top)
                return replace(data, samples=replace(data.samples, within=within))
            return data
        probed = ", ".join(" with ".join((packaging.marker, *packaging.needs)) for packaging in self.packagings)
        raise InputError(f"{self.name} was not found below {str(root)!r} (looked for {probed}): {self.download}")

    def fitted_geometry(self, data: GroupedDataset) -> Geometry | None:
        """Return the published cropping and scaling of images, with the crop adapted to the actual size of the images.

        The actual size is the most common one in a sample of the images. A warning lists the sizes if any image of the
        sample does not have the published size.
        """
        if self.geometry is None or self.image_size is None or not isinstance(data.samples, ImageFiles):
            return self.geometry
        sizes = image_sizes(data.samples).most_common()
        if not sizes or [size for size, _ in sizes] == [self.image_size]:
            return self.geometry
        (width, height), _ = sizes[0]
        listed = " and ".join(f"{n} {'has' if n == 1 else 'have'} {w} × {h}" for (w, h), n in sizes[:LISTED_SIZES])
        more = "" if len(sizes) <= LISTED_SIZES else f", and the rest have {len(sizes) - LISTED_SIZES} other sizes"
        warn_incomplete(
            f"of {sum(n for _, n in sizes)} images sampled, {listed} pixels{more}; the published ones have "
            f"{' × '.join(map(str, self.image_size))}: the same part of the picture is cropped from {width} × {height}"
        )
        return resized(self.geometry, self.image_size, (width, height))

    def features(self) -> GroupedDataset:
        """Load a bundled data set as features, computed by its feature map if it has one."""
        data = self.load()
        return data if self.feature_map is None else replace(data, samples=self.feature_map(data.samples))

    def differences(self, dataset: GroupedDataset) -> list[str]:
        """Compare the row counts of ``dataset`` with the published ones; return a sentence per split that differs."""
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
                    for group, code in zip(
                        wrong[:LISTED_GROUPS], dataset.space.codes(wrong[:LISTED_GROUPS]), strict=True
                    )
                ]
                if len(wrong):
                    more = f"; {len(wrong) - LISTED_GROUPS} more" if len(wrong) > LISTED_GROUPS else ""
                    found.append(f"{name} differs from the published counts: {'; '.join(listed)}{more}")
            elif name in self.totals and rows.sum() != self.totals[name]:
                found.append(f"{name} has {int(rows.sum())} rows but the published data set has {self.totals[name]}")
        return found


def benchmark(name: str) -> Benchmark:
    """Look up a data set by name.

    Parameters
    ----------
    name : str
        One of ``BENCHMARKS``.

    Returns
    -------
    Benchmark
        The data set: ``load(root)`` reads it, and ``features()`` returns a bundled data set as features.

    Raises
    ------
    InputError
        If no data set has that name.

    Examples
    --------
    >>> data = benchmark("gaussian2d").features()
    >>> data.space.cardinalities, data.splits
    ((2, 2), ('train', 'val', 'test'))
    """
    check_name("data set", name, BENCHMARKS)
    module, attribute = MODULES[name].split(":")
    found: Benchmark = getattr(importlib.import_module(f"compshift.data.{module}"), attribute)
    return found
