import pandas as pd
import pytest

from compshift import InputError
from compshift.data import FeatureStore


@pytest.fixture
def path(tmp_path):
    frame = pd.DataFrame({"features": [[0.0], [1.0], [2.0]], "bird": list("aba"), "split": ["train", "test", "train"]})
    frame.to_parquet(tmp_path / "birds.parquet", row_group_size=1)
    return tmp_path / "birds.parquet"


def test_blocks_of_all_processes_cover_the_rows_of_a_split(path):
    store = FeatureStore(path, "train")
    assert (store.n_rows, store.n_features) == (2, 1)
    assert [(start, block.tolist()) for start, block in store.blocks(10)] == [(0, [[0.0]]), (1, [[2.0]])]
    shares = [start for rank in range(2) for start, _ in store.blocks(10, rank, 2)]
    assert sorted(shares) == [0, 1]
    assert store.frame(["bird"])["bird"].tolist() == ["a", "a"]
    assert store.frame(["bird"], every_row=True)["bird"].tolist() == ["a", "b", "a"]


def test_memory_is_a_number_of_bytes(path):
    assert FeatureStore(path).memory == 2**30
    assert FeatureStore(path, memory=1000).memory == 1000
    for memory in (0, -1, 1.5, "4G", None):
        with pytest.raises(InputError, match="memory is"):
            FeatureStore(path, memory=memory)


def test_a_file_that_changed_raises(path):
    store = FeatureStore(path)
    assert store.n_rows == 3
    pd.DataFrame({"features": [[0.0]]}).to_parquet(path)
    with pytest.raises(InputError, match="changed while it was read"):
        list(store.blocks(10))
