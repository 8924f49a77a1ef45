import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from compshift import GroupSpace, InputError
from compshift.data.dataset import GroupedDataset, ImageFiles, Texts
from compshift.data.table import load_table
from tests.data import trees


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "photo": [f"photos/{number}.jpg" for number in range(12)],
            "comment": ["NA", "", "null", "a, b", "line\nbreak", "é", "7", "8", "9", "10", "11", "12"],
            "bird": ["land", "water"] * 6,
            "place": ["land"] * 4 + ["water"] * 4 + ["sky"] * 4,
            "length": np.arange(12) / 4,
            "weight": np.arange(12),
            "part": ["train", "train", "val", "test"] * 3,
        }
    )


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "shards", "frame", "mapping"])
def test_every_form_of_a_table(tmp_path, frame, form):
    source = tmp_path / ("t" if form == "shards" else f"t.{form}")
    if form == "shards":
        source.mkdir()
        frame[:5].to_parquet(source / "part-0.parquet")
        frame[5:].to_parquet(source / "part-1.parquet")
    elif form == "parquet":
        frame.to_parquet(source)
    elif form in ("csv", "tsv"):
        frame.to_csv(source, index=False, sep="\t" if form == "tsv" else ",")
    table = {"frame": frame, "mapping": {name: frame[name].tolist() for name in frame}}.get(form, source)
    data = load_table(table, text="comment", target="bird", attributes=["place"], split="part")
    assert isinstance(data.samples, Texts)
    assert data.samples.first.tolist() == frame["comment"].tolist()
    assert data.space == GroupSpace(("bird", "place"), (("land", "water"), ("land", "sky", "water")))
    assert data.columns(["bird"])["bird"].tolist() == frame["bird"].tolist()
    assert data.split.tolist() == [0, 0, 1, 2] * 3
    assert data.targets == ("bird",)
    data = load_table(table, features=["weight", "length"], target=["bird", "place"])
    np.testing.assert_array_equal(data.X, frame[["weight", "length"]].to_numpy())
    assert data.split is None
    assert data.attributes == ()


def test_paths_start_from_the_table_or_from_root(tmp_path, frame):
    trees.image(tmp_path / "photos/0.jpg")
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = load_table(tmp_path / "t.csv", path="photo", target="bird", attributes="place")
    assert isinstance(data.samples, ImageFiles)
    assert data.samples.path(3) == tmp_path / "photos/3.jpg"
    moved = load_table(frame, path="photo", target="bird", root=tmp_path)
    assert moved.samples.path(3) == tmp_path / "photos/3.jpg"
    with pytest.raises(InputError, match=r"there is no image .*photos/0.jpg' \(column 'photo', row 0\): pass as root"):
        load_table(frame, path="photo", target="bird", root=tmp_path / "elsewhere")


def test_features_may_be_a_matrix(frame):
    X = np.random.default_rng(0).normal(size=(12, 3))
    data = load_table({"y": frame["bird"], "a": frame["place"]}, features=X, target="y", attributes="a")
    assert data.X is X
    with pytest.raises(InputError, match="features has 5 rows but the table has 12"):
        load_table({"y": frame["bird"]}, features=X[:5], target="y")
    with pytest.raises(InputError, match=r"features has 1 NaN or infinite"):
        load_table({"y": frame["bird"]}, features=np.where(np.arange(12) == 3, np.nan, 1.0)[:, None], target="y")


def test_a_column_called_split_is_used(frame):
    data = load_table(frame.rename(columns={"part": "split"}), text="comment", target="bird")
    assert data.splits == ("train", "val", "test")
    with pytest.raises(InputError, match="the split 'dev' is not known"):
        load_table(frame.assign(split="dev"), text="comment", target="bird")


def test_random_state_determines_the_split(frame):
    def split(seed):
        shares = {"train": 0.5, "test": 0.5}
        return load_table(frame, text="comment", target="bird", split=shares, random_state=seed).split.tolist()

    assert split(0) == split(0)
    assert len({tuple(split(seed)) for seed in range(10)}) > 5
    assert split(0).count(0) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "comment", "target": "brid"}, "column 'brid' is not known: use one of .*; did you mean 'bird'"),
        ({"text": "coment", "target": "bird"}, "column 'coment' is not known"),
        ({"text": "comment", "target": "bird", "split": "fold"}, "column 'fold' is not known"),
        ({"text": "comment", "target": "bird", "attributes": ["bird"]}, "the column 'bird' is used twice"),
        ({"target": "bird"}, "no samples given: pass exactly one of path"),
        ({"target": "bird", "text": "comment", "path": "photo"}, "path and text given: pass exactly one of"),
        ({"target": [], "text": "comment"}, "target is empty"),
        ({"target": "bird", "text": ["comment"] * 3}, "used twice"),
        ({"target": "bird", "text": "comment", "split": 3}, "split is 3: pass the name of a column, or shares"),
        ({"target": "bird", "text": "comment", "split": ["part"]}, r"split is \['part'\]: pass the name of a column"),
        ({"target": "bird", "text": ["comment", "photo", "place"]}, "text names 3 columns"),
        ({"target": "bird", "text": "weight"}, "the text of row 0 is 0: pass text"),
        (
            {"target": "bird", "features": ["photo"]},
            "the feature column 'photo' has 'photos/0.jpg': it must contain",
        ),
        ({"target": "bird", "features": "gap"}, "the feature column 'gap' has a missing value at row 11"),
        ({"target": "hole", "text": "comment"}, r"attribute 'hole' has 1 missing \(NaN\) value, the first at row 11"),
        ({"target": "bird", "text": "comment", "split": {"train": 0.5}}, "they must sum to 1"),
        ({"target": "bird", "text": "comment", "split": {"training": 1}}, "split 'training' is not known"),
        ({"target": "bird", "text": "comment", "split": {"train": 1.5, "test": -0.5}}, "the share of test is -0.5"),
    ],
)
def test_bad_arguments_raise(frame, options, message):
    frame = frame.assign(gap=[1.0] * 11 + [np.nan], hole=["a"] * 11 + [None])
    with pytest.raises(InputError, match=message):
        load_table(frame, **options)


