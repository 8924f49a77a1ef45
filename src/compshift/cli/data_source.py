"""What a command works on: a named data set, a user's table, or a file of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import InputError, listing, unknown_name
from compshift.cli.options import names
from compshift.cli.own_table import read_shares, refuse, samples_recipe, table_options

if TYPE_CHECKING:
    from compshift.core.arrays import IntArray
    from compshift.core.groups import GroupSpace
    from compshift.data.dataset import GroupedDataset
    from compshift.data.geometry import Geometry


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, and what is known of it."""

    data: GroupedDataset
    inputs: Mapping[str, Any] | None = None  # how the columns of a table become samples
    geometry: Geometry | None = None  # of images
    max_length: int | None = None  # of texts
    balanced_classes: bool = False  # whether the protocol samples classes in balance


def load_source(
    source: str,
    *,
    root: Path | None = None,
    path: str | None = None,
    text: str | None = None,
    features: str | None = None,
    target: str = "",
    attributes: str = "",
    split_column: str | None = None,
    shares: str | None = None,
    seed: int = 0,
) -> Source:
    """The data set that the options describe."""
    from compshift.data.registry import MODULES, benchmark
    from compshift.data.table_files import TEXT

    if source in MODULES:
        columns = {"--path": path, "--text": text, "--features": features, "--target": target}
        further = {"--attributes": attributes, "--split-column": split_column, "--shares": shares}
        refuse({**columns, **further}, "are for tables, and the columns of a named data set are known")
        known = benchmark(source)
        return Source(
            known.load(root),
            geometry=known.geometry,
            max_length=known.max_length,
            balanced_classes=known.balanced_classes,
        )
    if not Path(source).exists():
        if Path(source).suffix:
            raise InputError(f"there is no file {source!r}: pass the path of a table or feature file")
        raise unknown_name("data set or table", source, tuple(MODULES))
    if not target:
        raise InputError("nothing says what is to be predicted: name an attribute with --target")
    if path is None and text is None and features is None and Path(source).suffix not in TEXT:
        from compshift.data.feature_files import read_features
        from compshift.data.random_split import stratified_split

        refuse({"--root": root, "--split-column": split_column}, "are for tables")
        nuisances = names(attributes, "--attributes") if attributes else []
        targets = names(target, "--target")
        found = replace(read_features(Path(source), [*targets, *nuisances]), targets=tuple(targets))
        if shares is not None:
            if found.split is not None:
                raise InputError("--shares given, and the file has splits: leave it out")
            found = replace(found, split=stratified_split(found.space, found.codes, read_shares(shares), seed))
        return Source(found)
    recipe = samples_recipe(path, text, features, None)
    options = table_options(target, attributes, split_column, shares, seed)
    data = recipe.load_table(source, **options, root=root)
    return Source(data, recipe.with_split(data, options["split"], seed).to_dict())


def read_drops(space: GroupSpace, drops: Sequence[str]) -> IntArray:
    """Groups as codes (q, m), from texts with one value name or code per attribute, separated by commas."""
    import numpy as np

    return np.array([_read_group(space, text) for text in drops], dtype=np.int64).reshape(-1, len(space.names))


def _read_group(space: GroupSpace, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(space.names):
        raise InputError(
            f"--drop is {text!r}: name one value of each attribute ({', '.join(space.names)}), separated by commas"
        )
    codes = []
    for name, values, part in zip(space.names, space.values, parts, strict=True):
        known = [str(value) for value in values]
        if part in known:
            codes.append(known.index(part))
        elif part.isdigit() and int(part) < len(values):
            codes.append(int(part))
        else:
            raise InputError(f"--drop: {name} has no value {part!r}; its values are {listing(values, 12)}")
    return codes
