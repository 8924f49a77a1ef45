"""A table of calls with the kinds of each argument, and what one bad argument at a time makes of them."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hardening.calls.kinds import Kinds
from hardening.share import some
from hardening.tally import Tally


@dataclass(frozen=True)
class Call:
    """A public function, the arguments that work, and the kinds to try in place of each."""

    name: str
    function: Callable[..., Any]
    good: Mapping[str, Any] = field(default_factory=dict)
    odd: Mapping[str, Kinds] = field(default_factory=dict)


def attempt_all(tally: Tally, calls: Iterator[Call]) -> set[str]:
    """Try every kind in place of every argument; the names of the calls."""
    names = set()
    for call in calls:
        names.add(call.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # NumPy's word for numbers that went astray
            expected = call.function(**copy.deepcopy(dict(call.good)))
            complaint = unsound(expected)
            if complaint:
                raise AssertionError(f"{call.name} with good arguments: {complaint}")
            for argument, kinds in call.odd.items():
                for kind, odd in some(kinds.items()):
                    arguments = {**call.good, argument: odd.value}
                    check = (lambda result, to=expected: differs(result, to)) if odd.same else unsound
                    label = f"{call.name}, {argument}: {kind}"
                    before = _snapshot(arguments)
                    tally.attempt(label, lambda call=call, a=arguments: call.function(**a), check)
                    if _snapshot(arguments) != before:
                        tally.fail("wrong result", f"{label}: the argument was changed")
    return names


def unsound(result: Any) -> str | None:
    """What makes a result one that nobody can use: NaN in it, or probabilities that do not add up."""
    for array in _arrays(result):
        if array.dtype.kind == "f" and np.isnan(array).any():
            return f"NaN in a result of shape {array.shape}"
    return None


def differs(result: Any, expected: Any) -> str | None:
    """How a result is not the expected one."""
    found, wanted = _arrays(result), _arrays(expected)
    if [a.shape for a in found] != [a.shape for a in wanted]:
        return f"shapes {[a.shape for a in found]}, expected {[a.shape for a in wanted]}"
    for a, b in zip(found, wanted, strict=True):
        same = np.allclose(a, b, rtol=1e-6, atol=1e-7) if a.dtype.kind in "fc" else bool(np.all(a == b))
        if not same:
            return "another result than for the same values in a plain array"
    return None


def _arrays(result: Any) -> list[Any]:
    """The arrays that a result is made of; columns of frames that may hold NaN are left out."""
    if isinstance(result, pd.DataFrame):
        return []
    if isinstance(result, pd.Series):
        return [result.to_numpy()]
    if hasattr(result, "detach"):
        return [result.detach().numpy()]
    if isinstance(result, list | tuple):
        return [array for part in result for array in _arrays(part)]
    if isinstance(result, np.ndarray | float | int | np.generic):
        return [np.asarray(result)]
    return []


def _snapshot(arguments: Mapping[str, Any]) -> list[bytes]:
    """The bytes of the arrays among the arguments."""
    return [
        value.tobytes() for value in arguments.values() if isinstance(value, np.ndarray) and not value.dtype.hasobject
    ]


def rows_add_up(probabilities: Any) -> Any:
    """The probabilities, once their rows are known to sum to 1."""
    for array in probabilities if isinstance(probabilities, list) else [probabilities]:
        if not math.isclose(float(np.abs(array.sum(axis=1) - 1).max(initial=0)), 0, abs_tol=1e-6):
            raise AssertionError("probabilities do not sum to 1")
    return probabilities
