"""Public copies of data sets that differ from the published download: incomplete, resized, or with other tables."""

import json

import numpy as np
import pandas as pd
import pytest

from compshift import InputError
from compshift.data.benchmarks import benchmark
from compshift.data.images import CentreCrop, Resize
from tests.data import trees
from tests.data.test_benchmarks import KEPT, SPLIT_ANEW, edit, load


@pytest.mark.parametrize("values", ["signs", "bits"])
@pytest.mark.parametrize("image", ["image_id", "id", "filename"])
@pytest.mark.parametrize("split", ["partition", "split"])
def test_public_csv_variants_of_celeba(tmp_path, values, image, split):
    """Tables that were written with pandas: an index column, other names of columns, 0 and 1 instead of −1 and 1."""
    trees.celeba(tmp_path, "csv")
    attributes, partition = (tmp_path / f"celebA/data/list_{name}.csv" for name in ("attr_celeba", "eval_partition"))
    table = pd.read_csv(attributes)
    if values == "bits":
        table.loc[:, trees.CELEBA_NAMES] = (table[trees.CELEBA_NAMES] + 1) // 2
    expected = load("celeba5", tmp_path)
    table.rename(columns={"image_id": image}).to_csv(attributes)
    pd.read_csv(partition).rename(columns={"image_id": image, "partition": split}).to_csv(partition)
    assert attributes.read_text().startswith(f",{image},")
    found = load("celeba5", tmp_path)
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.split, expected.split)
    assert found.samples.names.tolist() == expected.samples.names.tolist()


def test_celeba_with_numbers_in_place_of_file_names(tmp_path):
    trees.celeba(tmp_path, "csv")
    expected = load("celeba", tmp_path)
    for path in (tmp_path / "celebA/data").glob("*.csv"):
        pd.read_csv(path).assign(id=lambda table: table.pop("image_id").str[:-4].astype(int)).to_csv(path, index=False)
    found = load("celeba", tmp_path)
    assert found.samples.names.tolist() == expected.samples.names.tolist()
    np.testing.assert_array_equal(found.split, expected.split)


def test_a_number_beside_file_names_is_no_file_name(tmp_path):
    trees.celeba(tmp_path, "csv")
    expected = load("celeba", tmp_path)
    for path in (tmp_path / "celebA/data").glob("*.csv"):
        pd.read_csv(path).assign(id=range(trees.FACES)).to_csv(path, index=False)
    assert load("celeba", tmp_path).samples.names.tolist() == expected.samples.names.tolist()


def test_subpopbench_with_a_column_partition(tmp_path):
    trees.celeba(tmp_path, "subpopbench")
    expected = load("celeba", tmp_path)
    edit(tmp_path / "celeba/metadata_celeba.csv", "id,filename,split", ",image_id,partition")
    found = load("celeba", tmp_path)
    np.testing.assert_array_equal(found.split, expected.split)
    edit(tmp_path / "celeba/metadata_celeba.csv", "image_id", "picture")
    with pytest.raises(InputError, match=r"has no column 'image_id' \(or 'filename', 'id'\): its columns are"):
        load("celeba", tmp_path)


@pytest.mark.parametrize("name", ["celeba", "celeba5"])
def test_smaller_images_of_celeba_are_cropped_alike(tmp_path, name):
    pytest.importorskip("PIL")
    known = benchmark(name)
    trees.celeba(tmp_path, "txt")
    assert known.fitted_geometry(load(name, tmp_path)) is known.geometry
    trees.celeba(tmp_path, "txt", size=(89, 109))
    with pytest.warns(UserWarning, match=r"of 24 images sampled, 24 have 89 × 109 pixels; .* have 178 × 218: the same"):
        found = known.fitted_geometry(load(name, tmp_path))
    assert found == (CentreCrop(89, 89), Resize(224))
    trees.image(tmp_path / "celeba/img_align_celeba/000003.jpg", size=(178, 218))
    (tmp_path / "celeba/img_align_celeba/000004.jpg").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"of 23 images sampled, 22 have 89 × 109 and 1 has 178 × 218 pixels; "):
        assert known.fitted_geometry(load(name, tmp_path)) == found


