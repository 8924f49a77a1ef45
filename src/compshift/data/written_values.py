"""Values of a file, matched by what was written with those that a model knows.

What type a column of text has is guessed from the file alone: where training wrote 1, 2 and 3b, a test file that has 1
and 2 only seems to hold numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable
from dataclasses import replace

import numpy as np

from compshift._errors import InputError, listing
from compshift.core.columns import Column
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset

DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d+")


def in_space(data: GroupedDataset, space: GroupSpace) -> GroupedDataset:
    """The rows with the attributes and values of ``space``; a value that it does not know is refused."""
    columns = []
    for name, known in zip(space.names, space.values, strict=True):
        if name not in data.space.names:
            raise InputError(
                f"the rows have no attribute {name!r}, which the model has: their attributes are "
                f"{listing(data.space.names)}"
            )
        position = data.space.names.index(name)
        used, codes = np.unique(data.codes[:, position], return_inverse=True)
        own = data.space.values[position]
        columns.append(Column(name, tuple(as_known(own[code], known) for code in used), codes.reshape(-1), named=True))
    targets = tuple(name for name in data.targets if name in space.names)
    return replace(data, space=space, codes=space.encode_columns(columns), targets=targets)


def as_known(value: Hashable, known: Collection[Hashable]) -> Hashable:
    """The one known value that is written like ``value``, as 1 like ``"1"`` and ``1.0``; itself if there is none.

    Values that are told apart stay apart: of ``"1"`` and ``"1.0"`` each is itself, and ``"01"`` is another still.
    """
    if value in known:
        return value
    if str(value) in known:
        return str(value)
    alike = [other for other in known if _writing(other) == _writing(value)]
    return alike[0] if len(alike) == 1 else value


def _writing(value: Hashable) -> str:
    """What a value looks like in a file, without zeros at its end and without capitals of true and false."""
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower()
    return text.rstrip("0").rstrip(".") if DECIMAL.fullmatch(text) else text
