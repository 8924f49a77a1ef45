"""Data sets of a benchmark: small descriptions from which every worker loads the data.

A source is a named data set (see ``compshift datasets list``) or a feature file. Its digest depends on the content of
the data, not on where the files are stored.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

import joblib
import numpy as np

from compshift._errors import InputError
from compshift._files import ending
from compshift.core.arrays import FloatArray
from compshift.data.benchmarks import MODULES, Benchmark, benchmark
from compshift.data.dataset import GroupedDataset, ImageArrays, ImageFiles, Samples, Texts, Tokens
from compshift.data.feature_files import load_features, read_inputs
from compshift.data.typed_tables import TABLE_ENDINGS

MAX_MEASUREMENTS = 50
"""Largest number of features that are treated as measurements, whose scales may differ.

Data with more features are treated as embeddings, whose scales are alike.
"""


@dataclass(frozen=True)
class DataSource:
    """A named data set or a feature file."""

    label: str  # name in tables
    name: str | None = None  # name of the data set; None for a feature file
    root: str | None = None  # folder of the download
    path: str | None = None  # feature file, or computed features of a download
    features: bool = True  # True if jobs fit heads on features, False if they fine-tune a network
    target: str | None = None  # attribute to predict; None for the first attribute of the file
    attributes: tuple[str, ...] | None = None  # further attributes; None for all except the target
    shares: tuple[tuple[str, float], ...] | None = None  # shares of a random split of a file without splits
    split_seed: int = 0  # seed of the random split

    @property
    def known(self) -> Benchmark | None:
        """Description of the named data set; None for a feature file."""
        return None if self.name is None else benchmark(self.name)

    def load(self) -> GroupedDataset:
        """Return the data set with the class as first attribute. Recently loaded data sets are cached per process."""
        return _load_once(self)

    def labels(self) -> GroupedDataset:
        """Return the data set for callers that need only its groups: features of bundled data are not computed."""
        return _load_once(replace(self, features=False) if self._is_bundled else self)

    def digest(self) -> str:
        """Return a hash of the content of the data, which does not depend on where the files are stored."""
        return _digest_once(self)

    def measurements(self) -> FloatArray | None:
        """Return the features (n, p) if they are measurements; None for images, texts and embeddings."""
        if self.known is not None and self.known.kind != "features":
            return None
        X = self.labels().X
        return X if X.shape[1] <= MAX_MEASUREMENTS else None

    @property
    def needs_features(self) -> bool:
        """Whether the data are downloaded images or texts, whose features must be computed before heads are fitted."""
        return self.known is not None and not self.known.bundled and self.known.kind != "features"

    def with_features(
        self, folder: Path, backbone: str | None, progress: Callable[[int], None], weights: Path | None = None
    ) -> DataSource:
        """Compute features of a downloaded data set in ``folder`` if missing, and return a source that reads them."""
        from compshift.data.dataset import DEFAULT_BACKBONES, has_pairs
        from compshift.features.embedder import Embedder
        from compshift.features.extract import extract_features
        from compshift.nn.backbones import load_backbone

        assert self.known is not None
        data = self.known.load(self.root)
        network = load_backbone(
            backbone or DEFAULT_BACKBONES[data.kind],
            data.kind,
            geometry=self.known.fitted_geometry(data),
            default_length=self.known.max_length,
            pairs="auto" if has_pairs(data.samples) else None,
            weights=weights,
        )
        target = folder / self.label
        target.parent.mkdir(parents=True, exist_ok=True)
        extract_features(data, Embedder(network), target, progress=progress)
        return replace(self, path=str(target.resolve()))

    @property
    def _is_bundled(self) -> bool:
        """Whether the data set needs no download; its digest ignores the samples, which may differ by rounding."""
        return self.known is not None and self.known.bundled


class SharedData:
    """Data sets with features, written once to temporary files that the worker processes of this machine map.

    All workers then share the memory of the features, and none has to read, compute or hash them again.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="compshift-", ignore_cleanup_errors=True)
        self._paths: dict[DataSource, str | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def __contains__(self, source: DataSource) -> bool:
        return source in self._paths

    def path(self, source: DataSource, digest: str) -> str | None:
        """Return the file of the data set; write it if there is none yet.

        Return None if the data set has no features, if its content does not have this digest, or if it cannot be read
        or written; workers then load it themselves, and report what is wrong.
        """
        if source not in self._paths:
            self._paths[source] = None
            path = Path(self._folder.name) / f"{len(self._paths)}.joblib"
            try:
                data = source.load()
                if isinstance(data.samples, np.ndarray) and source.digest() == digest:
                    joblib.dump(data, path)
                    self._paths[source] = str(path)
            except (InputError, OSError):  # the disk may be full
                path.unlink(missing_ok=True)
        return self._paths[source]


@lru_cache(maxsize=4)
def mapped_data(path: str) -> GroupedDataset:
    """Return a data set of ``SharedData``, whose features are mapped into memory and cannot be written to."""
    data: GroupedDataset = joblib.load(path, mmap_mode="r")
    return replace(data, samples=np.asarray(data.samples))


def named_source(name: str, root: Path | None, *, features: bool) -> DataSource:
    """Return a named data set as a source; its download is in ``root`` or in the subfolder ``root/name``."""
    known = benchmark(name)
    if known.bundled:
        return DataSource(name, name, features=features or known.kind == "features")
    try:
        known.load(root)  # without a root, the error says what to download
    except InputError as error:
        if root is None:
            raise
        root = root / name
        try:
            known.load(root)
        except InputError:
            raise error from None
    assert root is not None
    return DataSource(name, name, root=str(root.resolve()), features=features)


def file_source(
    path: str,
    target: str | None,
    attributes: tuple[str, ...] | None,
    shares: dict[str, float] | None,
    split_seed: int,
) -> DataSource:
    """Return a feature file or a folder of shards as a source; raise an InputError if it is missing or a table."""
    file = Path(path)
    if not file.exists():
        if file.suffix or "/" in path:
            raise InputError(f"there is no file {path!r}: pass a feature file or the name of a data set")
        benchmark(path)  # raises an error that lists the known names
    if ending(file) in TABLE_ENDINGS:
        raise InputError(
            f"{path!r} is a table, but a benchmark needs features: compute features of images or texts with `compshift "
            "features`, or write columns of numbers in Python with compshift.data.write_features('features.npz', "
            "compshift.data.load_table(…, features=[…]))"
        )
    return DataSource(
        file.resolve().stem,
        path=str(file.resolve()),
        target=target,
        attributes=attributes,
        shares=None if shares is None else tuple(shares.items()),
        split_seed=split_seed,
    )


def is_named(source: str) -> bool:
    """Return whether a source is the name of a data set."""
    return source in MODULES


@lru_cache(maxsize=4)
def _load_once(source: DataSource) -> GroupedDataset:
    data = _read(source).class_first()
    if "train" not in data.splits or "test" not in data.splits:
        raise InputError(
            f"the splits of {source.label} are {', '.join(data.splits) or 'none'}, but a benchmark needs train and "
            "test rows: split the file at random with shares such as 0.7,0.1,0.2"
        )
    return data


def _read(source: DataSource) -> GroupedDataset:
    known = source.known
    if known is None:
        assert source.path is not None
        targets = [] if source.target is None else [source.target]
        shares = None if source.shares is None else dict(source.shares)
        return load_features(source.path, targets, source.attributes, shares, source.split_seed)
    if known.bundled:
        if not source.features:
            return known.load()
        data = source.labels()
        return data if known.feature_map is None else replace(data, samples=known.feature_map(data.samples))
    data = known.load(source.root)
    if source.path is None:
        return data
    X = read_inputs(source.path)
    if len(X) != len(data):
        raise InputError(
            f"{source.path!r} has features of {len(X)} rows, but {source.label} has {len(data)} rows: remove that "
            "folder to compute the features again"
        )
    return replace(data, samples=X)


@lru_cache(maxsize=4)
def _digest_once(source: DataSource) -> str:
    if source._is_bundled:
        return data_digest(source.labels(), samples=False, kind="features" if source.features else None)
    return data_digest(source.load())


def data_digest(data: GroupedDataset, *, samples: bool = True, kind: str | None = None) -> str:
    """Return a hash of the attributes, the splits, the kind of the samples and, if ``samples`` is True, the samples.

    For image files, the names and sizes are hashed, not the content. ``kind`` replaces the kind of the samples.
    """
    content = hashlib.sha256(repr((kind or data.kind, data.space.names, data.space.values, data.targets)).encode())
    content.update(np.ascontiguousarray(data.codes).tobytes())
    if data.split is not None:
        content.update(np.ascontiguousarray(data.split).tobytes())
    if samples:
        _add_samples(content, data.samples)
    return content.hexdigest()[:32]


def _add_samples(content: hashlib._Hash, samples: Samples) -> None:
    """Update a hash with samples."""
    if isinstance(samples, ImageFiles):
        for row, name in enumerate(samples.names):
            path = samples.path(row)
            content.update(f"{name} {path.stat().st_size if path.exists() else -1}\n".encode(errors="replace"))
    elif isinstance(samples, Texts):
        for part in (samples.first, () if samples.second is None else samples.second):
            content.update("\0".join(part).encode(errors="replace"))
    else:
        arrays = [samples]
        if isinstance(samples, ImageArrays):
            arrays = [samples.pixels]
        elif isinstance(samples, Tokens):
            arrays = [samples.ids, samples.mask, samples.segments]
        for array in arrays:
            content.update(np.ascontiguousarray(array).tobytes())
