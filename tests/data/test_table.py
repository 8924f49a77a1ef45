import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import GroupSpace, InputError
from compshift.data.audit import read_group_counts
from compshift.data.dataset import GroupedDataset, ImageFiles, Texts
from compshift.data.feature_files import read_features
from compshift.data.penguins import load_penguins
from compshift.data.splits import stratified_split
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


def test_numpy_in_memory(frame):
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


def test_random_split_has_a_seed(frame):
    def split(seed):
        shares = {"train": 0.5, "test": 0.5}
        return load_table(frame, text="comment", target="bird", split=shares, random_state=seed).split.tolist()

    assert split(0) == split(0)
    assert len({tuple(split(seed)) for seed in range(10)}) > 5
    assert split(0).count(0) == 6


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=200),
    st.sampled_from([(0.7, 0.1, 0.2), (0.5, 0.5, 0.0), (0.4, 0.0, 0.6), (1.0, 0.0, 0.0)]),
)
def test_stratified_split_keeps_the_share_of_every_group(rows, shares):
    space = GroupSpace.from_cardinalities([2, 3])
    codes = np.array(rows)
    split = stratified_split(space, codes, dict(zip(("train", "val", "test"), shares, strict=True)), 0)
    for code in np.unique(codes, axis=0):
        mine = split[(codes == code).all(axis=1)]
        assert (mine == 0).any()
        for part, share in enumerate(shares):
            assert abs((mine == part).sum() - share * len(mine)) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "comment", "target": "brid"}, "column 'brid' is not known: use one of .*; did you mean 'bird'"),
        ({"text": "coment", "target": "bird"}, "column 'coment' is not known"),
        ({"text": "comment", "target": "bird", "split": "fold"}, "column 'fold' is not known"),
        ({"text": "comment", "target": "bird", "attributes": ["bird"]}, "the column 'bird' is used twice"),
        ({"target": "bird"}, "no samples given: pass one of path, text and features"),
        ({"target": "bird", "text": "comment", "path": "photo"}, "path and text given: pass one of"),
        ({"target": [], "text": "comment"}, "no target was named"),
        ({"target": "bird", "text": ["comment"] * 3}, "used twice"),
        ({"target": "bird", "text": "comment", "split": 3}, "split is 3: pass the name of a column, or shares"),
        ({"target": "bird", "text": "comment", "split": ["part"]}, r"split is \['part'\]: pass the name of a column"),
        ({"target": "bird", "text": ["comment", "photo", "place"]}, "text names 3 columns"),
        ({"target": "bird", "text": "weight"}, "the text of row 0 is 0: text is expected"),
        (
            {"target": "bird", "features": ["photo"]},
            "the feature column 'photo' has 'photos/0.jpg': it must hold",
        ),
        ({"target": "bird", "features": "gap"}, "the feature column 'gap' has a missing value at row 11"),
        ({"target": "hole", "text": "comment"}, r"attribute 'hole' has 1 missing \(NaN\) value, the first at row 11"),
        ({"target": "bird", "text": "comment", "split": {"train": 0.5}}, "they must sum to 1"),
        ({"target": "bird", "text": "comment", "split": {"training": 1}}, "split 'training' is not known"),
        ({"target": "bird", "text": "comment", "split": {"train": 1.5, "test": -0.5}}, "the share of test is -0.5"),
    ],
)
def test_bad_input(frame, options, message):
    frame = frame.assign(gap=[1.0] * 11 + [np.nan], hole=["a"] * 11 + [None])
    with pytest.raises(InputError, match=message):
        load_table(frame, **options)


def test_tables_in_memory_that_are_none():
    with pytest.raises(InputError, match="the table is a list: pass a path, a DataFrame or a mapping of columns"):
        load_table(["b", "p"], target="b", attributes=["p"], features=np.ones((2, 1)))
    with pytest.raises(InputError, match="the feature column 'w' has 1 rows but 'x' has 2: pass one row of"):
        load_table({"b": ["a", "b"], "x": [1.0, 2.0], "w": [1.0]}, target="b", features=["x", "w"])
    with pytest.raises(InputError, match=r"the split .* is not known: use 0, 1, 2"):
        load_table({"b": ["a", "b"], "x": [1.0, 2.0], "s": [b"\xff", None]}, target="b", features=["x"], split="s")


def test_bad_files(tmp_path):
    with pytest.raises(InputError, match="there is no table"):
        load_table(tmp_path / "t.csv", text="a", target="b")
    (tmp_path / "t.csv").write_text("a,b\n")
    with pytest.raises(InputError, match="has no rows"):
        load_table(tmp_path / "t.csv", text="a", target="b")
    (tmp_path / "t.parquet").write_text("nonsense")
    with pytest.raises(InputError, match="cannot be read"):
        load_table(tmp_path / "t.parquet", text="a", target="b")


