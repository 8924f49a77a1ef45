"""Validation of the arguments of public functions: an invalid argument raises an InputError.

The message says in one sentence what was wrong, what was expected and how to fix it. Private functions do not validate
their arguments.
"""

import contextlib
import itertools
import math
import operator
import sys
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from compshift._errors import InputError, an, rough

MAX_TABLE_GROUPS = 1 << 22
"""Largest number of groups, about four million, for which an array with one entry per group is built."""

MAX_FEATURE = 1e302
"""Largest accepted absolute value of a feature; sums of larger values may overflow."""

MAX_FACTOR = 1e18
"""Largest accepted learning rate or penalty; the product of two such numbers fits into float32."""

MIN_FRACTION = 1e-9
"""Smallest number that ``check_fraction`` accepts."""

MAX_READERS = 1024
"""Largest accepted number of worker processes for reading samples."""


def mask_of(values: Any) -> Any:
    """Return the mask of a masked array; None if no entry is masked or ``values`` is not a masked array."""
    if not isinstance(values, np.ma.MaskedArray) or values.dtype.names is not None:
        return None
    mask = np.ma.getmaskarray(values)
    return mask if mask.any() else None


def check_unmasked(values: Any, name: str) -> None:
    """Check that no entry of an array is masked, because NumPy would silently use the values under the mask."""
    mask = mask_of(values)
    if mask is not None:
        count, row = int(np.count_nonzero(mask)), int(np.nonzero(mask)[0][0]) if mask.ndim else 0
        raise InputError(
            f"{name} has {count} masked value{'s' * (count > 1)}, the first at row {row}: remove those rows or impute "
            "them before this call"
        )


def check_same_rows(n_rows: int, values: Any, name: str, reference: str = "X") -> None:
    """Check that ``values`` has ``n_rows`` rows, one per sample."""
    try:
        count = len(values)
    except RuntimeError:
        raise unreadable_error(values, name) from None
    except TypeError:  # a number, or a sparse matrix
        count = (getattr(values, "shape", ()) or (0,))[0]
    if count != n_rows:
        raise InputError(f"{name} has {count} rows but {reference} has {n_rows}: pass one row of {name} per sample")


def check_same_order(tables: Mapping[str, Any]) -> None:
    """Check that no two pandas tables have the same index labels in different orders, because rows match by position.

    Indexes with different labels, for example after ``reset_index`` of one table only, are accepted.
    """
    indexes = [pair for name, table in tables.items() for pair in _row_labels(name, table)]
    for (name, index), (other, labels) in itertools.combinations(indexes, 2):
        if len(index) != len(labels) or index.nlevels != labels.nlevels or index.equals(labels):
            continue
        pairs = enumerate(zip(index.tolist(), labels.tolist(), strict=True))
        row, first = next(((row, pair) for row, pair in pairs if pair[0] != pair[1]), (0, None))
        if first is not None and index.isin(labels).all() and labels.isin(index).all():
            raise InputError(
                f"{other} has the index labels of {name} in another order ({first[1]!r} instead of {first[0]!r} at row "
                f"{row}), but rows are matched by position: reorder {other}, for example with .loc[{name}.index], or "
                "call .reset_index(drop=True) on both"
            )


def _row_labels(name: str, table: Any) -> list[tuple[str, Any]]:
    """Return (name for messages, index) of a pandas table, or of each pandas column of a mapping."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return []
    parts = {f"{name}[{key!r}]": part for key, part in table.items()} if isinstance(table, Mapping) else {name: table}
    with_index = (pandas.DataFrame, pandas.Series)
    return [(part, values.index) for part, values in parts.items() if isinstance(values, with_index)]


def check_generator(random_state: Any) -> np.random.Generator:
    """Return a NumPy generator from a seed, or the generator that was passed."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise InputError(f"random_state is {random_state!r}: pass an integer ≥ 0 or a numpy.random.Generator") from None


def check_finite(values: Any, name: str = "X") -> None:
    """Check that all entries are finite; the error gives the row and column of the first NaN or infinite entry."""
    # A finite sum proves that all entries are finite. An infinite sum may come from overflow, so check each entry.
    with np.errstate(all="ignore"):
        if math.isfinite(float(np.sum(values))):
            return
    bad = ~np.isfinite(values)
    count = int(np.count_nonzero(bad))
    if count:
        where = tuple(int(axis[0]) for axis in np.nonzero(bad))
        place = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
        kind = "NaN" if np.isnan(values[where]) else "infinite"
        raise InputError(
            f"{name} has {count} NaN or infinite (inf) value{'s' * (count > 1)}, the first ({kind}) at {place}: "
            "remove those rows or impute them before this call"
        )


