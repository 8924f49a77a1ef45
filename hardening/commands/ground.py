"""Good files for the commands to be tried with: a table, feature files, models, a run, results and pictures."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hardening.commands.call import call

VALUES = {"bird": ["duck", "gull"], "place": ["lake", "sea"]}
FEATURES = ["x0", "x1", "x2"]
LABELS = ["--target", "bird", "--attributes", "place"]
NUMBERS = ["--features", ",".join(FEATURES)]
TRAINING = ["--steps", "1", "--eval-every", "1", "--batch-size", "4", "--backbone", "linear", "--device", "cpu"]


class Ground(NamedTuple):
    """Where the good files are."""

    folder: Path
    table: str  # .csv
    features: str  # .npz
    shards: str  # folder of Parquet
    model: str  # fitted to the features
    table_model: str  # fitted to the table
    run: str  # folder of compshift train
    results: str  # folder of compshift bench
    prior: str  # .csv
    pictures: str  # .csv


def good_codes(n_rows: int = 60) -> Any:
    """Codes of three of the four groups, in turn."""
    return np.array([[0, 0], [0, 1], [1, 1]])[np.arange(n_rows) % 3]


def good_matrix(codes: Any) -> Any:
    """Features that the attributes move."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(len(codes), 3)) + codes[:, :1] * [1, 2, 0] + codes[:, 1:2] * [0, 1, 2]


def good_frame(n_rows: int = 60) -> pd.DataFrame:
    """The good table, to be spoiled."""
    codes = good_codes(n_rows)
    labels = {name: np.array(VALUES[name])[codes[:, column]] for column, name in enumerate(VALUES)}
    numbers = dict(zip(FEATURES, good_matrix(codes).T, strict=True))
    return pd.DataFrame(
        {**labels, **numbers, "rows": np.arange(n_rows) % 7 + 1, "note": [f"n{i}" for i in codes[:, 0]]}
    )


def good_arrays() -> dict[str, Any]:
    """The good feature file, to be spoiled."""
    codes = good_codes()
    return {
        "X": good_matrix(codes),
        "Z": codes,
        "split": np.arange(len(codes)) // 3 % 3,
        "attribute_names": np.array(list(VALUES)),
        "value_names": np.array(json.dumps(VALUES)),
    }


def make_ground(folder: Path) -> Ground:
    """Write the good files with the commands themselves."""
    paths = {
        name: str(folder / file)
        for name, file in {
            "table": "birds.csv",
            "features": "birds.npz",
            "shards": "shards",
            "model": "birds.safetensors",
            "table_model": "table.safetensors",
            "run": "run",
            "results": "results",
            "prior": "prior.csv",
            "pictures": "pictures.csv",
        }.items()
    }
    ground = Ground(folder, **paths)
    good_frame().to_csv(ground.table, index=False)
    arrays = good_arrays()
    np.savez(ground.features, **arrays)
    os.mkdir(ground.shards)
    frame = good_frame()[list(VALUES)].assign(features=list(arrays["X"]), split=arrays["split"])
    frame.to_parquet(f"{ground.shards}/part-0.parquet")
    pd.DataFrame({"bird": ["duck", "gull"], "place": ["lake", "sea"], "prior": [0.5, 0.5]}).to_csv(
        ground.prior, index=False
    )
    _draw_pictures(ground)
    bench = [
        "--drop",
        "none",
        "--drop",
        "duck,sea",
        "--methods",
        "erm,crm",
        "--draws",
        "1",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    for arguments in (
        ["fit", ground.features, *LABELS, "-o", ground.model],
        ["fit", ground.table, *NUMBERS, *LABELS, "-o", ground.table_model],
        ["train", ground.features, *LABELS, *TRAINING, "-o", ground.run],
        ["bench", ground.features, *bench, "-o", ground.results],
    ):
        ran = call(arguments, folder, 300)  # everything is imported here
        if ran.code:
            raise RuntimeError(f"the good input was refused: {arguments}: {ran.err}")
    return ground


def _draw_pictures(ground: Ground) -> None:
    from PIL import Image

    for number in range(12):
        Image.new("RGB", (12, 12), (20 * number, 99, 7)).save(ground.folder / f"{number}.png")
    codes = good_codes(12)
    columns = {name: np.array(VALUES[name])[codes[:, column]] for column, name in enumerate(VALUES)}
    pd.DataFrame({**columns, "file": [f"{n}.png" for n in range(12)], "words": ["one two"] * 12}).to_csv(
        ground.pictures, index=False
    )