DATES = {
    "date32": pa.array([2**31 - 1] * 4, pa.date32()),
    "date": pa.array([0, 1] * 2, pa.date32()),
    "timestamp": pa.array([0, 1] * 2, pa.timestamp("s")),
    "far": pa.array([2**62] * 4, pa.timestamp("ms")),
    "zone": pa.array([0, 1] * 2, pa.timestamp("s", tz="Foo/Bar")),
    "duration": pa.array([2**62] * 4, pa.duration("s")),
    "binary": pa.array([b"\xff"] * 4),
    "dictionary": pa.array([0, 1] * 2, pa.date32()).dictionary_encode(),
}


@pytest.mark.parametrize("kind", DATES)
def test_values_that_are_neither_text_nor_numbers(tmp_path, kind):
    path = tmp_path / "t.parquet"
    columns = {"bird": ["a", "b"] * 2, "x": [1.0, 2.0, 3.0, 4.0], "features": [[1.0]] * 4}
    pq.write_table(pa.table({**columns, "day": DATES[kind]}), path)
    for read in (
        lambda: load_table(path, target="bird", attributes="day", features=["x"]),
        lambda: load_table(path, target="bird", features=["day"]),
        lambda: load_table(path, target="bird", features=["x"], split="day"),
        lambda: read_group_counts(path, ["bird", "day"]),
        lambda: read_features(path, ["bird", "day"]),
    ):
        with pytest.raises(
            InputError, match=r"the column 'day' has type .*: values must be text, .*convert it, for exa"
        ):
            read()


def test_names_of_columns_that_are_no_text(frame):
    numbered = frame.set_axis(range(len(frame.columns)), axis=1)
    data = load_table(numbered, target="2", attributes=["3"], features=["4", "5"])
    np.testing.assert_array_equal(data.X, frame[["length", "weight"]].to_numpy())
    with pytest.raises(InputError, match="the table has 2 columns named '0': rename all but one"):
        load_table({0: [1, 2], "0": [1, 2]}, target="0", features=np.ones((2, 1)))


@pytest.mark.parametrize(
    ("value", "what"), [(np.nan, "text"), (None, "text"), (pd.NA, "text"), (None, "path"), (3, "number")]
)
def test_texts_that_are_missing(frame, value, what):
    comment = frame["comment"].astype(object)
    comment[2] = value
    name = "path" if what == "path" else "text"
    message = (
        "of row 2 is 3: text is expected" if what == "number" else f"the {name} of row 2 is missing: every row needs"
    )
    with pytest.raises(InputError, match=message):
        load_table(frame.assign(comment=comment), target="bird", **{name: "comment"})


def test_penguins_lack_eight_combinations():
    data = load_penguins()
    assert data.X.shape == (333, 4)
    assert data.space.cardinalities == (3, 2, 3)
    seen = data.space.distinct(data.codes)[0]
    assert len(seen) == 10
    from compshift import AffineHull

    assert AffineHull(data.space, seen).is_complete
    assert data.space.distinct(data.part("train").codes)[0].tolist() == seen.tolist()
    assert data.space.distinct(data.part("test").codes)[0].tolist() == seen.tolist()
    first = data.space.frame(data.codes[:1]).iloc[0].to_dict()
    assert first == {"species": "Adelie", "sex": "male", "island": "Torgersen"}
    assert data.X[0].tolist() == [39.1, 18.7, 181, 3750]


def test_masked_values_are_refused(frame):
    hidden = np.arange(12) == 5
    matrix = np.ma.masked_array(np.zeros((12, 2)), mask=np.stack([hidden, hidden], axis=1))
    with pytest.raises(InputError, match="features has 2 masked values, the first at row 5"):
        load_table(frame, target="bird", features=matrix)
    table = {name: np.ma.masked_array(frame[name].to_numpy(), mask=hidden) for name in ("bird", "length")}
    with pytest.raises(InputError, match="the column 'bird' has 1 masked value, the first at row 5"):
        load_table(table, target="bird", features=np.zeros((12, 2)))
    with pytest.raises(InputError, match="the column 'length' has 1 masked value"):
        load_table({**table, "bird": frame["bird"]}, target="bird", features=["length"])


LABELLED = {"target": "y", "attributes": "site", "features": ["x"]}


