"""``compshift audit`` on tables of every kind."""

import json

import numpy as np
import pandas as pd
import pytest

WATERBIRDS = pd.DataFrame({"bird": ["w"] * 3 + ["l"] * 60, "place": ["water"] * 3 + ["land"] * 30 + ["water"] * 30})
SIX = [(0, 0, 9), (0, 1, 40), (1, 1, 50), (3, 3, 60), (3, 4, 22), (4, 4, 100)]


@pytest.fixture
def audit(call, tmp_path):
    def run(name, *arguments):
        return call("audit", name, *arguments, cwd=tmp_path)

    return run


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet", "shards", "t.npz", "categories.parquet"])
def test_every_kind_of_table(audit, tmp_path, name):
    path = tmp_path / name
    if name == "t.csv":
        WATERBIRDS.to_csv(path, index=False)
    elif name == "t.tsv":
        WATERBIRDS.to_csv(path, index=False, sep="\t")
    elif name == "t.parquet":
        WATERBIRDS.assign(weight=1.5).to_parquet(path)
    elif name == "categories.parquet":
        WATERBIRDS.astype("category").to_parquet(path)
    elif name == "shards":
        path.mkdir()
        WATERBIRDS[:20].to_parquet(path / "a.parquet")
        WATERBIRDS[20:].to_parquet(path / "b.parquet")
    else:
        codes = np.stack([WATERBIRDS["bird"] == "w", WATERBIRDS["place"] == "water"], axis=1).astype(int)
        values = json.dumps({"bird": ["l", "w"], "place": ["land", "water"]})
        np.savez(path, Z=codes, attribute_names=["bird", "place"], value_names=values)
    result = audit(name, "--attributes", "bird,place", "--json", "--explain")
    assert result.returncode == 0, result.err
    content = json.loads(result.out)
    assert {tuple(group["group"]): group["count"] for group in content["seen"]} == {
        ("l", "land"): 30,
        ("l", "water"): 30,
        ("w", "water"): 3,
    }
    assert content["extrapolable"] == [["w", "land"]]
    assert content["witnesses"] == ["(w, land) = (w, water) − (l, water) + (l, land)"]
    assert (content["rank"], content["full_rank"], content["coverage"]) == (3, 3, 1.0)
    assert content["small"] == [["w", "water"]]
    assert content["plan"] == []


def test_counts_only_tables_and_the_plan(audit, tmp_path):
    pd.DataFrame(SIX, columns=["class", "view", "n"]).to_csv(tmp_path / "t.csv", index=False)
    result = audit("t.csv", "--attributes", "class,view", "--count", "n")
    assert "281 rows in 6 of 16 groups (4 × 4)" in result.out
    assert "50.00% of all groups are determined" in result.out
    assert "unseen groups: 2 can be extrapolated, 8 out of reach" in result.out
    assert "collect this group" in result.out
    assert max(map(len, result.out.splitlines()[:9])) <= 80
    content = json.loads(audit("t.csv", "--attributes", "class,view", "--count", "n", "--json").out)
    assert len(content["plan"]) == content["full_rank"] - content["rank"] == 1


def test_many_attributes(audit, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 6, size=(40, 12)), columns=list("abcdefghijkl"))
    frame.to_parquet(tmp_path / "t.parquet")
    result = audit("t.parquet", "--attributes", "a,b,c,d,e,f,g,h,i,j,k,l")
    assert result.returncode == 0, result.err
    assert "95 % interval" in result.out
    assert "the fewest that suffice" in result.out


