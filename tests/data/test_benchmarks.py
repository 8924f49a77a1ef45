"""Load a tiny copy of every packaging of every data set and check counts, values, splits and samples."""

import collections
import os
import shutil

import numpy as np
import pytest

from compshift import AffineHull, InputError
from compshift.data.benchmarks import benchmark
from compshift.data.penguins import load_penguins
from compshift.data.shift import scenarios
from tests.data import trees

DOWNLOADED = ["waterbirds", "celeba", "celeba5", "metashift", "multinli", "civilcomments", "nico++"]


def load(name, root):
    return benchmark(name).load(root)


SPARSE = pytest.mark.filterwarnings("ignore:.* of the 18 folders")
"""For trees of NICO++, which have images of a few groups only."""

SPLIT_ANEW = pytest.mark.filterwarnings("ignore:there is no file .*metadata_random")
"""For trees of MultiNLI without the table of published splits."""


def close(found, expected):
    return all(abs(a - b) <= 12 for a, b in zip(found, expected, strict=True))  # JPEG changes colours slightly


@pytest.mark.parametrize("packaging", ["authors", "wilds", "group_dro", "subpopbench"])
def test_waterbirds(tmp_path, packaging):
    trees.waterbirds(tmp_path, packaging)
    data = load("waterbirds", tmp_path)
    places, birds = ["land", "water"], ["landbird", "waterbird"]
    expected = collections.Counter((s, birds[y], places[a]) for _, y, s, a in trees.BIRDS)
    assert trees.counts(data) == expected
    assert data.targets == ("bird",)
    assert data.attributes == ("place",)
    assert data.samples.names.tolist() == [name for name, *_ in trees.BIRDS]
    assert ("SubpopBench" if packaging == "subpopbench" else "as published") in data.source
    pytest.importorskip("PIL")
    for row in (0, 7):
        assert close(trees.pixel(data.samples.path(row)), trees.colour_of(row))


def test_packagings_are_probed_in_order(tmp_path):
    trees.waterbirds(tmp_path, "subpopbench")
    trees.waterbirds(tmp_path, "wilds")
    assert load("waterbirds", tmp_path).source.startswith("waterbirds_v1.0/metadata.csv")
    trees.waterbirds(tmp_path, "authors")
    assert load("waterbirds", tmp_path).source.startswith("waterbirds/waterbird_complete95")


@pytest.mark.parametrize("packaging", ["txt", "csv", "wilds", "subpopbench"])
def test_celeba(tmp_path, packaging):
    trees.celeba(tmp_path, packaging)
    data = load("celeba", tmp_path)
    hair, gender = ["not blond", "blond"], ["female", "male"]
    expected = collections.Counter()
    for row in range(trees.FACES):
        values, split = trees.face(row)
        expected[split, hair[values["Blond_Hair"]], gender[values["Male"]]] += 1
    assert trees.counts(data) == expected
    pytest.importorskip("PIL")
    assert close(trees.pixel(data.samples.path(5)), trees.colour_of(5))


@pytest.mark.parametrize("packaging", ["txt", "csv", "wilds"])
def test_celeba_with_five_attributes(tmp_path, packaging):
    trees.celeba(tmp_path, packaging)
    data = load("celeba5", tmp_path)
    assert data.space.n_groups == 32
    assert data.targets == ("hair",)
    for row in range(trees.FACES):
        assert data.codes[row].tolist() == list(trees.face(row)[0].values())
        assert data.split[row] == trees.face(row)[1]


def test_celeba5_cannot_come_from_a_table_of_two_attributes(tmp_path):
    trees.celeba(tmp_path, "subpopbench")
    with pytest.raises(InputError, match="celeba5 was not found below"):
        load("celeba5", tmp_path)


def test_metashift_with_a_table_from_another_machine(tmp_path):
    trees.metashift(tmp_path, "table")
    data = load("metashift", tmp_path)
    assert data.space.values == (("cat", "dog"), ("indoor", "outdoor"))
    for row, name in enumerate(data.samples.names):
        animal, place = data.space.decode(data.codes[row : row + 1])[0]
        assert f"/{animal}/{animal}({place})/" in name
        assert data.samples.path(row).is_file()
    assert data.split.tolist() == [row % 3 for row in range(len(data))]


