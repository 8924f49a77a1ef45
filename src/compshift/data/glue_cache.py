"""Cached BERT features of GLUE tasks: pickled lists of ``utils_glue.InputFeatures``, read without running their code.

A pickle can name any function and have it called. Here a name is resolved only if it is the feature record itself or
one of the constructors of NumPy arrays; everything else is refused before it is looked up. Files with torch tensors in
them go through torch's own restricted reader.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from compshift._errors import InputError

FIELDS = ("input_ids", "input_mask", "segment_ids", "label_id")
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""First of the pickles in a file that torch wrote before version 1.6; the fourth holds the object."""


class InputFeatures:
    """One tokenised example; the pickles fill in its fields."""

    input_ids: Any
    input_mask: Any
    segment_ids: Any
    label_id: Any


def _reconstruct() -> Callable[..., Any]:
    """NumPy's function that makes an empty array for a pickle to fill."""
    function: Callable[..., Any] = np.ndarray(0).__reduce__()[0]  # type: ignore[assignment]
    return function


ADMITTED: dict[tuple[str, str], Any] = {
    **{(module, "InputFeatures"): InputFeatures for module in ("utils_glue", "__main__", "data.utils_glue")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct() for core in ("core", "_core")},
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): dict,
}


class _HasTensorsError(Exception):
    """The pickle refers to torch storages outside of it."""


class _Unpickler(pickle.Unpickler):
    """Resolves the admitted names and nothing else."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        super().__init__(stream, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how old pickles store the bytes of an array
            return _latin1_bytes
        if module.split(".")[0] == "torch":
            raise _HasTensorsError
        if (module, name) not in ADMITTED:
            raise InputError(
                f"{str(self._path)!r} names {module}.{name}, which no feature cache needs: it was not run; get "
                "the file anew from a source you trust"
            )
        return ADMITTED[module, name]

    def persistent_load(self, _: Any) -> Any:
        raise _HasTensorsError


def _latin1_bytes(text: str, encoding: str) -> bytes:
    """Text as the bytes it stands for."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"unexpected encoding {encoding}")
    return text.encode("latin1")


def read_glue_cache(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Fields of all examples: ids (n, length) int32, mask and segments (n, length) int8, label (n,) int64."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: the download is not whole")
    try:
        features = _load(path)
    except _HasTensorsError:
        features = _load_with_torch(path)
    except InputError:
        raise
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise InputError(f"{str(path)!r} cannot be read as a feature cache ({error})") from None
    if not isinstance(features, list) or not features or not isinstance(features[0], InputFeatures):
        raise InputError(f"{str(path)!r} holds a {type(features).__name__}: a list of InputFeatures is expected")
    try:
        columns = {name: np.array([np.asarray(getattr(row, name)) for row in features]) for name in FIELDS}
    except (AttributeError, ValueError) as error:
        raise InputError(f"{str(path)!r}: its examples lack a field or differ in length ({error})") from None
    kinds = {name: (column.ndim, column.dtype.kind) for name, column in columns.items()}
    if any(kinds[name] != (2, "i") for name in FIELDS[:3]) or kinds["label_id"] != (1, "i"):
        raise InputError(f"{str(path)!r}: ids, mask and segments must be whole numbers, of one length for all examples")
    return {
        "ids": columns["input_ids"].astype(np.int32),
        "mask": columns["input_mask"].astype(np.int8),
        "segments": columns["segment_ids"].astype(np.int8),
        "label": columns["label_id"].astype(np.int64),
    }


def _load(path: Path) -> Any:
    """The object in a plain pickle, or in a file of torch.save, old or new."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(inside) != 1:
                raise InputError(f"{str(path)!r} is a zip archive without a data.pkl: it is no feature cache")
            return _Unpickler(io.BytesIO(archive.read(inside[0])), path).load()
    with path.open("rb") as stream:
        content = _Unpickler(stream, path).load()
        if content == TORCH_MAGIC:
            for _ in range(3):  # the protocol's version, the writer's system, then the object
                content = _Unpickler(stream, path).load()
        return content


def _load_with_torch(path: Path) -> Any:
    """The same through torch, for files with tensors; it too admits nothing beyond tensors and the record."""
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError(f"{str(path)!r} holds torch tensors: install compshift[torch] to read it") from None
    names = [module for module, name in ADMITTED if name == "InputFeatures"]
    try:
        with torch.serialization.safe_globals([(InputFeatures, f"{module}.InputFeatures") for module in names]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"{str(path)!r} was refused by torch's reader of tensors ({first})") from None
