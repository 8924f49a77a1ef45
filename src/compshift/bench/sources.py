"""What a benchmark runs on, as a note from which any machine can load it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from compshift._errors import InputError
from compshift.data.benchmarks import MODULES, Benchmark, benchmark
from compshift.data.dataset import GroupedDataset, ImageArrays, ImageFiles, Samples, Texts, Tokens
from compshift.data.feature_files import load_features, read_inputs
from compshift.data.text_tables import TEXT, ending


@dataclass(frozen=True)
class DataSource:
    """A data set with a name, or a feature file."""

    label: str  # what tables call it
    name: str | None = None  # of a data set
    root: str | None = None  # of its download
    path: str | None = None  # of a feature file, or of the features of a download
    features: bool = True  # whether its samples are features
    target: str | None = None  # of a feature file; its first attribute if none is named
    attributes: tuple[str, ...] | None = None  # all others if None
    shares: tuple[tuple[str, float], ...] | None = None  # of a file without splits
    split_seed: int = 0

    @property
    def known(self) -> Benchmark | None:
        """What is known of a data set with a name."""
        return None if self.name is None else benchmark(self.name)

    def load(self) -> GroupedDataset:
        """The data set, the class first. Loaded once in a process."""
        return _loaded(self)

    def labels(self) -> GroupedDataset:
        """The data set with whatever samples cost least: for what looks at groups alone."""
        return _loaded(replace(self, features=False) if self._made else self)

    def digest(self) -> str:
        """Tells the data from others, wherever they lie."""
        return _digest(self)

    @property
    def _made(self) -> bool:
        """Whether the samples are made here; they may then differ in the last bit elsewhere."""
        return self.known is not None and self.known.embedded


@lru_cache(maxsize=4)
def _loaded(source: DataSource) -> GroupedDataset:
    data = _read(source).class_first()
    if "train" not in data.splits or "test" not in data.splits:
        raise InputError(
            f"{source.label} has the splits {', '.join(data.splits) or 'none'}: a benchmark needs train and test rows; "
            "split a file at random with --shares 0.7,0.1,0.2"
        )
    return data


@lru_cache(maxsize=4)
def _digest(source: DataSource) -> str:
    if source._made:
        return data_digest(source.labels(), samples=False, kind="features" if source.features else None)
    return data_digest(source.load())


def _read(source: DataSource) -> GroupedDataset:
    known = source.known
    if known is None:
        assert source.path is not None
        targets = [] if source.target is None else [source.target]
        shares = None if source.shares is None else dict(source.shares)
        return load_features(source.path, targets, source.attributes, shares, source.split_seed)
    if known.embedded:
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
            f"{source.path!r} has features of {len(X)} rows, and {source.label} has {len(data)}: remove that folder"
        )
    return replace(data, samples=X)


def named_source(name: str, root: Path | None, *, features: bool) -> DataSource:
    """A data set with a name; its download lies in ``root``, or in a folder of its name in there."""
    known = benchmark(name)
    if known.embedded:
        return DataSource(name, name, features=features or known.kind == "features")
    if root is None:
        known.load(root)  # which says what to download
    assert root is not None
    try:
        known.load(root)
    except InputError as error:
        root = root / name
        try:
            known.load(root)
        except InputError:
            raise error from None
    return DataSource(name, name, root=str(root.resolve()), features=features)


def file_source(
    path: str,
    target: str | None,
    attributes: tuple[str, ...] | None,
    shares: dict[str, float] | None,
    split_seed: int,
) -> DataSource:
    """A feature file, or a folder of shards."""
    found = Path(path)
    if not found.exists():
        if found.suffix or "/" in path:
            raise InputError(f"there is no file {path!r}: pass a feature file or the name of a data set")
        benchmark(path)  # refuses the name
    if ending(found) in TEXT:
        raise InputError(
            f"{path!r} is a table: turn images or texts into features with `compshift features`, and columns of "
            "numbers in Python, with compshift.data.write_features('features.npz', compshift.data.load_table(…, "
            "features=[…]))"
        )
    return DataSource(
        found.resolve().stem,
        path=str(found.resolve()),
        target=target,
        attributes=attributes,
        shares=None if shares is None else tuple(shares.items()),
        split_seed=split_seed,
    )


def is_named(source: str) -> bool:
    """Whether this is the name of a data set."""
    return source in MODULES


def data_digest(data: GroupedDataset, *, samples: bool = True, kind: str | None = None) -> str:
    """A digest of labels, splits, the kind of the samples and, on request, samples. Of image files, names and sizes
    must do.
    """
    content = hashlib.sha256(repr((kind or data.kind, data.space.names, data.space.values, data.targets)).encode())
    content.update(np.ascontiguousarray(data.codes).tobytes())
    if data.split is not None:
        content.update(np.ascontiguousarray(data.split).tobytes())
    if samples:
        _add_samples(content, data.samples)
    return content.hexdigest()[:32]


def _add_samples(content: hashlib._Hash, samples: Samples) -> None:
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
