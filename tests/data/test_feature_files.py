import json

import numpy as np
import pandas as pd
import pytest

from compshift import InputError
from compshift.data.feature_files import read_features, read_inputs

NAMES = {"bird": ["landbird", "waterbird"], "place": ["land", "water", "sky"]}


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "X": rng.normal(size=(12, 3)).astype(np.float32),
        "Z": np.stack([np.arange(12) % 2, np.arange(12) % 3], axis=1),
        "attribute_names": np.array(["bird", "place"]),
        "value_names": np.array(json.dumps(NAMES)),
        "split": np.arange(12) % 3,
    }


@pytest.fixture
def frame(arrays):
    return pd.DataFrame(
        {
            "id": np.arange(12),
            "place": np.array(NAMES["place"])[arrays["Z"][:, 1]],
            "bird": np.array(NAMES["bird"])[arrays["Z"][:, 0]],
            "split": np.array(["train", "val", "test"])[arrays["split"]],
        }
    )


def check(data, arrays):
    np.testing.assert_allclose(data.X, arrays["X"])
    assert data.space.names == ("place", "bird")
    assert data.columns(["bird"])["bird"].tolist() == [NAMES["bird"][code] for code in arrays["Z"][:, 0]]
    assert data.columns(["place"])["place"].tolist() == [NAMES["place"][code] for code in arrays["Z"][:, 1]]
    assert data.split.tolist() == arrays["split"].tolist()
    assert len(data.part("test")) == 4
    assert data.splits == ("train", "val", "test")


def test_npz_is_read(arrays, tmp_path):
    np.savez(tmp_path / "f.npz", **arrays, source=np.array("somewhere"))
    data = read_features(tmp_path / "f.npz", ["place", "bird"])
    check(data, arrays)
    assert data.space.values[0] == ("land", "water", "sky")
    assert read_inputs(tmp_path / "f.npz").shape == (12, 3)
    assert read_inputs(tmp_path / "f.npz", "val").shape == (4, 3)


def test_npz_without_value_names_has_numbers_as_values(arrays, tmp_path):
    del arrays["value_names"]
    np.savez(tmp_path / "f.npz", **arrays)
    assert read_features(tmp_path / "f.npz", ["place"]).space.values == ((0, 1, 2),)


def test_parquet_with_lists(arrays, frame, tmp_path):
    frame["features"] = list(arrays["X"])
    frame.to_parquet(tmp_path / "f.parquet")
    check(read_features(tmp_path / "f.parquet", ["place", "bird"]), arrays)


def test_parquet_with_fixed_size_lists(arrays, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = pa.FixedSizeListArray.from_arrays(pa.array(arrays["X"].ravel()), 3)
    pq.write_table(pa.table({"features": features}), tmp_path / "f.parquet")
    np.testing.assert_array_equal(read_inputs(tmp_path / "f.parquet"), arrays["X"])


def test_parquet_with_numbered_columns(arrays, frame, tmp_path):
    wide = pd.DataFrame(np.tile(arrays["X"], 4), columns=[f"f{i}" for i in range(12)])
    pd.concat([wide[wide.columns[::-1]], frame], axis=1).to_parquet(tmp_path / "f.parquet")
    data = read_features(tmp_path / "f.parquet", ["bird"])
    np.testing.assert_array_equal(data.X, wide.to_numpy())


def test_folder_of_shards(arrays, frame, tmp_path):
    frame["features"] = list(arrays["X"])
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, rows in enumerate([slice(0, 5), slice(5, 12)]):
        frame[rows].to_parquet(folder / f"part-{number:05d}.parquet")
    check(read_features(folder, ["place", "bird"]), arrays)


def test_no_splits_means_every_row(arrays, tmp_path):
    del arrays["split"]
    np.savez(tmp_path / "f.npz", **arrays)
    assert len(read_features(tmp_path / "f.npz", ["bird"]).part("test")) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": None}, "has no array 'X'"),
        ({"Z": None}, "has no array 'Z'"),
        ({"attribute_names": None}, "has no array 'attribute_names'"),
        ({"value_names": np.array("not json")}, "value_names must be a JSON object"),
        ({"value_names": np.array('{"bird": ["a", "b"]}')}, "KeyError"),
        ({"Z": np.zeros((12, 3), dtype=int)}, r"shape \(12, 3\); .* 2 attribute_names"),
        ({"Z": np.zeros((12, 2))}, "type float64"),
        ({"Z": np.full((12, 2), 7)}, "codes run from 0 to 1"),
        ({"Z": np.zeros((5, 2), dtype=int)}, "Z has 5 rows but X has 12"),
        ({"X": np.zeros(12)}, "a matrix of numbers"),
        ({"X": np.zeros((12, 0))}, "a matrix of numbers"),
        ({"split": np.full(12, 5)}, "the split 5 is not known"),
        ({"split": np.zeros(3, dtype=int)}, "split has 3 rows"),
        ({"Z": np.array([["a", "b"]] * 12, dtype=object)}, "cannot be read as .npz"),
    ],
)
def test_bad_npz_raises(arrays, tmp_path, change, message):
    changed = {name: array for name, array in {**arrays, **change}.items() if array is not None}
    np.savez(tmp_path / "f.npz", **changed)
    with pytest.raises(InputError, match=message):
        read_features(tmp_path / "f.npz", ["bird"])


