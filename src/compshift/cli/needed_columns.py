"""What a model needs of a file that it is asked about, before the file is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compshift._errors import InputError, listing, unknown_name


def check_there(source: str) -> None:
    """Refuse what is neither a file or folder nor the name of a data set."""
    from compshift.data.registry import MODULES

    if source in MODULES or Path(source).exists():
        return
    if Path(source).suffix or "/" in source:
        raise InputError(f"there is no file or folder {source!r}: check its path")
    raise unknown_name("file or data set", source, tuple(MODULES))


def check_samples(source: Path, columns: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse a table that lacks the columns that a model computes its features from."""
    absent = [name for name in needed if name not in columns]
    if absent:
        raise InputError(
            f"{str(source)!r} lacks the column{'s' * (len(absent) > 1)} {listing(absent)}, which the model needs: its "
            f"columns are {listing(columns)}"
        )


def check_labels(source: Path, needed: Sequence[str]) -> None:
    """Refuse a file that lacks labels."""
    from compshift.data.feature_files import file_attributes
    from compshift.data.table_files import column_names, is_parquet
    from compshift.data.text_tables import TEXT, ending

    table = ending(source) in TEXT or is_parquet(source)
    if not table and ending(source) != ".npz":
        return  # which readers refuse
    found = column_names(source) if table else file_attributes(source)
    absent = [name for name in needed if name not in found]
    if absent:
        raise InputError(
            f"{str(source)!r} lacks the label{'s' * (len(absent) > 1)} {listing(absent)}, without which nothing can be "
            f"scored: add {'them' if len(absent) > 1 else 'it'}, or use `compshift predict`, which needs none"
        )