def test_bad_tables_in_memory_raise():
    with pytest.raises(InputError, match="the table is a list: pass a path, a DataFrame or a mapping of columns"):
        load_table(["b", "p"], target="b", attributes=["p"], features=np.ones((2, 1)))
    with pytest.raises(InputError, match="the feature column 'w' has 1 rows but 'x' has 2: pass one row of"):
        load_table({"b": ["a", "b"], "x": [1.0, 2.0], "w": [1.0]}, target="b", features=["x", "w"])
    with pytest.raises(InputError, match=r"the split .* is not known: use 0, 1, 2"):
        load_table({"b": ["a", "b"], "x": [1.0, 2.0], "s": [b"\xff", None]}, target="b", features=["x"], split="s")


def test_bad_files_raise(tmp_path):
    with pytest.raises(InputError, match="there is no table"):
        load_table(tmp_path / "t.csv", text="a", target="b")
    (tmp_path / "t.csv").write_text("a,b\n")
    with pytest.raises(InputError, match="has no rows"):
        load_table(tmp_path / "t.csv", text="a", target="b")
    (tmp_path / "t.parquet").write_text("nonsense")
    with pytest.raises(InputError, match="cannot be read"):
        load_table(tmp_path / "t.parquet", text="a", target="b")


def test_column_names_may_be_numbers(frame):
    numbered = frame.set_axis(range(len(frame.columns)), axis=1)
    data = load_table(numbered, target="2", attributes=["3"], features=["4", "5"])
    np.testing.assert_array_equal(data.X, frame[["length", "weight"]].to_numpy())
    with pytest.raises(InputError, match="the table has 2 columns named '0': rename all but one"):
        load_table({0: [1, 2], "0": [1, 2]}, target="0", features=np.ones((2, 1)))


@pytest.mark.parametrize(
    ("value", "what"), [(np.nan, "text"), (None, "text"), (pd.NA, "text"), (None, "path"), (3, "number")]
)
def test_missing_texts_raise(frame, value, what):
    comment = frame["comment"].astype(object)
    comment[2] = value
    name = "path" if what == "path" else "text"
    message = "of row 2 is 3: pass text" if what == "number" else f"the {name} of row 2 is missing: every row needs"
    with pytest.raises(InputError, match=message):
        load_table(frame.assign(comment=comment), target="bird", **{name: "comment"})


def test_masked_values_raise(frame):
    hidden = np.arange(12) == 5
    matrix = np.ma.masked_array(np.zeros((12, 2)), mask=np.stack([hidden, hidden], axis=1))
    with pytest.raises(InputError, match="features has 2 masked values, the first at row 5"):
        load_table(frame, target="bird", features=matrix)
    table = {name: np.ma.masked_array(frame[name].to_numpy(), mask=hidden) for name in ("bird", "length")}
    with pytest.raises(InputError, match="the column 'bird' has 1 masked value, the first at row 5"):
        load_table(table, target="bird", features=np.zeros((12, 2)))
    with pytest.raises(InputError, match="the column 'length' has 1 masked value"):
        load_table({**table, "bird": frame["bird"]}, target="bird", features=["length"])


def test_arrow_tables_are_read():
    table = pa.table({"bird": ["a", "b"], "x": [1.0, 2.0]})
    data = load_table(table, target="bird", features=["x"])
    assert data.X.tolist() == [[1.0], [2.0]]


def test_tensors_that_require_a_gradient_raise():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 1, requires_grad=True)
    with pytest.raises(InputError, match="features is a Tensor that NumPy cannot read"):
        load_table({"bird": ["a", "b"]}, target="bird", features=tensor)
    with pytest.raises(InputError, match="split is a Tensor that NumPy cannot read"):
        GroupedDataset(np.ones((2, 1)), GroupSpace.from_cardinalities([2]), [[0], [1]], split=tensor[:, 0])


def test_a_table_with_a_root_stays_below_it(tmp_path):
    trees.image(tmp_path / "photos/a.jpg")
    trees.image(tmp_path / "secret.jpg")
    frame = pd.DataFrame({"photo": ["a.jpg", "../secret.jpg"], "bird": ["x", "y"]})
    images = load_table(frame, target="bird", path="photo", root=tmp_path / "photos").samples
    assert images.path(0).is_file()
    with pytest.raises(InputError, match="leads out of"):
        images.path(1)
    frame.assign(photo=[str(tmp_path / "photos/a.jpg"), str(tmp_path / "secret.jpg")]).to_csv(tmp_path / "t.csv")
    images = load_table(tmp_path / "t.csv", target="bird", path="photo").samples  # without root, any path is allowed
    assert images.path(1).is_file()
