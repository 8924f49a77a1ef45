"""What becomes of an estimator whose fit fails: nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unchanged_if_refused(estimator: Any) -> Iterator[None]:
    """Give an estimator the attributes back that it had, if what is done within ends in an error.

    Half of a new fit beside half of an old one would predict nonsense. A fit replaces attributes and writes into none,
    so that their names and values are enough.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