def test_missing_values_are_counted_and_left_out(audit, tmp_path):
    frame = WATERBIRDS.astype(object)
    frame.loc[[0, 40], "bird"] = None
    frame.loc[[40, 41], "place"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = audit("t.csv", "--attributes", "bird,place")
    assert "3 rows were left out because an attribute is missing (bird: 2, place: 2)" in result.out
    assert "60 rows in 3 of 4 groups" in result.out


@pytest.mark.parametrize("name", ["out.png", "out.svg"])
def test_pictures(audit, tmp_path, name):
    pytest.importorskip("matplotlib")
    WATERBIRDS.assign(size=["s", "m", "l"] * 21).to_csv(tmp_path / "t.csv", index=False)
    for attributes in ("bird,place", "bird,place,size", "bird"):
        assert audit("t.csv", "--attributes", attributes, "-o", name).returncode == 0
        assert (tmp_path / name).stat().st_size > 2000


def test_names_are_printed_verbatim(audit, tmp_path):
    WATERBIRDS.rename(columns={"place": "[red]place"}).replace("land", "[b]land").to_csv(
        tmp_path / "t.csv", index=False
    )
    out = audit("t.csv", "--attributes", "bird,[red]place").out
    assert "[red]place" in out
    assert "[b]land" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t.csv", "--attributes", "bird,plac"), "use one of 'bird', 'place', 'id'; did you mean 'place'?"),
        (("t.csv", "--attributes", "id,bird", "--max-values", "20"), "63 different values: is it an identifier?"),
        (("t.csv", "--attributes", "bird,bird"), "a column is named twice in 'bird', 'bird'"),
        (("t.csv", "--attributes", "bird", "--count", "place"), "it must contain numbers"),
        (("t.csv", "--attributes", ","), "--attributes is empty"),
        (("none.csv", "--attributes", "a"), "there is no file or folder 'none.csv'"),
        (("empty.csv", "--attributes", "a"), "'empty.csv' cannot be read"),
        (("header.csv", "--attributes", "a"), "has no rows"),
        (("nulls.csv", "--attributes", "a"), "every row of 'nulls.csv' has a missing attribute"),
        (("broken.parquet", "--attributes", "a"), "'broken.parquet' cannot be read"),
        (("t.doc", "--attributes", "a"), "pass a .csv, .tsv, .xlsx, .jsonl, .parquet or .npz file"),
        (("t.csv", "--attributes", "bird", "-o", "out.gif"), "figures are written as .png"),
    ],
)
def test_bad_input(audit, tmp_path, arguments, message):
    WATERBIRDS.assign(id=range(63)).to_csv(tmp_path / "t.csv", index=False)
    contents = {
        "empty.csv": "",
        "header.csv": "a,b\n",
        "nulls.csv": "a,b\n,1\n,2\n",
        "t.doc": "x",
        "broken.parquet": "PAR1",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    result = audit(*arguments)
    assert result.returncode == 2
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz"])
def test_one_split(audit, tmp_path, name):
    """Count the rows that `fit` is trained on, not the whole table."""
    if name == "t.npz":
        arrays = {"Z": [[0, 0], [0, 1], [1, 1], [1, 0]], "attribute_names": ["bird", "place"], "split": [0, 0, 0, 2]}
        np.savez(tmp_path / name, X=np.zeros((4, 1)), **arrays)
    else:
        rows = {"bird": list("llww"), "place": list("lwwl"), "split": ["train", "train", "train", "test"]}
        frame = pd.DataFrame(rows)
        frame.to_csv(tmp_path / name, index=False) if name == "t.csv" else frame.to_parquet(tmp_path / name)
    every = json.loads(audit(name, "--attributes", "bird,place", "--json").out)
    assert every["rows"] == 4
    assert json.loads(audit(name, "--attributes", "bird,place", "--split", "all", "--json").out) == every
    train = json.loads(audit(name, "--attributes", "bird,place", "--split", "train", "--json").out)
    assert train["rows"] == 3
    result = audit(name, "--attributes", "bird,place", "--split", "val")
    assert result.returncode == 2
    assert "there are no val rows" in result.err


def test_a_missing_split_raises(audit, tmp_path):
    WATERBIRDS.to_csv(tmp_path / "t.csv", index=False)
    result = audit("t.csv", "--attributes", "bird", "--split", "train")
    assert result.returncode == 2
    assert "column 'split' is not known" in result.err


def test_explain_prints_the_sparsest_combination(audit, tmp_path):
    rows = [(0, 0, 0, 50), (0, 0, 1, 50), (0, 1, 0, 50), (0, 1, 1, 50), (1, 0, 0, 50), (1, 0, 1, 50), (1, 1, 0, 90)]
    pd.DataFrame(rows, columns=["y", "a", "b", "n"]).to_csv(tmp_path / "t.csv", index=False)
    arguments = ("t.csv", "--attributes", "y,a,b", "--count", "n", "--explain")
    assert "  (1, 1, 1) = (1, 1, 0) + (1, 0, 1) − (1, 0, 0)\n" in audit(*arguments).out
    assert json.loads(audit(*arguments, "--json").out)["witnesses"] == ["(1, 1, 1) = (1, 1, 0) + (1, 0, 1) − (1, 0, 0)"]