def check_magnitude(values: Any, name: str = "X") -> None:
    """Check that no absolute value exceeds ``MAX_FEATURE``, so that sums do not overflow."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest > MAX_FEATURE:
        raise InputError(
            f"{name} has values up to {largest:.3g}, and sums of values above {MAX_FEATURE:g} may overflow: rescale "
            "the features"
        )


def check_no_overflow(values: Any, what: str) -> Any:
    """Return values computed from X after checking that they did not overflow; ``what`` names them in the message.

    They may be an array of any library.
    """
    with np.errstate(all="ignore"):
        finite = math.isfinite(float(values.sum())) or bool((abs(values) < math.inf).all())
    if not finite:
        raise InputError(
            f"X has rows so far from the training data that their {what} overflow: check the features for errors, and "
            "use the same units as in fit"
        )
    return values


def as_array(values: Any, name: str) -> Any:
    """Return values as an array; a tensor that requires a gradient raises an InputError instead of torch's error."""
    check_not_lazy(values, name)
    try:
        return np.asarray(values)
    except (RuntimeError, TypeError):
        raise unreadable_error(values, name) from None


def check_not_lazy(values: Any, name: str) -> None:
    """Check that a frame of Polars or narwhals is not lazy: such a frame has no rows yet."""
    if type(values).__name__ == "LazyFrame":
        raise InputError(f"{name} is a LazyFrame, which has no rows before it is computed: call .collect() first")


def changed_names_error(error: Exception, *, fitted: bool) -> InputError | None:
    """Return the error for features with other names than in ``fit``, or None if ``error`` has another reason.

    scikit-learn's estimator checks look for its own wording and line breaks, which stay.
    """
    if not fitted or not isinstance(error, ValueError) or "feature names" not in str(error):
        return None
    return InputError(f"{str(error).rstrip()}\nPass the columns used in fit, in the same order.", lines=True)


def unreadable_error(values: Any, name: str) -> InputError:
    """Return the error for values that NumPy cannot read, for example a tensor that requires a gradient."""
    return InputError(
        f"{name} is {an(type(values).__name__)} that NumPy cannot read: pass a NumPy array; convert a tensor with "
        ".detach().cpu().numpy()"
    )


def check_numbers(values: Any, name: str, expected: str) -> Any:
    """Return real numbers as a float64 array; the message for anything else ends with ``expected``."""
    check_unmasked(values, name)
    try:
        array = as_array(values, name)
        if array.dtype.kind not in "cmM":
            return array.astype(np.float64, copy=False)
        problem = f"has type {array.dtype}"  # complex numbers or times
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError):
        problem = f"holds {values!r}" if isinstance(values, list | tuple | np.ndarray) else f"is {values!r}"
    raise InputError(f"{name} {problem}: {expected}")


def check_list(values: Any, name: str, of: str) -> list[Any]:
    """Return an iterable other than text as a list; ``of`` describes the expected items in the message."""
    if not isinstance(values, str | bytes):
        try:
            return list(values)
        except RuntimeError:
            raise unreadable_error(values, name) from None
        except TypeError:
            pass
    raise InputError(f"{name} is {values!r}: pass a list of {of}")


