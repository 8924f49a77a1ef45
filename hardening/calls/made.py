"""Good data that bad input is made from: three birds in three places, seven of nine groups seen."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

BIRDS = np.array(["duck", "gull", "owl"])
PLACES = np.array(["lake", "sea", "wood"])
SEEN = np.array([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 2)])


class Rows(NamedTuple):
    """Features, two labels, and their codes."""

    X: Any
    bird: Any
    place: Any
    codes: Any


def rows(n: int = 84, p: int = 4) -> Rows:
    """Rows of the seen groups in turn."""
    rng = np.random.default_rng(0)
    codes = SEEN[np.arange(n) % len(SEEN)]
    moves = rng.normal(size=(2, 3, p))
    X = rng.normal(size=(n, p)) + moves[0, codes[:, 0]] + moves[1, codes[:, 1]]
    return Rows(X, BIRDS[codes[:, 0]], PLACES[codes[:, 1]], codes)


def whole_sets() -> dict[str, tuple[Any, Any, Any]]:
    """Features, class and attribute that are odd only together."""
    made = rows()
    X, bird, place = made.X, made.bird, made.place
    rng = np.random.default_rng(1)
    n = 1000
    many = rng.integers(320, size=n), rng.integers(320, size=n)  # 10^5 candidate groups
    singles = [np.flatnonzero((made.codes == group).all(axis=1))[0] for group in SEEN]
    return {
        "one row": (X[:1], bird[:1], place[:1]),
        "two rows": (X[:2], bird[[0, 20]], place[:2]),
        "one class": (X, np.full(len(X), "a"), place),
        "one group": (X[:5], np.full(5, "a"), np.full(5, "b")),
        "a row of each group": (X[singles], bird[singles], place[singles]),
        "a group of its own for each class": (X, bird, bird),
        "every row twice": (np.repeat(X, 2, axis=0), np.repeat(bird, 2), np.repeat(place, 2)),
        "one row many times": (np.repeat(X[:1], len(X), axis=0), bird, place),
        "separable": (np.eye(3)[made.codes[:, 0]], bird, place),
        "more features than rows": (rng.normal(size=(len(X), 900)), bird, place),
        "10^5 groups": (rng.normal(size=(n, 3)), many[0], many[1]),
        "as many attributes as rows allow": (X, bird, rng.integers(2, size=(len(X), 12))),
        "an index in another order": (pd.DataFrame(X), bird, pd.Series(place)[::-1]),
        "two attributes that say the same": (X, bird, np.stack([place, place], axis=1)),
    }