def test_metashift_splits_folders_as_published(tmp_path):
    trees.metashift(tmp_path, "folders")
    data = load("metashift", tmp_path)
    n = sum(trees.PETS.values())
    rng = np.random.RandomState(42)
    test = rng.choice(np.arange(n), size=int(n * 0.25), replace=False)
    val = rng.choice(np.setdiff1d(np.arange(n), test), size=int(n * 0.1), replace=False)
    assert set(np.flatnonzero(data.split == 2)) == set(test)
    assert set(np.flatnonzero(data.split == 1)) == set(val)
    assert "split anew" in data.source
    pytest.importorskip("PIL")
    assert close(trees.pixel(data.samples.path(13)), trees.colour_of(13))


@SPARSE
@pytest.mark.parametrize(("name", "build"), [("metashift", trees.metashift), ("nico++", trees.nicopp)])
def test_seeded_splits_do_not_depend_on_the_order_of_a_folder(tmp_path, monkeypatch, name, build):
    """The order in which a folder is listed differs from machine to machine."""
    build(tmp_path, "plain")
    first = load(name, tmp_path)
    scandir = os.scandir

    class Backwards:
        def __init__(self, path):
            with scandir(path) as entries:
                self.entries = list(entries)[::-1]

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(os, "scandir", Backwards)
    second = load(name, tmp_path)
    assert first.samples.names.tolist() == second.samples.names.tolist()
    np.testing.assert_array_equal(first.split, second.split)


@SPARSE
@pytest.mark.parametrize("packaging", ["plain", "track_1", "nested"])
def test_nicopp_folders(tmp_path, packaging):
    trees.nicopp(tmp_path, packaging)
    data = load("nico++", tmp_path)
    assert data.space.values == (("airplane", "bear", "train"), tuple(trees.CONTEXTS))
    assert trees.counts(data) == {
        (0, "airplane", "autumn"): 15,
        (1, "airplane", "autumn"): 25,
        (2, "airplane", "autumn"): 50,
        (0, "bear", "dim"): 5,
        (1, "bear", "dim"): 25,
        (2, "bear", "dim"): 50,
        (1, "train", "rock"): 25,
        (2, "train", "rock"): 50,  # all 75 rows are held out
        (1, "bear", "water"): 3,
        (2, "bear", "water"): 7,
    }
    shuffled = [name for name in data.samples.names if name.startswith("autumn/airplane")]
    assert shuffled != sorted(shuffled)
    (standard,) = scenarios(data, "standard")
    assert trees.counts(standard.apply(data)) == trees.counts(data)
    (compositional,) = scenarios(data, "none")
    reduced = compositional.apply(data)
    assert {key[1:] for key in trees.counts(reduced) if key[0] == 1} == {("airplane", "autumn"), ("bear", "dim")}
    assert (reduced.split == 2).sum() == (data.split == 2).sum()


def test_nicopp_with_a_table_from_another_machine(tmp_path):
    trees.nicopp(tmp_path, "table")
    data = load("nico++", tmp_path)
    assert "table of splits" in data.source
    assert data.samples.path(95).is_file()
    assert data.samples.names[95] == "dim/bear/dim_0005.jpg"
    assert data.space.decode(data.codes[95:96]).tolist() == [["bear", "dim"]]
    assert data.split.tolist() == [row % 3 for row in range(len(data))]
    # Also for the object "train", because another folder has the same name.
    assert all(data.samples.path(row).is_file() for row in range(len(data)))


KEPT = [pair for pair in trees.PAIRS if pair[2] != "-"]
NEGATED = [flag for flag in trees.NEGATED if flag is not None]


def check_multinli(data):
    negation = ["no negation", "negation"]
    expected = [[label, negation[flag]] for (_, _, label), flag in zip(KEPT, NEGATED, strict=True)]
    assert data.space.decode(data.codes).tolist() == expected
    assert data.targets == ("label",)


def test_multinli_caches(tmp_path):
    trees.multinli_caches(tmp_path)
    trees.multinli_table(tmp_path)
    data = load("multinli", tmp_path)
    check_multinli(data)
    assert data.split.tolist() == [number % 3 for number in (0, 1, 3, 4, 5)]
    assert data.samples.ids.shape == (5, 128)
    assert data.samples.ids[:, 1].tolist() == [1000, 1001, 1000, 1001, 1000]
    assert data.samples.segments[3, :4].tolist() == [0, 1, 1, 0]
    assert data.samples.mask.sum(axis=1).tolist() == [3] * 5


