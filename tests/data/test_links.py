"""Symbolic links and paths in copies of data sets: folders that a user linked are followed, nothing else leads out."""

import json
import os
import shutil

import pandas as pd
import pytest

from compshift import InputError
from compshift.data.images import broken_samples
from tests.data import trees
from tests.data.test_benchmarks import SPARSE, check_multinli, edit, load

BIRD_FOLDER = "waterbirds/waterbird_complete95_forest2water2"


@pytest.mark.parametrize("name", ["/secret.jpg", "../../secret.jpg", "a/../../../secret.jpg", "..\\..\\secret.jpg"])
def test_metadata_with_paths_out_of_the_folder_raises(tmp_path, name):
    trees.waterbirds(tmp_path, "authors")
    trees.image(tmp_path / "secret.jpg")
    path = tmp_path / "waterbirds/waterbird_complete95_forest2water2/metadata.csv"
    table = pd.read_csv(path)
    table["img_filename"] = table["img_filename"].where(table.index != 3, name)
    table.to_csv(path, index=False)
    with pytest.raises(InputError, match="row 3 is not below"):
        load("waterbirds", tmp_path)


def move_and_link(path, target):
    """Move a folder or file elsewhere and leave a symbolic link in its place, as somebody with one copy has it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    os.symlink(target, path)


@SPARSE
@pytest.mark.parametrize(
    ("name", "packaging", "folder"),
    [
        ("waterbirds", "authors", "."),
        ("waterbirds", "authors", "waterbirds"),
        ("waterbirds", "authors", BIRD_FOLDER),
        ("waterbirds", "subpopbench", BIRD_FOLDER),
        ("waterbirds", "group_dro", "cub/data"),
        ("celeba", "txt", "celeba/img_align_celeba"),
        ("celeba", "csv", "celebA/data"),
        ("celeba", "csv", "celebA/data/img_align_celeba"),
        ("celeba", "csv", "celebA/data/img_align_celeba/img_align_celeba"),
        ("metashift", "table", f"metashift/{trees.METASHIFT}"),
        ("metashift", "folders", f"metashift/{trees.METASHIFT}"),
        ("nico++", "plain", "nicopp/public_dg_0416"),
        ("nico++", "table", "nicopp/public_dg_0416/train"),
    ],
)
def test_the_folders_of_a_data_set_may_be_links(tmp_path, name, packaging, folder):
    root = tmp_path / "root"
    getattr(trees, name.replace("+", "p"))(root, packaging)
    expected = load(name, root)
    move_and_link(root / folder, tmp_path / "elsewhere/copy")
    found = load(name, root)
    assert found.samples.names.tolist() == expected.samples.names.tolist()
    assert all(found.samples.path(row).is_file() for row in range(len(found)))


@pytest.mark.parametrize("folder", ["multinli/data", "multinli/glue_data", "multinli/glue_data/MNLI"])
def test_the_folders_of_texts_may_be_links(tmp_path, folder):
    trees.multinli_texts(tmp_path / "root")
    trees.multinli_table(tmp_path / "root")
    if "glue" in folder:
        trees.multinli_caches(tmp_path / "root")
    move_and_link(tmp_path / "root" / folder, tmp_path / "elsewhere/copy")
    check_multinli(load("multinli", tmp_path / "root"))


@pytest.mark.filterwarnings("ignore:.* missing from")
@pytest.mark.parametrize("linked", [None, BIRD_FOLDER])
def test_links_inside_an_image_folder_that_lead_out_raise(tmp_path, linked):
    root = tmp_path / "root"
    trees.waterbirds(root, "authors")
    if linked:
        move_and_link(root / linked, tmp_path / "elsewhere/copy")
    first = root / BIRD_FOLDER / trees.BIRDS[0][0]
    move_and_link(first, tmp_path / "secret.jpg")
    assert "leads out of" in next(broken_samples(load("waterbirds", root)))
    first.unlink()
    move_and_link(first.parent, tmp_path / "secret/folder")  # a nested folder
    with pytest.raises(InputError, match="leads out of"):
        load("waterbirds", root).samples.path(1)


@SPARSE
@pytest.mark.parametrize(
    ("name", "packaging", "file"),
    [
        ("waterbirds", "authors", f"{BIRD_FOLDER}/metadata.csv"),
        ("celeba", "txt", "celeba/list_eval_partition.txt"),
        ("nico++", "plain", "nicopp/dg_label_id_mapping.json"),
        ("nico++", "plain", "nicopp/public_dg_0416/train/autumn"),
        ("metashift", "folders", f"metashift/{trees.METASHIFT}/train/cat"),
    ],
)
def test_tables_and_folders_of_groups_that_lead_out_raise(tmp_path, name, packaging, file):
    getattr(trees, name.replace("+", "p"))(tmp_path / "root", packaging)
    move_and_link(tmp_path / "root" / file, tmp_path / "secret/copy")
    with pytest.raises(InputError, match="leads out of"):
        load(name, tmp_path / "root")


def test_a_linked_image_folder_does_not_open_the_folder_around_it(tmp_path):
    """Metadata of a linked folder that name a file beside the link's target stay rejected."""
    trees.waterbirds(tmp_path / "root", "subpopbench")
    move_and_link(tmp_path / "root" / BIRD_FOLDER, tmp_path / "elsewhere/copy")
    trees.image(tmp_path / "elsewhere/secret.jpg")
    edit(tmp_path / "root/waterbirds/metadata_waterbirds.csv", trees.BIRDS[3][0], "../secret.jpg")
    with pytest.raises(InputError, match="row 3 is not below"):
        load("waterbirds", tmp_path / "root")


def test_object_names_that_are_paths_raise(tmp_path):
    trees.nicopp(tmp_path, "plain")
    (tmp_path / "nicopp/dg_label_id_mapping.json").write_text(json.dumps({"../../..": 0}))
    with pytest.raises(InputError, match="cannot be the name of a folder"):
        load("nico++", tmp_path)


@pytest.mark.filterwarnings("ignore:.* missing from")
def test_a_linked_folder_around_the_data_set_raises(tmp_path):
    trees.celeba(tmp_path / "root", "txt")
    images = tmp_path / "root/celeba/img_align_celeba"
    shutil.rmtree(images)
    os.symlink(tmp_path, images)
    edit(tmp_path / "root/celeba/list_attr_celeba.txt", "000001.jpg", "secret.jpg")
    edit(tmp_path / "root/celeba/list_eval_partition.txt", "000001.jpg", "secret.jpg")
    trees.image(tmp_path / "secret.jpg")
    with pytest.raises(InputError, match="a folder that contains the data set"):
        load("celeba", tmp_path / "root")
