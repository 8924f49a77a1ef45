"""Data sets of a benchmark: digests, order of attributes, downloads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compshift import InputError
from compshift.bench.plan import make_plan
from compshift.bench.sources import DataSource, SharedData, data_digest, mapped_data, named_source
from compshift.data import benchmark
from tests.bench.small import birds
from tests.data.trees import waterbirds


def test_the_digest_depends_on_content_and_not_on_the_path(tmp_path):
    first, again = birds(tmp_path / "a.npz"), birds(tmp_path / "b.npz")
    other = birds(tmp_path / "c.npz", seed=1)
    assert first.digest() == again.digest() != other.digest()
    data = first.load()
    for changed in (
        replace(data, samples=data.samples + 1e-9),
        replace(data, codes=data.codes[::-1].copy()),
        replace(data, split=(data.split + 1) % 3),
    ):
        assert data_digest(changed) != first.digest()
    bundled = DataSource("gaussian2d", "gaussian2d")
    shifted = replace(bundled.load(), samples=bundled.load().samples + 1e-9)  # rounding on another machine
    assert data_digest(shifted, samples=False) == bundled.digest()


def test_the_class_comes_first(tmp_path):
    source = replace(birds(tmp_path / "birds.npz"), target="place")
    assert source.load().space.names == ("place", "bird")
    assert make_plan([source], ["erm"], ["sand,land"]).units[0].dropped == ((2, 0),)


def test_labels_of_digits_need_no_features():
    source = DataSource("digits-backgrounds", "digits-backgrounds")
    assert source.labels().kind == "images"
    assert benchmark("digits-backgrounds").bundled


def test_a_download_is_read_from_the_root_or_a_subfolder_named_after_it(tmp_path):
    """The error about a damaged download names the file that is wrong."""
    waterbirds(tmp_path / "waterbirds", "wilds")
    assert named_source("waterbirds", tmp_path, features=True).root == str(tmp_path / "waterbirds")
    assert named_source("waterbirds", tmp_path / "waterbirds", features=True).root == str(tmp_path / "waterbirds")
    with pytest.raises(InputError, match="celeba was not found below"):
        named_source("celeba", tmp_path, features=True)
    waterbirds(tmp_path, "wilds")
    table = next(tmp_path.glob("waterbirds_v1.0/metadata.csv"))
    table.write_text(table.read_text().replace(",1,", ",7,", 1))
    for folder in tmp_path.glob("waterbirds/*"):
        folder.rename(folder.with_name("moved"))
    with pytest.raises(InputError, match=r"metadata\.csv"):
        named_source("waterbirds", tmp_path, features=True)


def test_shared_data_are_written_once_mapped_and_removed(tmp_path):
    source = birds(tmp_path / "birds.npz")
    with SharedData() as shared:
        assert source not in shared
        path = shared.path(source, source.digest())
        assert source in shared
        assert shared.path(source, source.digest()) == path
        found, expected = mapped_data(path), source.load()
        assert isinstance(found.X.base, np.memmap)
        assert not found.X.flags.writeable
        np.testing.assert_array_equal(found.X, expected.X)
        np.testing.assert_array_equal(found.codes, expected.codes)
        assert data_digest(found) == source.digest()
    assert not Path(path).exists()


def test_workers_load_data_that_cannot_be_shared(tmp_path):
    source = birds(tmp_path / "birds.npz")
    waterbirds(tmp_path / "waterbirds", "wilds")
    with SharedData() as shared:
        assert shared.path(source, "another digest") is None  # the worker says that the data have changed
        missing = replace(source, path=str(tmp_path / "missing.npz"))
        assert shared.path(missing, source.digest()) is None
        named = named_source("waterbirds", tmp_path, features=False)
        assert shared.path(named, named.digest()) is None
