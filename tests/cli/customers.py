"""A table of customers with columns of every kind, and commands on it."""

import numpy as np
import pandas as pd

LABELS = ["--target", "churn", "--attributes", "region"]


BOOSTED = [*LABELS, "--energies", "boosted", "--max-iter", "20", "--jobs", "1"]


def customers(n=600, seed=0):
    """Return a table with columns of every kind, gaps, an id and splits; churn in the west occurs in test rows only."""
    rng = np.random.default_rng(seed)
    y, a = rng.integers(0, 2, n), rng.integers(0, 3, n)
    test = (rng.random(n) < 0.3) | ((y == 1) & (a == 2))
    days = pd.to_timedelta(rng.integers(0, 1500, n) + 400 * y, unit="D")
    frame = pd.DataFrame(
        {
            "id": [f"customer {row}" for row in range(n)],
            "income": rng.normal(size=n) + 2 * y,
            "age": rng.integers(20, 80, n) + 10 * a,
            "job": np.array(["cook", "nurse", "clerk", "smith"])[(y + 2 * (rng.random(n) < 0.3) + a) % 4],
            "member": rng.random(n) < 0.3 + 0.4 * y,
            "since": (pd.Timestamp("2015-01-01") + days).strftime("%Y-%m-%d"),
            "empty": np.nan,
            "churn": np.array(["no", "yes"])[y],
            "region": np.array(["north", "south", "west"])[a],
            "split": np.where(test, "test", "train"),
        }
    )
    for column in ("income", "job", "since"):
        frame[column] = frame[column].where(rng.random(n) > 0.1)
    return frame


def predictions(call, folder, name, *options):
    result = call("predict", "m.safetensors", name, *options, "-o", "p.parquet", cwd=folder)
    assert (result.returncode, result.err) == (0, ""), result.err
    return pd.read_parquet(folder / "p.parquet")
