"""Compositional shift: groups that are absent from training and present in use."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift._checks import check_codes, check_flag, check_generator, check_list, unreadable
from compshift._errors import ExtrapolationWarning, InputError, listing
from compshift.core.arrays import BoolArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import SPLITS, GroupedDataset, check_dataset

TRAIN, VAL, TEST = range(len(SPLITS))


def drop_groups(dataset: GroupedDataset, groups: Any, *, strict: bool = False) -> GroupedDataset:
    """Remove groups from train and val, and leave test as it is.

    ``groups`` are codes (q, m), or values if they are text. With ``strict``, rows of other groups that show the same
    sample as a dropped one (equal ``origin``) go too.
    """
    split = _splits_of(dataset)
    dropped = read_groups(dataset.space, groups)
    if not len(dropped):
        return dataset
    member = dataset.space.locate(dataset.codes, dropped)  # (n,) −1 where the group stays
    open_rows = split != TEST
    for position, code in enumerate(dropped):
        if not (open_rows & (member == position)).any():
            raise InputError(
                f"the group {dataset.space.label(code)} has no rows in train or val: there is nothing to drop"
            )
    unseen = [code for position, code in enumerate(dropped) if not (~open_rows & (member == position)).any()]
    if unseen:
        warnings.warn(
            f"{len(unseen)} dropped group{'s have' if len(unseen) > 1 else ' has'} no test rows, so nothing will tell "
            f"how well it is predicted: {', '.join(dataset.space.label(code) for code in unseen[:4])}",
            ExtrapolationWarning,
            stacklevel=2,
        )
    remove = open_rows & (member >= 0)
    if check_flag(strict, "strict"):
        if dataset.origin is None:
            raise InputError(
                "strict needs a data set whose rows have an origin: without repeated samples, leave it out"
            )
        remove |= open_rows & np.isin(dataset.origin, dataset.origin[remove])
    return _without(dataset, remove)


def drop_unseen_from_validation(dataset: GroupedDataset) -> GroupedDataset:
    """Remove from val the groups that train lacks, so that model selection sees no more than training does.

    The paper's only change to NICO++; it changes nothing where val has the groups of train.
    """
    split = _splits_of(dataset)
    seen = dataset.space.distinct(dataset.codes[split == TRAIN])[0]
    return _without(dataset, (split == VAL) & (dataset.space.locate(dataset.codes, seen) < 0))


@dataclass(frozen=True, eq=False)
class Scenario:
    """One compositional shift: the groups that training does without.

    ``scenarios`` makes them, and ``apply`` gives the data set that is trained and tested on.

    Parameters
    ----------
    name : str
        The groups' values, or what was drawn.
    dropped : array (q, m)
        Codes of the groups.
    """

    name: str
    dropped: IntArray

    def apply(self, dataset: GroupedDataset, *, strict: bool = False) -> GroupedDataset:
        """The data set without the dropped groups in train and val, and without any others in val that train lacks."""
        return drop_unseen_from_validation(drop_groups(dataset, self.dropped, strict=strict))


def scenarios(dataset: GroupedDataset, drop: Any = "each", *, random_state: int = 0) -> list[Scenario]:
    """Compositional shifts of a data set.

    ``drop`` is ``"each"`` (every training group that test has, one at a time), ``"none"``, ``"random:0.3"`` (that
    share of the training groups, drawn with ``random_state``), or the groups to drop together, as codes or values.
    """
    train = _splits_of(dataset) == TRAIN
    space = dataset.space
    seen = space.distinct(dataset.codes[train])[0]
    if not isinstance(drop, str):
        groups = read_groups(space, drop)
        return [Scenario(" ".join(space.label(code) for code in groups) or "none", groups)]
    if drop == "none":
        return [Scenario("none", np.zeros((0, len(space.names)), dtype=np.int64))]
    if drop == "each":
        tested = space.locate(seen, space.distinct(dataset.codes[dataset.split == TEST])[0]) >= 0
        return [Scenario(space.label(code), code[None, :]) for code in seen[tested]]
    if drop.startswith("random:"):
        share = _share(drop)
        count = max(1, round(share * len(seen)))
        rng = check_generator(random_state)
        chosen = np.sort(rng.choice(len(seen), size=min(count, len(seen) - 1), replace=False))
        return [Scenario(f"{drop} seed {random_state}", seen[chosen])]
    raise InputError(f"drop is {drop!r}: use 'each', 'none', 'random:0.3' or groups as a list of values or codes")


def read_groups(space: GroupSpace, groups: Any) -> IntArray:
    """Groups as codes (q, m): whole numbers are codes already, text is looked up among the values."""
    if isinstance(groups, str):
        raise InputError(f"groups is the text {groups!r}: pass a list of groups, each with one value of each attribute")
    listed = check_list(groups, "groups", "groups, each with one value of each attribute")
    try:
        array = np.asarray(listed)
    except (RuntimeError, TypeError):
        raise unreadable(groups, "groups") from None
    except ValueError:
        raise InputError("groups have different numbers of values: pass one value of each attribute") from None
    if array.size == 0 or array.dtype.kind in "iu":
        codes = check_codes(array, space.cardinalities, "groups")
    else:
        rows = [listed] if array.ndim == 1 else listed
        codes = space.encode_keys([tuple(row) for row in rows], "groups")
    return space.distinct(codes)[0]


def parse_groups(space: GroupSpace, texts: Sequence[str]) -> IntArray:
    """Groups as codes (q, m), from texts with one value name or code per attribute, separated by commas.

    A value that has a comma itself is put in double quotes, as in CSV.
    """
    return np.array([_parse_group(space, text) for text in texts], dtype=np.int64).reshape(-1, len(space.names))


def split_groups(text: str) -> list[str]:
    """The texts of several groups, which are joined by semicolons; those in double quotes are part of a value."""
    return re.split(r';(?=(?:[^"]*"[^"]*")*[^"]*$)', text)


def group_text(values: Sequence[Any]) -> str:
    """A group as ``parse_groups`` takes it."""
    texts = [str(value) for value in values]
    return ",".join(f'"{text}"' if "," in text or ";" in text else text for text in texts)


def _parts(text: str) -> list[str]:
    """The values in a group's text."""
    try:
        return [part.strip() for part in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:
        return []


def _parse_group(space: GroupSpace, text: str) -> list[int]:
    parts = _parts(text)
    if len(parts) != len(space.names):
        raise InputError(
            f"drop is {text!r}: name one value of each attribute ({', '.join(space.names)}), separated by commas; one "
            "that has a comma itself is put in double quotes"
        )
    codes = []
    for name, values, part in zip(space.names, space.values, parts, strict=True):
        known = [str(value) for value in values]
        if part in known:
            codes.append(known.index(part))
        elif part.isdigit() and int(part) < len(values):
            codes.append(int(part))
        else:
            raise InputError(f"drop: {name} has no value {part!r}; its values are {listing(values, 12)}")
    return codes


def _share(text: str) -> float:
    try:
        share = float(text.removeprefix("random:"))
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(f"drop is {text!r}: the share must be a number between 0 and 1, as in 'random:0.3'")
    return share


def _splits_of(dataset: GroupedDataset) -> IntArray:
    check_dataset(dataset)
    if dataset.split is None or TRAIN not in dataset.split or TEST not in dataset.split:
        raise InputError(
            f"the data set has the splits {listing(dataset.splits) or 'none'}: dropping groups needs train and test"
        )
    return dataset.split


def _without(dataset: GroupedDataset, remove: BoolArray) -> GroupedDataset:
    if not remove.any():
        return dataset
    kept = dataset.rows(~remove)
    if "train" not in kept.splits:
        raise InputError("no training row is left once those groups are dropped: drop fewer")
    return kept
