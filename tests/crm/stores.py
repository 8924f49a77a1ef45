"""Sightings of birds, in memory and in a feature store, and the comparison of two fits."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compshift.data.feature_store import FeatureStore

BIRDS, PLACES = np.array(["gull", "owl", "wren"]), np.array(["land", "sea"])


def sightings(n=700, p=6, seed=0):
    """Return samples of all groups but (gull, land), whose features have a large mean."""
    rng = np.random.default_rng(seed)
    groups = np.array([(y, a) for y in range(3) for a in range(2)][1:])
    z = groups[rng.integers(5, size=n)]
    means = np.random.default_rng(9).normal(size=(5, p)) * 1.5
    X = (means[z[:, 0]] + means[3 + z[:, 1]] + rng.normal(size=(n, p)) + 20).astype(np.float32)
    return X, BIRDS[z[:, 0]], PLACES[z[:, 1]]


def write_store(folder, X, bird, place, shards=3, row_group_size=97, split=None):
    """Write samples as Parquet shards, and open them."""
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(X)), shards)):
        columns = {"bird": pa.array(bird[rows]), "place": pa.array(place[rows])}
        if split is not None:
            columns["split"] = pa.array(split[rows])
        columns["features"] = pa.FixedSizeListArray.from_arrays(pa.array(X[rows].ravel()), X.shape[1])
        pq.write_table(pa.table(columns), folder / f"part-{number:05d}.parquet", row_group_size=row_group_size)
    return FeatureStore(folder)


def agree(one, other, X):
    """Check that two fits agree."""
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6, atol=2e-7)
    np.testing.assert_allclose(one.bias_, other.bias_, atol=1e-6)
    np.testing.assert_allclose(one.cumulant_bias_, other.cumulant_bias_, atol=1e-6)
    np.testing.assert_allclose(one.effective_sample_size_, other.effective_sample_size_, rtol=1e-5)
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-6)
