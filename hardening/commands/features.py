"""Bad feature files, each with every command that reads one."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hardening.commands.call import Command, Ending
from hardening.commands.ground import LABELS, TRAINING, Ground, good_arrays, good_frame


class Features(NamedTuple):
    """A feature file, and what it must come to for readers of labels, of features, and of both."""

    content: bytes
    labels: Ending
    features: Ending
    both: Ending = "refuse"


def feature_commands(ground: Ground) -> Iterator[Command]:
    """Every bad feature file with every command that reads them."""
    for name, found in _archives().items():
        path = ground.folder / f"{name.replace(' ', '_')}.npz"
        path.write_bytes(found.content)
        yield from _readers(ground, name, path, found)
    for name, found in _parquets().items():
        path = ground.folder / f"{name.replace(' ', '_')}.parquet"
        path.write_bytes(found.content)
        yield from _readers(ground, name, path, found)


def _readers(ground: Ground, name: str, path: Path, found: Features) -> Iterator[Command]:
    source, label = str(path), f"{name} in {path.suffix}"
    every: Ending = found.both if found.both != "refuse" else "refuse"
    yield Command(label, ["audit", source, "--attributes", "bird,place", "--json"], found.labels)
    yield Command(label, ["fit", source, *LABELS, "-o", "{out}/m.safetensors", "--json"], every)
    yield Command(label, ["train", source, *LABELS, *TRAINING, "-o", "{out}/run", "--json"], every)
    yield Command(label, ["predict", ground.model, source, "-o", "{out}/p.parquet", "--groups"], found.features)
    yield Command(
        label, ["evaluate", ground.model, source, "--json"], every if name in ("good", "half precision") else "either"
    )
    yield Command(label, ["report", ground.model, source, "-o", "{out}/p.html"], "either")
    yield Command(label, ["bench", source, "--dry-run", "--json", "-o", "{out}/b"], "either")
    if path.suffix == ".parquet":
        options = ["--memory", "10M", "-o", "{out}/m.safetensors", "--json"]
        yield Command(label, ["fit", source, *LABELS, *options], every if every == "refuse" else "either")


def _npz(**changed: Any) -> bytes:
    """The good archive with other arrays; None leaves one out."""
    arrays = {**good_arrays(), **changed}
    stream = io.BytesIO()
    np.savez(stream, **{name: value for name, value in arrays.items() if value is not None})
    return stream.getvalue()


def _with(array: Any, value: Any) -> Any:
    """The array with one entry replaced."""
    changed = array.astype(np.result_type(array, type(value))) if isinstance(value, float) else array.copy()
    changed[4, 0] = value
    return changed


def _archives() -> dict[str, Features]:
    """Archives of arrays that do not fit together, or are no numbers."""
    good = good_arrays()
    X, Z = good["X"], good["Z"]
    bad_X: dict[str, Any] = {
        "NaN": _with(X, np.nan),
        "inf": _with(X, -np.inf),
        "one dimension": X[:, 0],
        "three dimensions": X[:, :, None],
        "no dimension": np.float64(1),
        "no columns": X[:, :0],
        "no rows of X": X[:0],
        "text": X.astype(str),
        "complex": X.astype(complex),
        "dates": np.arange(180).reshape(60, 3).astype("datetime64[D]"),
    }
    bad_Z: dict[str, Any] = {
        "codes out of range": _with(Z, 9),
        "negative codes": _with(Z, -1),
        "codes of 2**63": Z.astype(np.uint64) + np.uint64(2**63),
        "fractional codes": Z + 0.5,
        "codes of one dimension": Z[:, 0],
        "too few columns of codes": Z[:, :1],
        "too many columns of codes": np.c_[Z, Z],
        "codes as text": Z.astype(str),
    }
    bad_names: dict[str, Any] = {
        "names no JSON": np.array("{bird"),
        "names a list": np.array("[1, 2]"),
        "names of another attribute": np.array('{"fish": ["a"]}'),
        "names with one value twice": np.array('{"bird": ["a", "a"], "place": ["b", "c"]}'),
        "names of mixed types": np.array('{"bird": ["a", 1], "place": ["b", "c"]}'),
        "names that are lists": np.array('{"bird": [["a"], ["b"]], "place": ["b", "c"]}'),
        "names that are null": np.array('{"bird": [null, "b"], "place": ["b", "c"]}'),
        "names that are empty": np.array('{"bird": [], "place": []}'),
        "names deeply nested": np.array('{"bird":' + "[" * 5000 + "]" * 5000 + "}"),
        "names NaN": np.array('{"bird": [NaN, 1], "place": ["b", "c"]}'),
    }
    long = json.dumps({"bird": ["a" * 10_000, "b" * 10_000], "place": ["x, y", "x"]})
    return {
        "good": Features(_npz(), "answer", "answer", "answer"),
        "nothing": Features(b"", "refuse", "refuse"),
        "a CSV file": Features(b"a,b\n1,2\n", "refuse", "refuse"),
        "half an archive": Features(_npz()[:900], "refuse", "refuse"),
        "no arrays": Features(_npz(**dict.fromkeys(good)), "refuse", "refuse"),
        **{f"X of {name}": Features(_npz(X=value), "either", "refuse") for name, value in bad_X.items()},
        **{name: Features(_npz(Z=value), "refuse", "answer") for name, value in bad_Z.items()},
        **{name: Features(_npz(value_names=value), "refuse", "answer") for name, value in bad_names.items()},
        "more codes than rows": Features(_npz(Z=np.r_[Z, Z]), "either", "answer"),
        "no codes": Features(_npz(Z=None), "refuse", "answer"),
        "no X": Features(_npz(X=None), "answer", "refuse"),
        "objects": Features(_npz(X=np.array([{}] * 60, dtype=object)), "either", "refuse"),
        "one class": Features(_npz(Z=Z * [0, 1]), "answer", "answer"),
        "one row": Features(_npz(X=X[:1], Z=Z[:1], split=None), "answer", "answer"),
        "whole numbers": Features(_npz(X=(X * 10).astype(np.int8)), "answer", "answer", "answer"),
        "booleans": Features(_npz(X=X > 0), "answer", "answer", "answer"),
        "half precision": Features(_npz(X=X.astype(np.float16)), "answer", "answer", "answer"),
        "long double": Features(_npz(X=X.astype(np.longdouble)), "answer", "answer", "answer"),
        "big endian": Features(_npz(X=X.astype(">f8"), Z=Z.astype(">i4")), "answer", "answer", "answer"),
        "Fortran order": Features(_npz(X=np.asfortranarray(X)), "answer", "answer", "answer"),
        "features at 1e300": Features(_npz(X=X * 1e300), "answer", "answer", "either"),
        "features at 1e-300": Features(_npz(X=X * 1e-300), "answer", "answer", "either"),
        "too many features": Features(_npz(X=np.c_[X, X]), "answer", "refuse", "answer"),
        "a split out of range": Features(_npz(split=np.full(60, 7)), "answer", "refuse"),
        "a split too short": Features(_npz(split=np.zeros(3, dtype=int)), "answer", "refuse"),
        "a split of text": Features(_npz(split=np.array(["a"] * 60)), "answer", "refuse"),
        "a split of NaN": Features(_npz(split=np.full(60, np.nan)), "answer", "refuse"),
        "a split without train": Features(_npz(split=np.full(60, 2)), "answer", "answer", "either"),
        "very long values": Features(_npz(value_names=np.array(long)), "answer", "answer", "answer"),
        "no value names": Features(_npz(value_names=None), "answer", "answer", "answer"),
        "attribute names twice": Features(_npz(attribute_names=np.array(["bird", "bird"])), "refuse", "answer"),
        "attribute names of numbers": Features(_npz(attribute_names=np.array([1, 2])), "refuse", "answer"),
    }


def _parquet(**changed: Any) -> bytes:
    frame = good_frame()[["bird", "place"]].assign(features=list(good_arrays()["X"]))
    frame = frame.assign(**{name: value for name, value in changed.items() if value is not None})
    stream = io.BytesIO()
    frame.drop(columns=[name for name in frame if name in changed and changed[name] is None]).to_parquet(stream)
    return stream.getvalue()


def _parquets() -> dict[str, Features]:
    """Parquet files whose features or labels are of other kinds."""
    X = good_arrays()["X"]
    n = len(X)
    numbered = {f"f{column}": X[:, column] for column in range(3)}
    spoiled: dict[str, Any] = {
        "lists of several lengths": [list(row[: 1 + position % 3]) for position, row in enumerate(X)],
        "missing lists": [None if position == 3 else list(row) for position, row in enumerate(X)],
        "lists with gaps": [[None, 1.0, 2.0]] * n,
        "lists of text": [["a", "b", "c"]] * n,
        "lists of lists": [[[1.0], [2.0], [3.0]]] * n,
        "features of text": "many",
        "features of numbers": 1.5,
        "empty lists": [[]] * n,
        "NaN in lists": [[np.nan, 1.0, 2.0]] * n,
    }
    return {
        "good": Features(_parquet(), "answer", "answer", "answer"),
        "nothing": Features(b"", "refuse", "refuse"),
        "half a file": Features(_parquet()[:700], "refuse", "refuse"),
        **{name: Features(_parquet(features=value), "answer", "refuse") for name, value in spoiled.items()},
        "no features": Features(_parquet(features=None), "answer", "refuse"),
        "numbered columns": Features(_parquet(features=None, **numbered), "answer", "answer", "answer"),
        "numbered columns with a gap": Features(
            _parquet(features=None, f0=X[:, 0], f2=X[:, 2], f3=X[:, 1]), "answer", "refuse"
        ),
        "text in numbered columns": Features(_parquet(features=None, **{**numbered, "f1": "a"}), "answer", "refuse"),
        "missing numbers": Features(
            _parquet(features=None, **{**numbered, "f1": None, "f01": 1.0}), "answer", "refuse"
        ),
        "missing labels": Features(
            _parquet(bird=np.where(np.arange(n) % 4, "duck", None)), "answer", "answer", "either"
        ),
        "labels of lists": Features(_parquet(bird=[["a"]] * n), "refuse", "answer"),
        "labels of dates": Features(_parquet(bird=pd.Timestamp("2024-01-01")), "either", "answer", "either"),
        "labels of bytes": Features(_parquet(bird=[b"\xff\xfe"] * n), "either", "answer", "either"),
        "labels of fractions": Features(_parquet(bird=np.arange(n) % 2 + 0.5), "answer", "answer", "either"),
        "labels NaN": Features(_parquet(bird=np.nan), "refuse", "answer"),
        "split of fractions": Features(_parquet(split=0.5), "answer", "refuse"),
    }
