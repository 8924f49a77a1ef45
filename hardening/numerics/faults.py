"""Data with numerical faults, each beside what is known of the answer."""

from typing import Any, Literal, NamedTuple

import numpy as np

Known = Literal["none", "same", "accurate", "indifferent"]
"""Nothing; the probabilities of ``like``; training rows are predicted right; every row is predicted alike."""


class Fault(NamedTuple):
    """A training set, the rows to predict, and what must come out."""

    X: Any
    y: Any
    place: Any
    weight: Any = None
    known: Known = "none"
    like: Any = None  # features that must give the same probabilities
    ridge: float = 1.0  # by which the ridge must be multiplied for that

    @property
    def queries(self) -> Any:
        """Rows to predict."""
        return self.X[:40]


def codes_of(n_rows: int) -> Any:
    """Five of six groups in turn; each of four of them is determined by the others."""
    return np.array([[0, 0], [0, 1], [1, 1], [0, 2], [1, 2]])[np.arange(n_rows) % 5]


def features_of(codes: Any, distance: float = 1.0, width: int = 4) -> Any:
    """Features that bird and place both move."""
    rng = np.random.default_rng(0)
    moves = np.zeros((2, width))
    moves[0, :2] = [2, 1]
    moves[1, 1 : min(3, width)] = [1, 2][: min(3, width) - 1]
    return rng.normal(size=(len(codes), width)) + distance * (codes @ moves)


def make_faults() -> dict[str, Fault]:
    """Every fault by its name."""
    codes = codes_of(120)
    X = features_of(codes)
    y, place = np.array(["duck", "gull"])[codes[:, 0]], np.array(["lake", "sea", "town"])[codes[:, 1]]
    rng = np.random.default_rng(1)
    whole = np.round(X * 20)

    def fault(features: Any, **more: Any) -> Fault:
        return Fault(features, y, place, **more)

    few_codes = np.r_[codes[codes[:, 0] * codes[:, 1] < 2], [[1, 2]]]  # the last group has one row
    few_X = features_of(few_codes)
    wide_codes = codes_of(60)
    constant = np.c_[X, np.full((len(X), 4), 7.0)]
    shifted = X + 1e8
    return {
        "none": fault(X),
        **{
            f"features times 2^{power}": fault(np.ldexp(X, power), known="same", like=X)
            for power in (66, -66, 498, -498, 996, -996)  # 1e±20, 1e±150, 1e±300
        },
        "a huge offset": fault(shifted, known="same", like=shifted - 1e8),
        "mixed scales": fault(X * [1e-20, 1, 1e20, 1]),
        "denormal features": fault(X * 5e-320),
        "duplicated features": fault(np.c_[X, X], known="same", like=X, ridge=2.0),
        "constant features too": fault(constant, known="same", like=X, ridge=2.0),
        "nothing but constants": fault(np.full_like(X, 3.5), known="indifferent"),
        "a constant of 1e300": fault(np.full_like(X, 1e300), known="indifferent"),
        "one feature": fault(X[:, :1]),
        "separable": fault(features_of(codes, 50), known="accurate"),
        "identical rows, other labels": fault(np.repeat(X[:12], 10, axis=0)),
        **{
            f"60 rows of {width} features": Fault(
                features_of(wide_codes, 3, width),
                np.array(["duck", "gull"])[wide_codes[:, 0]],
                np.array(["lake", "sea", "town"])[wide_codes[:, 1]],
            )
            for width in (200, 5000)
        },
        "a group of one row": Fault(
            few_X, np.array(["duck", "gull"])[few_codes[:, 0]], np.array(["lake", "sea", "town"])[few_codes[:, 1]]
        ),
        "imbalance of 1 to 10^6": fault(X, weight=np.where(codes[:, 0] == 1, 1e-6, 1.0)),
        "imbalance of 1 to 10^300": fault(X, weight=np.where(codes[:, 0] == 1, 1e-300, 1.0)),
        "weights of 1e300": fault(X, weight=np.full(len(X), 1e300), known="same", like=X),
        "weights of 1e-300": fault(X, weight=np.full(len(X), 1e-300), known="same", like=X),
        "a weight that vanishes": fault(X, weight=np.where(np.arange(len(X)) == 7, 5e-324, 1.0)),
        "a group whose weights vanish": fault(X, weight=np.where((codes == [1, 2]).all(axis=1), 5e-324, 1.0)),
        "weights that differ by 600 powers": fault(X, weight=10.0 ** rng.uniform(-300, 300, size=len(X))),
        **{
            f"{kind} features": fault(
                whole.clip(0).astype(kind) if kind.startswith("u") else whole.astype(kind),
                known="same",
                like=(whole.clip(0).astype(kind) if kind.startswith("u") else whole.astype(kind)).astype(np.float64),
            )
            for kind in ("float16", "float32", "int8", "uint64")
        },
        "boolean features": fault(X > 1, known="same", like=(X > 1).astype(np.float64)),
        "an outlier of 1e12": fault(np.where(np.arange(X.size).reshape(X.shape) == 9, 1e12, X)),
        "an outlier of 1e300": fault(np.where(np.arange(X.size).reshape(X.shape) == 9, 1e300, X)),
    }