class TestTextsOfOtherKinds:
    ROWS = ("x,y,site", "0.5,a,Orléans", "1.5,b,Nice", "2.5,a,Nice", "0.5,b,Orléans")

    def write(self, path, content):
        path.write_bytes(content)
        return path

    @pytest.mark.parametrize(("separator", "word"), [(";", "semicolons"), ("\t", "tabs")])
    def test_another_separator(self, tmp_path, separator, word):
        text = "\n".join(self.ROWS).replace(",", separator).replace(".", ",")
        path = self.write(tmp_path / "a.csv", text.encode())
        with pytest.raises(InputError, match=rf"a\.csv' seems to be separated by {word}, not by commas: save it with"):
            load_table(path, **LABELLED)

    def test_commas_where_tabs_are_expected(self, tmp_path):
        path = self.write(tmp_path / "a.tsv", "\n".join(self.ROWS).encode())
        with pytest.raises(InputError, match="separated by commas, not by tabs"):
            load_table(path, **LABELLED)

    @pytest.mark.parametrize(("encoding", "line"), [("latin-1", 2), ("utf-16", 1)])
    def test_another_encoding(self, tmp_path, encoding, line):
        path = self.write(tmp_path / "a.csv", "\n".join(self.ROWS).encode(encoding))
        with pytest.raises(InputError, match=rf"is not UTF-8 text \(line {line}\): save it as UTF-8"):
            load_table(path, **LABELLED)

    @pytest.mark.parametrize("word", ["NA", "null", "nan"])
    def test_words_that_are_read_as_missing(self, tmp_path, word):
        path = self.write(tmp_path / "a.csv", "\n".join(self.ROWS).replace("Nice", word).encode())
        with pytest.raises(
            InputError, match=f"2 missing values, the first at row 1, where '{word}' is read as missing"
        ):
            load_table(path, **LABELLED)
        path = self.write(tmp_path / "a.csv", "\n".join(self.ROWS).replace("Nice", "").encode())
        with pytest.raises(InputError, match="give the missing value a name of its own"):
            load_table(path, **LABELLED)

    @pytest.mark.parametrize("name", ["A.CSV", "A.Parquet", "A.TSV"])
    def test_endings_in_capitals(self, tmp_path, name):
        frame = pd.DataFrame({"x": [0.5, 1.5], "y": ["a", "b"], "site": ["u", "v"]})
        if name == "A.Parquet":
            frame.to_parquet(tmp_path / name)
        else:
            frame.to_csv(tmp_path / name, index=False, sep="\t" if name == "A.TSV" else ",")
        assert load_table(tmp_path / name, **LABELLED).X.tolist() == [[0.5], [1.5]]

    def test_decimals_are_numbers_where_each_is_written_in_the_one_way(self, tmp_path):
        path = self.write(tmp_path / "a.csv", b"x,y,site\n1,0.5,1.0\n2,1.0,1.00\n")
        assert load_table(path, **LABELLED).space.values == ((0.5, 1.0), ("1.0", "1.00"))


@pytest.mark.parametrize("value", ["36,5", "2024-05-01", "high"])
def test_what_is_no_number_is_shown(tmp_path, value):
    pd.DataFrame({"x": ["1", value, "2"], "y": list("aba"), "site": list("uvu")}).to_csv(
        tmp_path / "a.csv", index=False
    )
    with pytest.raises(InputError, match=rf"the feature column 'x' has '{value}': it must hold numbers, with points"):
        load_table(tmp_path / "a.csv", **LABELLED)


@pytest.mark.parametrize("odd", ["1_500", "\u00a00.5", "1,5", "½"])
def test_the_cell_that_is_no_number_is_named(tmp_path, odd):
    values = ["0.25"] * 50
    values[41] = odd
    pd.DataFrame({"bird": ["a", "b"] * 25, "x": values}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=re.escape(f"the feature column 'x' has {odd!r}: it must hold numbers")):
        load_table(tmp_path / "t.csv", target="bird", features=["x"])


def test_tables_of_arrow():
    table = pa.table({"bird": ["a", "b"], "x": [1.0, 2.0]})
    data = load_table(table, target="bird", features=["x"])
    assert data.X.tolist() == [[1.0], [2.0]]


def test_tensors_that_require_a_gradient():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 1, requires_grad=True)
    with pytest.raises(InputError, match="features is a Tensor that NumPy cannot read"):
        load_table({"bird": ["a", "b"]}, target="bird", features=tensor)
    with pytest.raises(InputError, match="split is a Tensor that NumPy cannot read"):
        GroupedDataset(np.ones((2, 1)), GroupSpace.from_cardinalities([2]), [[0], [1]], split=tensor[:, 0])