def check_float32(values: Any, name: str = "X") -> None:
    """Check that all numbers fit into float32, the precision in which networks compute."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest > float(np.finfo(np.float32).max):
        raise InputError(
            f"{name} has values up to {largest:.3g}, but networks compute in float32, whose largest number is 3.4e38: "
            "divide each feature by its standard deviation"
        )


def check_sample_weight(sample_weight: Any, n_rows: int, name: str = "sample_weight") -> Any:
    """Return sample weights as (n,) float64 after checking that they are finite, ≥ 0 and not all 0; ones for None.

    A weight whose share of the sum would be denormal becomes 0. Importance weights can be that small, e.g. exp(−740).
    """
    if sample_weight is None:
        return np.ones(n_rows)
    weight = check_numbers(sample_weight, name, "pass one number per sample")
    if weight.ndim == 0:
        weight = np.full(n_rows, float(weight))
    if weight.ndim != 1:
        raise InputError(f"{name} has {weight.ndim} dimensions: pass one number per sample")
    check_same_rows(n_rows, weight, name)
    check_finite(weight, name)
    if (weight < 0).any():
        row = int(np.argmax(weight < 0))
        raise InputError(f"{name} is negative ({weight[row]:g} at row {row}): weights must be ≥ 0")
    with np.errstate(over="ignore"):
        total = float(weight.sum())
    if not math.isfinite(total):
        raise InputError(f"{name} has values up to {weight.max():g}, whose sum overflows: divide {name} by its maximum")
    if 0 < weight.max(initial=0.0) < np.finfo(np.float64).tiny:
        raise InputError(f"{name} is too small (at most {weight.max():g}): divide {name} by its maximum")
    if not weight.any():
        raise InputError(f"{name} is zero for every row: at least one row of each class must have a weight above 0")
    return np.where(weight / total < np.finfo(np.float64).tiny, 0.0, weight)


def check_codes(codes: Any, cardinalities: Sequence[int], name: str = "codes") -> Any:
    """Check group codes and return them as (q, m) int64; a single code (m,) becomes one row."""
    check_unmasked(codes, name)
    try:
        array = as_array(codes, name)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} has rows of different lengths: pass {len(cardinalities)} integers per row") from None
    if array.size == 0 and array.ndim < 2:
        array = array.reshape(0, len(cardinalities)).astype(np.int64)
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or array.shape[1] != len(cardinalities):
        raise InputError(
            f"{name} has shape {np.shape(codes)}: pass one row per group with {len(cardinalities)} integers, "
            "one per attribute"
        )
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} has type {array.dtype}: pass integer codes, for example from space.encode(table)")
    array = array.astype(np.int64)
    outside = (array < 0) | (array >= np.asarray(cardinalities))
    if outside.any():
        row, column = (int(axis[0]) for axis in np.nonzero(outside))
        raise InputError(
            f"{name} has {int(array[row, column])} for attribute {column} at row {row}: "
            f"its codes run from 0 to {cardinalities[column] - 1}"
        )
    return array


def check_probabilities(values: Any, name: str) -> Any:
    """Check that probabilities are ≥ 0 and sum to 1 within 1e-6; return them as float64, divided by their sum."""
    array = check_numbers(values, name, "pass probabilities")
    check_finite(array, name)
    if (array < 0).any():
        raise InputError(f"{name} has a negative entry ({array.min():g}): probabilities must be ≥ 0")
    total = float(array.sum())
    if abs(total - 1.0) > 1e-6:
        raise InputError(f"{name} sums to {total:.6g}: probabilities must sum to 1; divide it by its sum")
    return array / total


def check_positive(value: Any, name: str, *, allow_zero: bool = False, most: float = math.inf) -> float:
    """Check that a number is finite, above 0 (or ≥ 0 if ``allow_zero``) and at most ``most``, and return it."""
    wanted = ("≥ 0" if allow_zero else "above 0") + (f", up to {most:g}" if most < math.inf else "")
    number = check_finite_number(value, name, f"pass a finite number {wanted}")
    if not 0 <= number <= most or (number == 0 and not allow_zero):
        raise InputError(f"{name} is {value!r}: pass a finite number {wanted}")
    return number


def check_finite_number(value: Any, name: str, expected: str) -> float:
    """Check that a value is a finite number and return it; the message for anything else ends with ``expected``."""
    number = math.nan
    if not isinstance(value, str | bytes | bool) and np.ndim(value) == 0:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise InputError(f"{name} is {value!r}: {expected}")
    return number


def check_fraction(value: Any, name: str) -> float:
    """Check that a number is at least ``MIN_FRACTION`` and below 1, and return it."""
    number = check_positive(value, name)
    if not MIN_FRACTION <= number < 1:
        raise InputError(
            f"{name} is {value!r}: pass a number between 0 and 1 (at least {MIN_FRACTION:g}), for example 0.95"
        )
    return number


def check_flag(value: Any, name: str) -> bool:
    """Check that a value is True or False and return it."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {value!r}: pass True or False")
    return bool(value)


def check_whole(value: Any, name: str, most: float = math.inf) -> int:
    """Check that a value is an integer from 0 to ``most`` and return it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0 or int(value) > most:
        wanted = "≥ 0" if most == math.inf else f"from 0 to {most}"
        raise InputError(f"{name} is {value!r}: pass an integer {wanted}")
    return int(value)


def check_count(value: Any, name: str) -> int:
    """Check that a value is an integer ≥ 1 and return it."""
    count = 0
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            count = operator.index(value)
    if count > sys.maxsize:
        raise InputError(f"{name} is {rough(count)}: pass an integer up to {sys.maxsize}")
    if count < 1:
        raise InputError(f"{name} is {value!r}: pass an integer ≥ 1")
    return count
