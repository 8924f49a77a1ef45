"""Cached BERT features of GLUE tasks: pickled lists of ``utils_glue.InputFeatures``, read without running their code.

A pickle can name any function, have it called, and set attributes of what it names. Here the few names that a cache
needs resolve to stand-ins that accept whole numbers only, and any other name raises an error before it is looked up.
The size of a pickle is checked before it is read. Files with torch tensors go through torch's own restricted reader.
"""

from __future__ import annotations

import importlib.util
import io
import mmap
import pickle
import re
import warnings
import zipfile
from array import array
from pathlib import Path
from typing import IO, Any

import numpy as np

from compshift._errors import InputError, an
from compshift.data.untrusted import pickle_end

FIELDS = ("input_ids", "input_mask", "segment_ids", "label_id")
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""First pickle in a file of ``torch.save`` before version 1.6; the fourth pickle holds the object."""

INTEGER_DTYPE = re.compile(r"[<>|=]?[iub][1248]")
RECORD_MODULES = ("utils_glue", "__main__", "data.utils_glue")
"""Modules that caches name as the home of ``InputFeatures``."""


class InputFeatures:
    """Stand-in for ``utils_glue.InputFeatures``: one tokenised example."""

    __slots__ = FIELDS
    input_ids: Any
    input_mask: Any
    segment_ids: Any
    label_id: Any

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or set(state) != set(FIELDS):
            raise pickle.UnpicklingError(f"an example must have the fields {', '.join(FIELDS)}")
        for name, value in state.items():
            object.__setattr__(self, name, value.values if type(value) is _Array else value)


class _Array:
    """Stand-in for a NumPy array, filled by ``__setstate__``."""

    __slots__ = ("values",)
    values: Any

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if type(dtype) is not _Dtype or type(content) is not bytes:
            raise pickle.UnpicklingError("an array must hold whole numbers")
        values = np.frombuffer(content, dtype.name).reshape(tuple(map(int, shape)), order="F" if fortran else "C")
        object.__setattr__(self, "values", values)


class _Dtype:
    """Stand-in for a NumPy dtype; integers and booleans only."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, *_: Any) -> None:
        if type(name) is not str or INTEGER_DTYPE.fullmatch(name) is None:
            raise pickle.UnpicklingError(f"an array must hold whole numbers, not {name!r}")
        object.__setattr__(self, "name", name)

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            object.__setattr__(self, "name", state[1] + self.name.lstrip("<>|="))


class _Function:
    """Base of the stand-ins for functions: a pickle may call them but not set their attributes."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("functions have no state")


class _NewArray(_Function):
    """Stand-in for ``numpy.core.multiarray._reconstruct``."""

    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


class _NewDtype(_Function):
    """Stand-in for ``numpy.dtype``."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> _Dtype:
        return _Dtype(*arguments)


class _Scalar(_Function):
    """Stand-in for ``numpy.core.multiarray.scalar``."""

    __slots__ = ()

    def __call__(self, dtype: Any, content: Any) -> int:
        if type(dtype) is not _Dtype or type(content) is not bytes:
            raise pickle.UnpicklingError("a label must be a whole number")
        return int(np.frombuffer(content, dtype.name)[0])


class _Bytes(_Function):
    """Stand-in for ``_codecs.encode``: old protocols store the bytes of an array as latin-1 text."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise pickle.UnpicklingError("unexpected text")
        return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    **{(module, "InputFeatures"): InputFeatures for module in RECORD_MODULES},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _NewArray() for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Scalar() for core in ("core", "_core")},
    ("numpy", "ndarray"): _Function(),
    ("numpy", "dtype"): _NewDtype(),
    ("_codecs", "encode"): _Bytes(),
}
"""Every name that a cache may refer to, as (module, name), and its stand-in."""


class _HasTensorsError(Exception):
    """The pickle refers to torch tensors, which are stored outside of it."""


class _Unpickler(pickle.Unpickler):
    """Unpickler that resolves the names in ``ADMITTED`` and raises on any other."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        super().__init__(stream, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "torch":
            raise _HasTensorsError
        if (module, name) not in ADMITTED:
            raise InputError(
                f"{str(self._path)!r} names {module}.{name}, which no feature cache needs: it was not run; "
                "download the file again from a source you trust"
            )
        return ADMITTED[module, name]

    def persistent_load(self, _: Any) -> Any:
        raise _HasTensorsError


