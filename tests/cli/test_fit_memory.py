"""``compshift fit --memory``: features that are read in blocks."""

import json

import numpy as np
import pytest

from tests.crm.stores import sightings, write_store

FIT = ("fit", "birds", "--target", "bird", "--attributes", "place", "--prior", "hull", "-o", "m.safetensors")


@pytest.fixture
def folder(tmp_path):
    X, bird, place = sightings(n=400)
    write_store(tmp_path / "birds", X, bird, place, split=np.where(np.arange(400) % 4 == 0, "test", "train"))
    return tmp_path


def test_a_streamed_fit_equals_a_fit_in_memory(folder, call):
    found = [json.loads(call(*FIT, *more, "--json", cwd=folder).out) for more in ((), ("--memory", "100M"))]
    for name in ("rows", "features", "seen_groups", "extrapolated_groups", "converged"):
        assert found[0][name] == found[1][name]
    assert found[1]["rows"] == 300
    sizes = [one["smallest_extrapolated_effective_sample_size"] for one in found]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-4)
    assert json.loads(call(*FIT, "--memory", "1.5GB", "--split", "all", "--json", cwd=folder).out)["rows"] == 400


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--memory", "much"), "--memory is 'much': pass a size such as 500M or 2G"),
        (("--memory", "1"), "--memory is '1', less than a megabyte"),
        (
            ("--memory", "1G", "--alpha", "auto"),
            "first choose the settings without --memory, on rows that fit in memory",
        ),
        (("--memory", "1G", "--split", "val"), "has no rows of the split 'val': use one of 'test', 'train'"),
        (
            ("--memory", "1G", "--anchor", "gaussian"),
            "--memory cannot be used with --anchor gaussian, which needs all rows",
        ),
    ],
)
def test_bad_input_is_one_sentence(folder, call, more, message):
    result = call(*FIT, *more, cwd=folder)
    assert result.returncode == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (folder / "m.safetensors").exists()


def test_files_of_other_formats_raise(folder, call):
    np.savez(folder / "x.npz", X=np.zeros((2, 1)))
    result = call("fit", "x.npz", "--target", "bird", "-o", "m.safetensors", "--memory", "1G", cwd=folder)
    assert "--memory cannot be used with 'x.npz', which is not Parquet" in result.err
