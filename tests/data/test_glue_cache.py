"""Pickled feature caches are read without running any code in them."""

import contextlib
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
    """Object whose pickle runs a command when the standard unpickler loads it."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("place", ["whole", "in a list", "in a feature"])
def test_a_malicious_pickle_raises_and_is_not_run(tmp_path, protocol, place):
    witness = tmp_path / "was_run"
    evil = Malicious(f"touch {witness}")
    if place == "in a feature":
        features = trees.glue_features([0])
        features[0].input_ids = evil
        write(tmp_path / "c", features, protocol)
    else:
        (tmp_path / "c").write_bytes(pickle.dumps(evil if place == "whole" else [evil], protocol=protocol))
    with pytest.raises(InputError, match=r"imports \w+\.\w+, which no feature cache needs: nothing was run"):
        read_glue_cache(tmp_path / "c")
    assert not witness.exists()
    pickle.loads(pickle.dumps(evil, protocol=protocol))
    assert witness.exists()  # the standard unpickler runs the command


@pytest.mark.parametrize("legacy", [True, False])
def test_a_malicious_file_with_tensors_raises_and_is_not_run(tmp_path, legacy):
    """A file that imports torch is read by torch, which must reject it as well."""
    torch = pytest.importorskip("torch")
    witness = tmp_path / "was_run"
    path = tmp_path / "c"
    torch.save([torch.zeros(2), Malicious(f"touch {witness}")], path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(InputError, match="contains more than tensors and numbers"):
        read_glue_cache(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "name",
    [("builtins", "eval"), ("builtins", "getattr"), ("numpy", "load"), ("utils_glue", "os"), ("_codecs", "lookup")],
)
def test_no_other_name_is_resolved(tmp_path, name):
    (tmp_path / "c").write_bytes(f"c{name[0]}\n{name[1]}\n.".encode())
    with pytest.raises(InputError, match=f"imports {name[0]}.{name[1]}"):
        read_glue_cache(tmp_path / "c")


def test_other_content_raises(tmp_path):
    path = tmp_path / "c"
    for content, message in [
        (b"", "cannot be read as a feature cache"),
        (b"no pickle at all", "cannot be read as a feature cache"),
        (pickle.dumps({"a": 1}), "contains a dict, not a list of InputFeatures"),
        (pickle.dumps([]), "contains a list, not"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_glue_cache(path)
    with pytest.raises(InputError, match="there is no file"):
        read_glue_cache(tmp_path / "nothing")
    uneven = trees.glue_features([0, 1])
    uneven[1].input_ids = [1, 2]
    with pytest.raises(InputError, match="of the same length"):
        read_glue_cache(write(path, uneven))
    incomplete = trees.glue_features([0])
    del incomplete[0].segment_ids
    with pytest.raises(InputError, match="an example must have the fields"):
        read_glue_cache(write(path, incomplete))
    worded = trees.glue_features(["yes"])
    with pytest.raises(InputError, match="all of them integers"):
        read_glue_cache(write(path, worded))


def test_numpy_labels(tmp_path):
    features = trees.glue_features([np.int64(2), np.int64(0), np.int64(1)])
    check(read_glue_cache(write(tmp_path / "c", features)))


def opcodes(*parts):
    """Return a pickle of protocol 2 with the given opcodes."""
    return b"\x80\x02" + b"".join(parts) + b"."


NDARRAY, DTYPE, RECORD = b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"cutils_glue\nInputFeatures\n"
OBJECTS = b"X\x01\x00\x00\x00O"


@pytest.mark.parametrize(
    "content",
    [
        opcodes(NDARRAY, b"(K\x01\x85", OBJECTS, b"C\x08AAAAAAAAtR"),  # an array of pointers that the file defines
        opcodes(DTYPE, b"(", OBJECTS, b"\x89\x88tR"),  # the dtype of an object array
        opcodes(RECORD, b"N}X\x08\x00\x00\x00label_idK\x07s\x86b"),  # sets an attribute of the class
        opcodes(b"c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__K\x07\x85s\x86b"),  # sets an attribute of a function
        opcodes(RECORD, b")\x81}X\x09\x00\x00\x00__class__K\x07sb"),  # an unknown field
        b"PK\x03\x04 no archive",
    ],
)
def test_crafted_pickles_change_nothing(tmp_path, content):
    path = tmp_path / "c"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_glue_cache(path)
    check(read_glue_cache(write(path, trees.glue_features([2, 0, 1]))))


@pytest.mark.parametrize("suffix", ["list", "array"])
def test_damaged_caches_raise_nothing_but_input_errors(tmp_path, suffix):
    rng = np.random.default_rng(0)
    whole = write(tmp_path / "c", trees.glue_features([0, 1], length=8, wrap=list if suffix == "list" else np.array))
    content = whole.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(len(content), size=rng.integers(1, 4)):
            damaged[position] = rng.integers(256)
        whole.write_bytes(bytes(damaged))
        with contextlib.suppress(InputError):  # some damage only changes numbers, which cannot be detected
            read_glue_cache(whole)


@pytest.mark.parametrize("dtype", [float, object, "U3", "datetime64[s]"])
def test_arrays_that_do_not_contain_integers_raise(tmp_path, dtype):
    features = trees.glue_features([0], length=4, wrap=lambda values: np.array(values).astype(dtype))
    with pytest.raises(InputError, match="an array must contain integers, not"):
        read_glue_cache(write(tmp_path / "c", features))


def test_lists_that_are_shared_by_many_examples_raise(tmp_path):
    features = trees.glue_features([0], length=10)
    for _ in range(12):
        features[0].input_ids = [features[0].input_ids] * 10
    (tmp_path / "c").write_bytes(trees.pickled(features, lambda found: pickle.dumps(found, protocol=2)))
    with pytest.raises(InputError, match="all of them integers"):
        read_glue_cache(tmp_path / "c")
    features = trees.glue_features([0], length=3000) * 3000
    (tmp_path / "c").write_bytes(trees.pickled(features, lambda found: pickle.dumps(found, protocol=2)))
    with pytest.raises(InputError, match="3000 examples of length 3000 do not fit into the file"):
        read_glue_cache(tmp_path / "c")
