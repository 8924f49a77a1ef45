"""Named data sets on the command line."""

import json
import re

import numpy as np
import pytest

from compshift.data.benchmarks import BENCHMARKS
from compshift.data.feature_files import read_features
from tests.data import trees


def test_list(call, tmp_path):
    result = call("datasets", "list", cwd=tmp_path)
    assert result.returncode == 0
    assert all(f"\n{name} " in result.out for name in BENCHMARKS)
    assert max(len(line) for line in result.out.splitlines()) <= 80
    listed = json.loads(call("datasets", "list", "--json", cwd=tmp_path).out)
    assert [entry["name"] for entry in listed] == list(BENCHMARKS)
    assert all(entry["embedded"] == (entry["download"] is None) for entry in listed)


def test_check(call, tmp_path):
    pytest.importorskip("PIL")
    trees.waterbirds(tmp_path, "wilds")
    result = call("datasets", "check", "waterbirds", "--root", ".", cwd=tmp_path)
    assert result.returncode == 0
    assert "20 rows of images, found as waterbirds_v1.0/metadata.csv (as published)" in result.out
    assert re.search(r"^landbird +land +2 +1 +1$", result.out, re.MULTILINE)
    assert re.search(r"^published +4795 +1199 +5794$", result.out, re.MULTILINE)
    assert "warning: train differs from the published counts: (landbird, land) has 2 rows, not 3498" in result.out
    found = json.loads(call("datasets", "check", "waterbirds", "--root", ".", "--json", cwd=tmp_path).out)
    assert found["rows"] == {"train": 8, "val": 6, "test": 6}
    assert found["published"] == {"train": 4795, "val": 1199, "test": 5794}
    assert found["groups"][2] == {"group": ["waterbird", "land"], "train": 3, "val": 2, "test": 2}
    assert found["broken"] == []
    assert len(found["warnings"]) == 3


def test_check_names_the_broken_files(call, tmp_path):
    pytest.importorskip("PIL")
    trees.waterbirds(tmp_path, "wilds")
    cut, gone = (tmp_path / "waterbirds_v1.0" / trees.BIRDS[row][0] for row in (3, 11))
    cut.write_bytes(cut.read_bytes()[:-300])
    gone.unlink()
    result = call("datasets", "check", "waterbirds", "--root", ".", cwd=tmp_path)
    assert result.returncode == 1
    lines = [line for line in result.out.splitlines() if line.startswith("broken: ")]
    assert len(lines) == 2
    assert cut.name in lines[0]
    assert "cannot be decoded" in lines[0]
    assert gone.name in lines[1]
    assert "No such file" in lines[1]
    assert call("datasets", "check", "waterbirds", "--root", ".", "--quick", cwd=tmp_path).returncode == 0


def test_check_reports_empty_splits_and_untested_groups(call, tmp_path):
    trees.civilcomments(tmp_path, "authors")
    path = tmp_path / "civilcomments/all_data_with_identities.csv"
    result = call("datasets", "check", "civilcomments", "--root", ".", cwd=tmp_path)
    assert "warning: 4 groups have no test rows: (not toxic, black), (toxic, female)" in result.out
    path.write_text(path.read_text().replace(",val,", ",train,"))
    result = call("datasets", "check", "civilcomments", "--root", ".", cwd=tmp_path)
    assert "warning: there are no val rows" in result.out


def test_check_shows_what_the_loader_warns_of(call, tmp_path):
    trees.multinli_texts(tmp_path)
    (tmp_path / "multinli/data/multinli_1.0_dev_mismatched.jsonl").write_text("")
    result = call("datasets", "check", "multinli", "--root", ".", cwd=tmp_path)
    assert result.returncode == 0
    assert "warning: 'multinli/data/multinli_1.0_dev_mismatched.jsonl' has no examples with a gold label" in result.out
    assert not result.err
    found = json.loads(call("datasets", "check", "multinli", "--root", ".", "--json", cwd=tmp_path).out)
    assert "dev_mismatched" in found["warnings"][0]
    assert "split at random" in found["warnings"][1]


def test_check_shows_images_of_another_size(call, tmp_path):
    pytest.importorskip("PIL")
    trees.celeba(tmp_path, "txt", size=(89, 109))
    found = json.loads(call("datasets", "check", "celeba", "--root", ".", "--json", cwd=tmp_path).out)
    assert "of 24 images sampled, 24 have 89 × 109 pixels" in found["warnings"][0]
    trees.celeba(tmp_path, "txt")
    found = json.loads(call("datasets", "check", "celeba", "--root", ".", "--json", cwd=tmp_path).out)
    assert not any("pixels" in warning for warning in found["warnings"])


def test_check_of_a_missing_download(call, tmp_path):
    result = call("datasets", "check", "metashift", "--root", ".", cwd=tmp_path)
    assert result.returncode == 2
    assert "looked for metashift/metadata_metashift.csv, metashift/MetaShift-Cat-Dog-indoor-outdoor" in result.err
    assert "get metashift.tar.gz" in result.err
    assert call("datasets", "check", "metashift", cwd=tmp_path).returncode == 2
    result = call("datasets", "check", "waterbird", cwd=tmp_path)
    assert "did you mean 'waterbirds'" in result.err


@pytest.mark.parametrize(
    ("name", "rows", "features", "attributes"),
    [
        ("gaussian2d", 8000, 2, ["z1", "z2"]),
        ("additive-gaussians", 10000, 100, ["z1", "z2"]),
        ("digits-backgrounds", 5580, 768, ["digit", "background"]),
        ("penguins", 333, 4, ["species", "sex", "island"]),
    ],
)
def test_export(call, tmp_path, name, rows, features, attributes):
    result = call("datasets", "export", name, "-o", "f.npz", cwd=tmp_path)
    assert result.out == f"{rows} rows of {features} features written to f.npz\n"
    data = read_features(tmp_path / "f.npz", attributes)
    assert data.splits == ("train", "val", "test")
    assert data.X.shape == (rows, features)
    assert np.isfinite(data.X).all()


def test_export_of_a_download_raises(call, tmp_path):
    result = call("datasets", "export", "celeba", "-o", "f.npz", cwd=tmp_path)
    assert result.returncode == 2
    assert "compute its features with `compshift features celeba --root DIR`" in result.err
    result = call("datasets", "export", "penguins", "-o", "f.csv", cwd=tmp_path)
    assert "pass a name that ends in .npz" in result.err
