"""What a command works on: a named data set, a user's table, or a file of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import InputError, unknown_name
from compshift.cli.options import names
from compshift.cli.own_table import read_shares, refuse, samples_recipe, table_options

if TYPE_CHECKING:
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


def unnamed(source: str) -> str | None:
    """The path of a source that is no data set's name."""
    from compshift.data.registry import MODULES

    return None if source in MODULES else source


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
    from compshift.data.text_tables import TEXT, ending

    if source in MODULES:
        columns = {"--path": path, "--text": text, "--features": features, "--target": target}
        further = {"--attributes": attributes, "--split-column": split_column, "--shares": shares}
        refuse({**columns, **further}, "for tables, and the columns of a named data set are known")
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
    if path is None and text is None and features is None and ending(source) not in TEXT:
        from compshift.data.feature_files import load_features

        refuse({"--root": root, "--split-column": split_column}, "for tables")
        nuisances = names(attributes, "--attributes") if attributes else []
        targets = names(target, "--target")
        return Source(load_features(source, targets, nuisances, read_shares(shares) if shares else None, seed))
    recipe = samples_recipe(path, text, features, None)
    options = table_options(target, attributes, split_column, shares, seed)
    data = recipe.load_table(source, **options, root=root)
    return Source(data, recipe.with_split(data, options["split"], seed).to_dict())