def test_data_sets_without_a_published_size_keep_their_geometry(tmp_path):
    trees.waterbirds(tmp_path, "authors")
    known = benchmark("waterbirds")
    assert known.fitted_geometry(load("waterbirds", tmp_path)) is known.geometry


def check_warning(root, name, message):
    """Check that loading warns and that the sentence ends in a remedy or its consequence."""
    with pytest.warns(UserWarning, match=message) as caught:
        data = load(name, root)
    assert all(": " in str(warning.message) for warning in caught)
    return data


def test_a_table_of_celeba_with_fewer_rows_than_it_announces_warns(tmp_path):
    trees.celeba(tmp_path, "txt")
    path = tmp_path / "celeba/list_attr_celeba.txt"
    path.write_text("\n".join(["202599", *path.read_text().splitlines()[1:]]) + "\n")
    data = check_warning(tmp_path, "celeba", r"line 1 announces 202599 images, but 24 follow")
    assert len(data) == trees.FACES


@pytest.mark.parametrize("packaging", ["txt", "csv"])
def test_splits_of_images_without_attributes_warn(tmp_path, packaging):
    trees.celeba(tmp_path, packaging)
    path = next(tmp_path.rglob(f"list_eval_partition.{packaging}"))
    path.write_text(path.read_text() + "900001.jpg,0\n900002.jpg,0\n".replace(",", "," if packaging == "csv" else " "))
    data = check_warning(tmp_path, "celeba", r"lists 2 images without attributes, such as '900001.jpg'")
    assert len(data) == trees.FACES


@pytest.mark.parametrize(
    ("name", "packaging", "pattern"),
    [
        ("waterbirds", "authors", "*/Bird_1120.jpg"),
        ("celeba", "txt", "000007.jpg"),
        ("metashift", "table", "cat(indoor)/003.jpg"),
        ("nico++", "table", "dim_0005.jpg"),
    ],
)
def test_images_of_a_table_that_are_missing_warn(tmp_path, name, packaging, pattern):
    getattr(trees, name.replace("+", "p"))(tmp_path, packaging)
    (gone,) = tmp_path.rglob(pattern)
    gone.unlink()
    check_warning(tmp_path, name, rf"1 of the \d+ images is missing from .*, such as '.*{gone.name}'")


@SPLIT_ANEW
@pytest.mark.parametrize("content", ["", json.dumps({"sentence1": "", "sentence2": "", "gold_label": "-"}) + "\n"])
def test_a_file_of_multinli_without_examples_warns(tmp_path, content):
    trees.multinli_texts(tmp_path)
    (tmp_path / "multinli/data/multinli_1.0_dev_mismatched.jsonl").write_text(content)
    data = check_warning(tmp_path, "multinli", r"dev_mismatched.jsonl' has no examples with a gold label")
    assert len(data) == len(KEPT) - 1


def test_multinli_without_published_splits_warns(tmp_path):
    trees.multinli_texts(tmp_path)
    check_warning(tmp_path, "multinli", r"metadata_random.csv': the rows are split at random")


def test_groups_of_nicopp_without_images_warn(tmp_path):
    trees.nicopp(tmp_path, "plain")
    check_warning(tmp_path, "nico++", r"14 of the 18 folders in .* have no \.jpg file, such as 'autumn/bear'")


def test_comments_that_the_table_does_not_list_warn(tmp_path):
    trees.civilcomments(tmp_path, "subpopbench")
    path = tmp_path / "civilcomments/metadata_civilcomments_fine.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-2]) + "\n")
    check_warning(tmp_path, "civilcomments", r"metadata_civilcomments_fine.csv' leaves out 2 of the 7 comments")