def test_bad_parquet_raises(frame, tmp_path):
    path = tmp_path / "f.parquet"
    frame.to_parquet(path)
    with pytest.raises(InputError, match="has no features"):
        read_features(path, ["bird"])
    with pytest.raises(InputError, match=r"column 'brid' is not known: .*did you mean 'bird'"):
        read_features(path, ["brid"])
    frame["features"] = [[1.0]] * 11 + [[1.0, 2.0]]
    frame.to_parquet(path)
    with pytest.raises(InputError, match="differ in length"):
        read_features(path, ["bird"])
    frame["features"] = [[1.0]] * 12
    frame.assign(split="dev").to_parquet(path)
    with pytest.raises(InputError, match="the split 'dev' is not known"):
        read_features(path, ["bird"])
    frame.drop(columns="features").assign(f0=1.0, f2=2.0).to_parquet(path)
    with pytest.raises(InputError, match="without gaps"):
        read_features(path, ["bird"])


def test_files_of_other_kinds_raise(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        read_features(tmp_path / "nothing.npz", ["a"])
    (tmp_path / "f.csv").write_text("a")
    with pytest.raises(InputError, match=r"feature files end in .npz or .parquet"):
        read_features(tmp_path / "f.csv", ["a"])
    for name in ("f.npz", "f.parquet"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 this is no such file")
        with pytest.raises(InputError, match="cannot be read as"):
            read_features(tmp_path / name, ["a"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"f0": [1.0], "f2": [1.0], "f01": [2.0]}, "must be numbered f0 to f1 without gaps"),
        ({"features": [["a", "b"]]}, "have entries of type string: they must contain numbers"),
        ({"features": [[[1.0]]]}, "they must contain numbers"),
    ],
)
def test_parquet_without_a_matrix_of_features_raises(tmp_path, columns, message):
    pd.DataFrame(columns).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        read_inputs(tmp_path / "a.parquet")


def test_deeply_nested_value_names_raise(tmp_path):
    names = '{"a":' + "[" * 100_000
    np.savez(tmp_path / "a.npz", X=np.ones((1, 1)), Z=[[0]], attribute_names=["a"], value_names=names)
    with pytest.raises(InputError, match="value_names must be a JSON object"):
        read_features(tmp_path / "a.npz", ["a"])


def test_huge_codes_without_value_names_raise(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones((2, 1)), Z=[[0], [10**12]], attribute_names=["a"])
    with pytest.raises(InputError, match="Z has the code 1000000000000"):
        read_features(tmp_path / "a.npz", ["a"])
