"""Compositional shift: groups that are absent from the training data but occur in the test data.

A ``Scenario`` lists the groups to drop. Applied to a data set, it removes them from train and val but not from test.
Unless its ``trim_validation`` is False, it also removes from val all other groups that train lacks.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift._checks import check_codes, check_flag, check_generator, check_list, unreadable_error
from compshift._errors import ExtrapolationWarning, InputError, listing
from compshift.core.arrays import BoolArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset, check_dataset
from compshift.data.splits import TEST, TRAIN, VAL


def drop_groups(dataset: GroupedDataset, groups: Any, *, strict: bool = False) -> GroupedDataset:
    """Remove groups from train and val but not from test.

    Parameters
    ----------
    dataset : GroupedDataset
        A data set with the splits train and test.
    groups : array (q, m) or sequence of tuples
        Groups to remove, as integer codes or as values of the attributes.
    strict : bool, default=False
        Whether to also remove rows of other groups that have the same ``origin`` as a removed row.

    Returns
    -------
    GroupedDataset
        The data set without these rows.

    Raises
    ------
    InputError
        If a group has no rows in train or val, or no training rows are left.

    Warns
    -----
    ExtrapolationWarning
        If a dropped group has no test rows.

    Examples
    --------
    >>> from compshift.data import load_table
    >>> birds, places = ["duck", "duck", "gull", "gull"] * 2, ["lake", "sea"] * 4
    >>> table = {"bird": birds, "place": places, "length": range(8), "split": ["train"] * 4 + ["test"] * 4}
    >>> data = load_table(table, target="bird", attributes="place", features=["length"])
    >>> drop_groups(data, [("gull", "sea")]).part("train").columns(["bird", "place"]).values.tolist()
    [['duck', 'lake'], ['duck', 'sea'], ['gull', 'lake']]
    """
    split = _splits_of(dataset)
    dropped = read_groups(dataset.space, groups)
    if not len(dropped):
        return dataset
    member = dataset.space.locate(dataset.codes, dropped)  # (n,) position in ``dropped``, −1 for other groups
    open_rows = split != TEST
    for position, code in enumerate(dropped):
        if not (open_rows & (member == position)).any():
            raise InputError(
                f"the group {dataset.space.label(code)} has no rows in train or val: remove it from groups"
            )
    untested = [code for position, code in enumerate(dropped) if not (~open_rows & (member == position)).any()]
    if untested:
        warnings.warn(
            f"{len(untested)} dropped group{'s have' if len(untested) > 1 else ' has'} no test rows, so the accuracy "
            f"on them cannot be measured: {', '.join(dataset.space.label(code) for code in untested[:4])}",
            ExtrapolationWarning,
            stacklevel=2,
        )
    remove = open_rows & (member >= 0)
    if check_flag(strict, "strict"):
        if dataset.origin is None:
            raise InputError(
                "strict needs a data set with origin: pass strict=False if every row is a different sample"
            )
        remove |= open_rows & np.isin(dataset.origin, dataset.origin[remove])
    return _without(dataset, remove)


def drop_unseen_from_validation(dataset: GroupedDataset) -> GroupedDataset:
    """Remove from val the groups that are absent from train, so that models are selected on seen groups only.

    The paper makes this change, and no other, to NICO++, whose train split lacks 23 groups of its val split.

    Parameters
    ----------
    dataset : GroupedDataset
        A data set with the splits train and test.

    Returns
    -------
    GroupedDataset
        The data set without these rows; the same object if there are no such rows.

    Examples
    --------
    >>> from compshift.data import load_table
    >>> table = {"bird": ["duck", "duck", "gull", "gull"], "length": range(4), "split": ["train", "val", "val", "test"]}
    >>> data = load_table(table, target="bird", features=["length"])
    >>> drop_unseen_from_validation(data).split
    array([0, 1, 2])
    """
    split = _splits_of(dataset)
    seen = dataset.space.distinct(dataset.codes[split == TRAIN])[0]
    return _without(dataset, (split == VAL) & (dataset.space.locate(dataset.codes, seen) < 0))


@dataclass(frozen=True, eq=False)
class Scenario:
    """One compositional shift: the groups to drop from the training data.

    ``scenarios`` lists the scenarios of a data set; ``apply`` returns the data set to train and test on.

    Parameters
    ----------
    name : str
        Name of the scenario: the values of the dropped groups, or how they were drawn.
    dropped : array (q, m)
        Codes of the dropped groups.
    trim_validation : bool, default=True
        Whether to remove from val the groups that are absent from train, so that models are selected on seen groups
        only. If False, val keeps groups that are absent from train even before any group is dropped.

    Examples
    --------
    >>> from compshift.data import load_table
    >>> birds, places = ["duck", "duck", "gull", "gull"] * 2, ["lake", "sea"] * 4
    >>> table = {"bird": birds, "place": places, "length": range(8), "split": ["train"] * 4 + ["test"] * 4}
    >>> data = load_table(table, target="bird", attributes="place", features=["length"])
    >>> scenario = Scenario("(gull, sea)", data.space.encode([("gull", "sea")]))
    >>> len(scenario.apply(data).part("train")), len(scenario.apply(data).part("test"))
    (3, 4)
    """

    name: str
    dropped: IntArray
    trim_validation: bool = True

    def apply(self, dataset: GroupedDataset, *, strict: bool = False) -> GroupedDataset:
        """Remove the dropped groups from train and val; with ``trim_validation``, val keeps only groups that train has.

        Parameters
        ----------
        dataset : GroupedDataset
            A data set with the splits train and test.
        strict : bool, default=False
            Whether to also remove rows of other groups that have the same ``origin`` as a removed row.

        Returns
        -------
        GroupedDataset
            The data set to train and test on.
        """
        kept = drop_groups(dataset, self.dropped, strict=strict)
        return drop_unseen_from_validation(kept) if self.trim_validation else kept


def scenarios(dataset: GroupedDataset, drop: Any = "each", *, random_state: int = 0) -> list[Scenario]:
    """List compositional shifts of a data set.

    Parameters
    ----------
    dataset : GroupedDataset
        A data set with the splits train and test.
    drop : str or groups, default="each"
        ``"each"``: drop one group at a time, each group that occurs in train and test. ``"none"``: drop no group.
        ``"standard"``: drop no group and keep in val the groups that train lacks, as in the paper's results without a
        compositional shift; of the published data sets, only NICO++ makes a difference. ``"random:0.3"``: drop 30 % of
        the training groups, drawn at random. A list of groups, as codes or values: drop them together.
    random_state : int, default=0
        Seed of the random draw.

    Returns
    -------
    list of Scenario
        The scenarios: one per group for ``"each"``, otherwise a single one.

    Raises
    ------
    InputError
        If the data set has no train or no test rows, or ``drop`` is none of these.

    Examples
    --------
    >>> from compshift.data import load_table
    >>> birds, places = ["duck", "duck", "gull", "gull"] * 2, ["lake", "sea"] * 4
    >>> table = {"bird": birds, "place": places, "length": range(8), "split": ["train"] * 4 + ["test"] * 4}
    >>> data = load_table(table, target="bird", attributes="place", features=["length"])
    >>> [scenario.name for scenario in scenarios(data)]
    ['(duck, lake)', '(duck, sea)', '(gull, lake)', '(gull, sea)']
    """
    train = _splits_of(dataset) == TRAIN
    space = dataset.space
    seen = space.distinct(dataset.codes[train])[0]
    if not isinstance(drop, str):
        groups = read_groups(space, drop)
        return [Scenario(" ".join(space.label(code) for code in groups) or "none", groups)]
    if drop in ("none", "standard"):
        nothing = np.zeros((0, len(space.names)), dtype=np.int64)
        return [Scenario(drop, nothing, trim_validation=drop == "none")]
    if drop == "each":
        tested = space.locate(seen, space.distinct(dataset.codes[dataset.split == TEST])[0]) >= 0
        return [Scenario(space.label(code), code[None, :]) for code in seen[tested]]
    if drop.startswith("random:"):
        share = _parse_share(drop)
        count = max(1, round(share * len(seen)))
        rng = check_generator(random_state)
        chosen = np.sort(rng.choice(len(seen), size=min(count, len(seen) - 1), replace=False))
        return [Scenario(f"{drop} seed {random_state}", seen[chosen])]
    raise InputError(
        f"drop is {drop!r}: use 'each', 'none', 'standard', 'random:0.3' or a list of groups, as values or codes"
    )


def read_groups(space: GroupSpace, groups: Any) -> IntArray:
    """Return the distinct groups as codes (q, m): integers are taken as codes, anything else as attribute values."""
    if isinstance(groups, str):
        raise InputError(f"groups is the text {groups!r}: pass a list of groups, each with one value of each attribute")
    listed = check_list(groups, "groups", "groups, each with one value of each attribute")
    try:
        array = np.asarray(listed)
    except (RuntimeError, TypeError):
        raise unreadable_error(groups, "groups") from None
    except ValueError:
        raise InputError("groups have different numbers of values: pass one value of each attribute") from None
    if array.size == 0 or array.dtype.kind in "iu":
        codes = check_codes(array, space.cardinalities, "groups")
    else:
        rows = [listed] if array.ndim == 1 else listed
        codes = space._encode_keys([tuple(row) for row in rows], "groups")
    return space.distinct(codes)[0]


def parse_groups(space: GroupSpace, texts: Sequence[str]) -> IntArray:
    """Parse groups, each a text of comma-separated values or codes, one per attribute; return codes (q, m).

    A value that contains a comma, or has spaces around it, must be in double quotes, as in CSV.
    """
    return np.array([_parse_group(space, text) for text in texts], dtype=np.int64).reshape(-1, len(space.names))


def split_groups(text: str) -> list[str]:
    """Split a text of several groups at the semicolons that are not inside double quotes."""
    return re.split(r';(?=(?:[^"]*"[^"]*")*[^"]*$)', text)


def group_text(values: Sequence[Any]) -> str:
    """Format a group as a text that ``parse_groups`` can read."""
    return ",".join(_quoted(str(value)) for value in values)


def _quoted(text: str) -> str:
    """Return a text as an entry of CSV, in double quotes if it has a comma, semicolon, quote or spaces around it."""
    return '"' + text.replace('"', '""') + '"' if re.search(r'[,;"]|^\s|\s$', text) else text


def _parts(text: str) -> list[str]:
    """Return the comma-separated values in the text of a group; empty if it is not valid CSV."""
    try:
        return next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:
        return []


def _parse_group(space: GroupSpace, text: str) -> list[int]:
    """Return the codes of the group in a text."""
    parts = _parts(text)
    if len(parts) != len(space.names):
        raise InputError(
            f"drop is {text!r}: name one value of each attribute ({', '.join(space.names)}), separated by commas; "
            "put a value that contains a comma, or has spaces around it, in double quotes"
        )
    codes = []
    for name, values, part in zip(space.names, space.values, parts, strict=True):
        known = [str(value) for value in values]
        part = part if part in known else part.strip()
        if part in known:
            codes.append(known.index(part))
        elif part.isdigit() and int(part) < len(values):
            codes.append(int(part))
        else:
            raise InputError(f"drop: {name} has no value {part!r}; its values are {listing(values, 12)}")
    return codes


def _parse_share(text: str) -> float:
    """Return the number in a text like ``random:0.3``."""
    try:
        share = float(text.removeprefix("random:"))
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(f"drop is {text!r}: the share must be a number between 0 and 1, as in 'random:0.3'")
    return share


def _splits_of(dataset: GroupedDataset) -> IntArray:
    """Check that a data set has train and test rows, and return its split codes (n,)."""
    check_dataset(dataset)
    if dataset.split is None or TRAIN not in dataset.split or TEST not in dataset.split:
        raise InputError(
            f"the data set has the splits {listing(dataset.splits) or 'none'}: pass one with train and test rows"
        )
    return dataset.split


def _without(dataset: GroupedDataset, remove: BoolArray) -> GroupedDataset:
    """Return the data set without the rows of a mask; raise an InputError if no training rows are left."""
    if not remove.any():
        return dataset
    kept = dataset.rows(~remove)
    if "train" not in kept.splits:
        raise InputError("no training rows are left if those groups are dropped: drop fewer groups")
    return kept
