"""Pickled feature caches: read where they are what they should be, and never run."""

import os
import pickle

import numpy as np
import pytest

from compshift import InputError
from compshift.data.glue_cache import read_glue_cache
from tests.data import trees


def write(path, objects, protocol=2):
    path.write_bytes(trees.pickled(objects, lambda found: pickle.dumps(found, protocol=protocol)))
    return path


def check(cache, n=3):
    assert cache["ids"].shape == (n, 128)
    assert cache["ids"].dtype == np.int32
    assert cache["ids"][:, 1].tolist() == [1000 + row for row in range(n)]
    assert cache["mask"].sum(axis=1).tolist() == [3] * n
    assert cache["segments"][0, :3].tolist() == [0, 1, 1]
    assert cache["label"].tolist() == [2, 0, 1][:n]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles(tmp_path, protocol):
    check(read_glue_cache(write(tmp_path / "c", trees.glue_features([2, 0, 1]), protocol)))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_numpy_arrays(tmp_path, protocol):
    features = trees.glue_features([2, 0, 1], wrap=np.array)
    check(read_glue_cache(write(tmp_path / "c", features, protocol)))


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("tensors", [True, False])
def test_files_that_torch_wrote(tmp_path, legacy, tensors):
    torch = pytest.importorskip("torch")
    features = trees.glue_features([2, 0, 1], wrap=torch.tensor if tensors else list)
    path = tmp_path / "c"
    trees.pickled(features, lambda found: torch.save(found, path, _use_new_zipfile_serialization=not legacy))
    check(read_glue_cache(path))


class Malicious:
    """An object whose pickle runs a command when it is loaded the ordinary way."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("place", ["whole", "in a list", "in a feature"])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol, place):
    witness = tmp_path / "was_run"
    evil = Malicious(f"touch {witness}")
    if place == "in a feature":
        features = trees.glue_features([0])
        features[0].input_ids = evil
        write(tmp_path / "c", features, protocol)
    else:
        (tmp_path / "c").write_bytes(pickle.dumps(evil if place == "whole" else [evil], protocol=protocol))
    with pytest.raises(InputError, match=r"names \w+\.\w+, which no feature cache needs: it was not run"):
        read_glue_cache(tmp_path / "c")
    assert not witness.exists()
    pickle.loads(pickle.dumps(evil, protocol=protocol))
    assert witness.exists()  # the attack works on a reader without care


@pytest.mark.parametrize("legacy", [True, False])
def test_a_malicious_file_with_tensors_is_refused_and_not_run(tmp_path, legacy):
    """The mention of torch hands the file to torch's reader, which has to refuse it as well."""
    torch = pytest.importorskip("torch")
    witness = tmp_path / "was_run"
    path = tmp_path / "c"
    torch.save([torch.zeros(2), Malicious(f"touch {witness}")], path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(InputError, match="refused by torch's reader"):
        read_glue_cache(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "name",
    [("builtins", "eval"), ("builtins", "getattr"), ("numpy", "load"), ("utils_glue", "os"), ("_codecs", "lookup")],
)
def test_no_other_name_is_resolved(tmp_path, name):
    (tmp_path / "c").write_bytes(f"c{name[0]}\n{name[1]}\n.".encode())
    with pytest.raises(InputError, match=f"names {name[0]}.{name[1]}"):
        read_glue_cache(tmp_path / "c")


def test_other_content(tmp_path):
    path = tmp_path / "c"
    for content, message in [
        (b"", "cannot be read as a feature cache"),
        (b"no pickle at all", "cannot be read as a feature cache"),
        (pickle.dumps({"a": 1}), "holds a dict: a list of InputFeatures is expected"),
        (pickle.dumps([]), "holds a list"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_glue_cache(path)
    with pytest.raises(InputError, match="there is no file"):
        read_glue_cache(tmp_path / "nothing")
    uneven = trees.glue_features([0, 1])
    uneven[1].input_ids = [1, 2]
    with pytest.raises(InputError, match="lack a field or differ in length"):
        read_glue_cache(write(path, uneven))
    incomplete = trees.glue_features([0])
    del incomplete[0].segment_ids
    with pytest.raises(InputError, match="lack a field or differ in length"):
        read_glue_cache(write(path, incomplete))
    worded = trees.glue_features(["yes"])
    with pytest.raises(InputError, match="must be whole numbers"):
        read_glue_cache(write(path, worded))