def read_glue_cache(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read a cache: ids (n, length) int32, mask and segments (n, length) int8, label (n,) int64."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: the download is incomplete")
    try:
        features = _load(path)
    except _HasTensorsError:
        features = _load_with_torch(path)
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise almost anything
        raise InputError(f"{str(path)!r} cannot be read as a feature cache ({_reason(error)})") from None
    if type(features) is not list or not features or type(features[0]) is not InputFeatures:
        raise InputError(f"{str(path)!r} holds {an(type(features).__name__)}: a list of InputFeatures is expected")
    try:
        length = len(features[0].input_ids)
        if len(features) * length > path.stat().st_size:  # a list that is shared by many examples
            raise ValueError(f"{len(features)} examples of length {length} do not fit into the file")
        return {
            "ids": _column(features, "input_ids", (length,), np.int32),
            "mask": _column(features, "input_mask", (length,), np.int8),
            "segments": _column(features, "segment_ids", (length,), np.int8),
            "label": _column(features, "label_id", (), np.int64),
        }
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{str(path)!r}: examples must have ids, mask and segments of one length, and a label, all of them whole "
            f"numbers ({_reason(error)})"
        ) from None


def _column(features: list[Any], name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return one field of all examples as an array; text, fractions and nested lists raise a ValueError."""
    column = np.empty((len(features), *shape), dtype=dtype)
    bounds = np.iinfo(dtype)
    for row, feature in enumerate(features):
        value = getattr(feature, name)
        value = np.asarray(array("q", value) if type(value) is list else value)
        if value.shape != shape or value.dtype.kind not in "iub":
            raise ValueError(f"{name} of example {row} has type {value.dtype} and shape {value.shape}")
        if value.size and not bounds.min <= int(value.min()) <= int(value.max()) <= bounds.max:
            raise ValueError(f"{name} of example {row} is out of range")
        column[row] = value
    return column


def _load(path: Path) -> Any:
    """Return the object in a plain pickle, or in a file of ``torch.save`` in its old or new format."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(inside) != 1:
                raise InputError(f"{str(path)!r} is a zip archive without a data.pkl: it is no feature cache")
            if archive.getinfo(inside[0]).file_size > path.stat().st_size:
                raise ValueError("data.pkl is compressed, which torch never does")
            content = archive.read(inside[0])
            pickle_end(content)
            return _Unpickler(io.BytesIO(content), path).load()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        end = pickle_end(whole)
        found = _Unpickler(stream, path).load()
        if type(found) is int and found == TORCH_MAGIC:
            for _ in range(3):  # protocol version, system information, then the object
                stream.seek(end)
                end = pickle_end(whole, end)
                found = _Unpickler(stream, path).load()
        return found


def _load_with_torch(path: Path) -> Any:
    """Return the object in a file with tensors, by ``torch.load`` with ``weights_only=True``."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"{str(path)!r} holds torch tensors: install compshift[torch] to read it")
    import torch

    try:
        admitted: Any = [(InputFeatures, f"{name}.InputFeatures") for name in RECORD_MODULES]
        with torch.serialization.safe_globals(admitted), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what a damaged file might have been
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch's own message recommends weights_only=False
        raise InputError(
            f"{str(path)!r} holds more than tensors and numbers, or is damaged: it was not run; download the file "
            "again from a source you trust"
        ) from None


def _reason(error: Exception) -> str:
    """Return the message of an error in one line of at most 200 characters, or its class if it has none."""
    return " ".join(str(error).split())[:200] or type(error).__name__