@pytest.mark.parametrize("folder", ["multinli/data", "multinli/multinli_1.0", "multinli"])
def test_multinli_texts_with_the_published_split(tmp_path, folder):
    trees.multinli_texts(tmp_path, folder)
    trees.multinli_table(tmp_path)
    data = load("multinli", tmp_path)
    check_multinli(data)
    assert data.split.tolist() == [number % 3 for number in (0, 1, 3, 4, 5)]
    assert data.samples.first.tolist() == [first for first, _, _ in KEPT]
    assert data.samples.second.tolist() == [second for _, second, _ in KEPT]


@SPLIT_ANEW
def test_multinli_texts_split_anew(tmp_path):
    trees.multinli_texts(tmp_path)
    data = load("multinli", tmp_path)
    check_multinli(data)
    assert sorted(data.split.tolist()) == [0, 0, 1, 1, 2] or sorted(data.split.tolist()) == [0, 0, 1, 2, 2]
    np.testing.assert_array_equal(data.split, load("multinli", tmp_path).split)


def test_multinli_files_that_do_not_belong_together_raise(tmp_path):
    trees.multinli_caches(tmp_path)
    trees.multinli_table(tmp_path)
    path = tmp_path / "multinli/data/metadata_random.csv"
    whole = path.read_text()
    path.write_text(whole.replace("\n1,0,", "\n1,2,"))
    with pytest.raises(InputError, match=r"line 3: gold_label is 2 but the cached example has 0"):
        load("multinli", tmp_path)
    path.write_text("\n".join(whole.splitlines()[:-1]))
    with pytest.raises(InputError, match="has 4 rows but the caches have 5 examples"):
        load("multinli", tmp_path)
    shutil.rmtree(tmp_path / "multinli/glue_data")
    trees.multinli_texts(tmp_path)
    with pytest.raises(InputError, match=r"and the \.jsonl files have different line numbers"):
        load("multinli", tmp_path)
    path.write_text(whole.replace("\n3,2,0", "\n3,2,1"))
    with pytest.raises(InputError, match=r"line 4: the group is \(neutral, negation\) but .* text is \(neutral, no n"):
        load("multinli", tmp_path)


@pytest.mark.parametrize("packaging", ["authors", "subpopbench"])
def test_civilcomments(tmp_path, packaging):
    trees.civilcomments(tmp_path, packaging)
    data = load("civilcomments", tmp_path)
    rows = list(zip(data.samples.first, data.split.tolist(), data.space.decode(data.codes).tolist(), strict=True))
    assert rows == [
        ("NA", 0, ["not toxic", "male"]),
        ("NA", 0, ["not toxic", "black"]),
        ('says "hi",\nthen leaves', 0, ["toxic", "female"]),
        ("null", 1, ["toxic", "muslim"]),
        ("null", 1, ["toxic", "white"]),
        ("a fourth", 2, ["not toxic", "LGBTQ"]),
        ("a fifth", 2, ["not toxic", "male"]),
    ]
    assert len(np.unique(data.origin)) == 5
    assert data.origin[0] == data.origin[1] != data.origin[2]


