"""Calls on data sets: tables, feature files, stores, shifts and the embedded sets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import compshift as cs
from compshift.data import FeatureStore, GroupedDataset
from hardening.calls import array_kinds, kinds, made
from hardening.calls.table import Call


def calls() -> Iterator[Call]:
    """Every public call of compshift.data."""
    rows = made.rows()
    folder = Path(tempfile.mkdtemp())
    frame = pd.DataFrame(
        {
            "bird": rows.bird,
            "place": rows.place,
            "f0": rows.X[:, 0],
            "f1": rows.X[:, 1],
            "note": rows.bird,
            "split": ["train", "val", "test"] * 28,
        }
    )
    frame.to_csv(folder / "birds.csv", index=False)
    loading = {"table": frame, "target": "bird", "attributes": "place", "features": ["f0", "f1"], "split": None}
    names = {**kinds.CHOICES, "nowhere": kinds.Odd("nowhere"), "twice": kinds.Odd(["place", "place"])}
    for table in (frame, folder / "birds.csv"):
        yield Call(
            "data.load_table",
            _load,
            {**loading, "table": table},
            {
                "table": {**_tables(frame), **kinds.PATHS},
                "target": names,
                "attributes": names,
                "features": {**names, **kinds.without_same(array_kinds.matrix(rows.X))},
                "path": names,
                "text": names,
                "split": {**names, **_shares()},
                "root": kinds.PATHS,
                "random_state": kinds.SEEDS,
            },
        )
    yield Call(
        "data.load_samples",
        lambda **a: np.asarray(cs.data.load_samples(**a)),
        {"table": frame, "features": ["f0", "f1"]},
        {"table": {**_tables(frame), **kinds.PATHS}, "features": names, "path": names, "text": names},
    )
    data = cs.data.load_table(**{**loading, "split": "split"})
    fields = {
        "samples": data.samples,
        "space": data.space,
        "codes": data.codes,
        "split": data.split,
        "targets": ("bird",),
        "origin": None,
        "source": "here",
    }
    yield Call(
        "data.GroupedDataset",
        lambda **a: len(GroupedDataset(**a)),
        fields,
        {
            "samples": kinds.without_same(array_kinds.matrix(data.X)),
            "space": kinds.SPACES,
            "codes": kinds.without_same(array_kinds.codes(data.codes)),
            "split": array_kinds.weights(len(data)),
            "targets": kinds.CHOICES,
            "origin": array_kinds.weights(len(data)),
        },
    )
    yield Call("data.GroupedDataset.part", lambda **a: data.part(**a).codes, {"name": "train"}, {"name": kinds.CHOICES})
    yield Call("data.GroupedDataset.columns", data.columns, {"names": ["bird"]}, {"names": names})
    path = folder / "birds.npz"
    yield Call(
        "data.write_features",
        cs.data.write_features,
        {"path": path, "data": data},
        {"path": kinds.PATHS, "data": kinds.CHOICES},
    )
    yield Call(
        "data.read_features",
        lambda **a: cs.data.read_features(**a).codes,
        {"path": path, "attributes": ["bird", "place"]},
        {"path": kinds.PATHS, "attributes": names},
    )
    yield from _shifts(data)
    pq.write_table(pa.table({"features": list(rows.X), "bird": rows.bird, "place": rows.place}), folder / "b.parquet")
    store = FeatureStore(folder / "b.parquet")
    yield Call(
        "data.FeatureStore",
        lambda **a: len(FeatureStore(**a).files),
        {"path": store.path, "split": None},
        {"path": kinds.PATHS, "split": kinds.CHOICES},
    )
    yield Call("data.FeatureStore.frame", store.frame, {"names": ["bird"]}, {"names": names})
    yield Call(
        "data.FeatureStore.blocks",
        lambda **a: len(list(store.blocks(**a))),
        {"block_rows": 50, "rank": 0, "size": 1},
        {"block_rows": kinds.COUNTS, "rank": kinds.COUNTS, "size": kinds.COUNTS},
    )
    yield Call(
        "CRMClassifier.fit on a store",
        lambda **a: cs.CRMClassifier().fit(**a).predict(rows.X),
        {"X": store, "y": "bird", "attributes": ["place"], "sample_weight": None},
        {"y": names, "attributes": names, "sample_weight": {**names, **array_kinds.weights(84)}, "space": kinds.SPACES},
    )
    yield Call(
        "data.benchmark", lambda name: cs.data.benchmark(name) is None, {"name": "penguins"}, {"name": kinds.CHOICES}
    )


def _shifts(data: Any) -> Iterator[Call]:
    """Dropped groups, and scenarios."""
    groups = kinds.without_same(array_kinds.codes(made.SEEN[:1]))
    yield Call(
        "data.drop_groups",
        lambda **a: cs.data.drop_groups(**a).codes,
        {"dataset": data, "groups": made.SEEN[:1]},
        {"dataset": kinds.CHOICES, "groups": groups, "strict": kinds.CHOICES},
    )
    yield Call(
        "data.drop_unseen_from_validation",
        lambda **a: cs.data.drop_unseen_from_validation(**a).codes,
        {"dataset": data},
        {"dataset": kinds.CHOICES},
    )
    shares = {
        text: kinds.Odd(text) for text in ("random:2", "random:nan", "random:", "random:-1", "random:0", "random:1")
    }
    yield Call(
        "data.scenarios",
        lambda **a: [scenario.dropped for scenario in cs.data.scenarios(**a)],
        {"dataset": data, "drop": "each"},
        {"dataset": kinds.CHOICES, "drop": {**kinds.CHOICES, **groups, **shares}, "random_state": kinds.SEEDS},
    )
    (scenario,) = cs.data.scenarios(data, made.SEEN[:1])
    yield Call(
        "data.Scenario.apply", lambda **a: scenario.apply(**a).codes, {"dataset": data}, {"dataset": kinds.CHOICES}
    )


def _load(**arguments: Any) -> Any:
    """The codes of a loaded table."""
    return cs.data.load_table(**arguments).codes


def _tables(frame: Any) -> kinds.Kinds:
    """Tables in memory."""
    return {
        "mapping": kinds.Odd(dict(frame), same=True),
        "no rows": kinds.Odd(frame[:0]),
        "one row": kinds.Odd(frame[:1]),
        "no columns": kinds.Odd(frame[[]]),
        "repeated names": kinds.Odd(pd.concat([frame, frame], axis=1)),
        "columns of different lengths": kinds.Odd({"bird": ["a", "b"], "place": ["c"], "f0": [1.0], "f1": [1.0]}),
        "missing labels": kinds.Odd(frame.assign(bird=None)),
        "missing numbers": kinds.Odd(frame.assign(f0=np.nan)),
        "numbers for labels": kinds.Odd(frame.assign(bird=frame["f0"])),
        "texts for numbers": kinds.Odd(frame.assign(f0="a")),
        "dates": kinds.Odd(frame.assign(place=pd.Timestamp(0))),
        "lists": kinds.Odd([[1, 2], [3, 4]]),
        "None": kinds.Odd(None),
        "a number": kinds.Odd(3),
        "array": kinds.Odd(np.eye(3)),
        "series": kinds.Odd(frame["bird"]),
        "object": kinds.Odd(object()),
    }


def _shares() -> kinds.Kinds:
    """Shares of splits."""
    values: dict[str, Any] = {
        "too much": {"train": 0.9, "test": 0.9},
        "negative": {"train": 1.5, "test": -0.5},
        "NaN": {"train": float("nan"), "test": 0.5},
        "text as share": {"train": "a"},
        "unknown split": {"tarin": 1.0},
        "nothing": {},
        "train alone": {"train": 1.0},
        "no train": {"test": 1.0},
        "shares": {"train": 0.5, "val": 0.2, "test": 0.3},
    }
    return {name: kinds.Odd(value) for name, value in values.items()}