@pytest.mark.parametrize("name", DOWNLOADED)
def test_a_missing_download_lists_the_files_looked_for(tmp_path, name):
    with pytest.raises(InputError, match=r"was not found below .* \(looked for [^)]+\): get .*"):
        load(name, tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        load(name, tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"must be downloaded: pass the folder that holds it as root"):
        benchmark(name).load()


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "build", "path", "old", "new", "message"),
    [
        ("waterbirds", "authors", "metadata.csv", "place,", "plaice,", "has no column 'place': its columns are"),
        ("waterbirds", "authors", "metadata.csv", ",0,0,0,", ",7,0,0,", r"metadata.csv', line 2: y is '7', not one of"),
        ("waterbirds", "authors", "metadata.csv", ",0,0,0,", ",0,,0,", "line 2: split is '', not one of '0', '1', '2'"),
        ("waterbirds", "authors", "metadata.csv", ".Species", ".Spezies", "there is no image '100.Spezies"),
        ("celeba", "txt", "list_attr_celeba.txt", "Male", "Mail", "has no attribute 'Male' in line 2"),
        ("celeba", "txt", "list_attr_celeba.txt", " 1", " 2", r"line \d: .* is '2', not one of '-1', '1'"),
        ("celeba", "txt", "list_eval_partition.txt", "000003.jpg 2", "000003.jpg 5", "line 3: split is '5'"),
        ("celeba", "txt", "list_eval_partition.txt", "000003.jpg 2\n", "", "has no split for '000003.jpg'"),
        ("metashift", "table", "metadata_metashift.csv", trees.METASHIFT, "Else", "line 2: the path .* does not"),
        ("nico++", "table", "dg_label_id_mapping.json", ': 2', ': 3', "does not number its 3 objects from 0"),
        ("nico++", "table", "dg_label_id_mapping.json", '{', '[', "is not a JSON object"),
        ("nico++", "table", "metadata.csv", ".jpg,2,4,", ".jpg,9,4,", r"line \d+: y is '9', not one of '0', '1', '2'"),
        ("civilcomments", "authors", "identities.csv", "0.8", "much", "line 3: toxicity is 'much', not a number"),
        ("civilcomments", "authors", "identities.csv", ",val,", ",dev,", r"split is 'dev', not one of 'train', 'val'"),
        ("civilcomments", "subpopbench", "_civilcomments_fine.csv", "6,6,2", "6,9,2", "filename is '9', not one of"),
    ],
)  # fmt: skip
def test_wrong_entries_of_metadata_are_named_with_their_line(tmp_path, name, build, path, old, new, message):
    getattr(trees, name.replace("+", "p"))(tmp_path, build)
    found = [file for file in tmp_path.rglob("*") if file.name.endswith(path)]
    assert len(found) == 1
    edit(found[0], old, new)
    with pytest.raises(InputError, match=message):
        load(name, tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: not a JSON object with the texts"),
        ('{"sentence1": "a", "gold_label": "neutral"}', r"line 2: not a JSON object with the texts .* \(KeyError"),
        ('{"sentence1": "a", "sentence2": "b", "gold_label": "maybe"}', "line 2: gold_label is 'maybe'"),
    ],
)
def test_wrong_lines_of_multinli_are_named(tmp_path, line, message):
    trees.multinli_texts(tmp_path)
    path = tmp_path / "multinli/data/multinli_1.0_dev_matched.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(InputError, match=message):
        load("multinli", tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"there is no file .*dev_matched\.jsonl"):
        load("multinli", tmp_path)


def test_published_counts_agree_with_the_published_totals():
    """The published counts per group and per split come from different tables of the literature."""
    for name in ("waterbirds", "celeba", "metashift", "multinli", "civilcomments"):
        known = benchmark(name)
        for split, rows in known.published.items():
            assert abs(sum(rows) - known.totals[split]) <= 1, (name, split)


@SPARSE
def test_differences_names_groups_with_other_counts_than_published(tmp_path):
    trees.waterbirds(tmp_path, "authors")
    found = benchmark("waterbirds").differences(load("waterbirds", tmp_path))
    assert len(found) == 3
    assert found[0].startswith("train differs from the published counts: (landbird, land) has 2 rows, not 3498; ")
    assert found[0].endswith("; 1 more")
    trees.nicopp(tmp_path, "plain")
    found = benchmark("nico++").differences(load("nico++", tmp_path))
    assert found[0] == "train has 20 rows but the published data set has 62657"


def test_penguins_lack_eight_groups():
    data = load_penguins()
    assert data.X.shape == (333, 4)
    assert data.space.cardinalities == (3, 2, 3)
    seen = data.space.distinct(data.codes)[0]
    assert len(seen) == 10
    assert AffineHull(data.space, seen).is_complete
    assert data.space.distinct(data.part("train").codes)[0].tolist() == seen.tolist()
    assert data.space.distinct(data.part("test").codes)[0].tolist() == seen.tolist()
    first = data.space.frame(data.codes[:1]).iloc[0].to_dict()
    assert first == {"species": "Adelie", "sex": "male", "island": "Torgersen"}
    assert data.X[0].tolist() == [39.1, 18.7, 181, 3750]
