"""Read cached BERT features of GLUE tasks, pickled lists of ``utils_glue.InputFeatures``, without running their code.

Loading a pickle can import and call any function, and set attributes of any object it imports. Here, the few names that
a cache needs are replaced by stand-ins that accept integers only; any other name raises an error before it is imported.
The size of a pickle is checked before it is read. Files with torch tensors are read by ``torch.load`` with
``weights_only=True``.
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
"""Fields of ``InputFeatures``."""

TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""Integer in the first of the four pickles that ``torch.save`` wrote before version 1.6; the fourth is the object."""

INTEGER_DTYPE = re.compile(r"[<>|=]?[iub][1248]")
"""Matches the name of a NumPy dtype of integers or booleans."""

RECORD_MODULES = ("utils_glue", "__main__", "data.utils_glue")
"""Modules from which caches import ``InputFeatures``."""


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
            raise pickle.UnpicklingError("an array must contain integers")
        values = np.frombuffer(content, dtype.name).reshape(tuple(map(int, shape)), order="F" if fortran else "C")
        object.__setattr__(self, "values", values)


class _Dtype:
    """Stand-in for a NumPy dtype that accepts integers and booleans only."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, *_: Any) -> None:
        if type(name) is not str or INTEGER_DTYPE.fullmatch(name) is None:
            raise pickle.UnpicklingError(f"an array must contain integers, not {name!r}")
        object.__setattr__(self, "name", name)

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            object.__setattr__(self, "name", state[1] + self.name.lstrip("<>|="))


class _Function:
    """Base class of the stand-ins for functions: a pickle can call them but not set their attributes."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a pickle must not set attributes of a function")


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
            raise pickle.UnpicklingError("a label must be an integer")
        return int(np.frombuffer(content, dtype.name)[0])


class _Bytes(_Function):
    """Stand-in for ``_codecs.encode``: old protocols store the bytes of an array as latin-1 text."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise pickle.UnpicklingError("only latin-1 text can be converted to bytes")
        return text.encode("latin1")


ALLOWED_NAMES: dict[tuple[str, str], Any] = {
    **{(module, "InputFeatures"): InputFeatures for module in RECORD_MODULES},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _NewArray() for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Scalar() for core in ("core", "_core")},
    ("numpy", "ndarray"): _Function(),
    ("numpy", "dtype"): _NewDtype(),
    ("_codecs", "encode"): _Bytes(),
}
"""Stand-in for every (module, name) that a cache may import."""


class _HasTensorsError(Exception):
    """Raised when a pickle refers to torch tensors, which are stored outside the pickle."""


class _Unpickler(pickle.Unpickler):
    """Unpickler that resolves the names in ``ALLOWED_NAMES`` and raises an InputError for any other name."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        super().__init__(stream, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "torch":
            raise _HasTensorsError
        if (module, name) not in ALLOWED_NAMES:
            raise InputError(
                f"{str(self._path)!r} imports {module}.{name}, which no feature cache needs: nothing was run; "
                "download the file again from a source you trust"
            )
        return ALLOWED_NAMES[module, name]

    def persistent_load(self, _: Any) -> Any:
        raise _HasTensorsError


def read_glue_cache(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read a cache and return the arrays ids (n, length), mask (n, length), segments (n, length) and label (n,)."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: the download is incomplete")
    try:
        features = _load(path)
    except _HasTensorsError:
        features = _load_with_torch(path)
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise almost anything
        raise InputError(
            f"{str(path)!r} cannot be read as a feature cache ({_reason(error)}): download it again"
        ) from None
    if type(features) is not list or not features or type(features[0]) is not InputFeatures:
        raise InputError(
            f"{str(path)!r} contains {an(type(features).__name__)}, not a list of InputFeatures: download it again"
        )
    try:
        length = len(features[0].input_ids)
        if len(features) * length > path.stat().st_size:  # many examples share one list
            raise ValueError(f"{len(features)} examples of length {length} do not fit into the file")
        return {
            "ids": _column(features, "input_ids", (length,), np.int32),
            "mask": _column(features, "input_mask", (length,), np.int8),
            "segments": _column(features, "segment_ids", (length,), np.int8),
            "label": _column(features, "label_id", (), np.int64),
        }
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{str(path)!r}: every example needs ids, mask and segments of the same length, and a label, all "
            f"of them integers ({_reason(error)})"
        ) from None


def _column(features: list[Any], name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return one field of all examples as an array; raise a ValueError for text, fractions and nested lists."""
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
    """Return the object in a plain pickle, or in a file that ``torch.save`` wrote in its old or new format."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(inside) != 1:
                raise InputError(
                    f"{str(path)!r} is a zip archive that does not contain exactly one data.pkl, so not a feature cache"
                )
            if archive.getinfo(inside[0]).file_size > path.stat().st_size:
                raise ValueError("data.pkl is compressed, but torch never compresses it")
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
    """Return the object in a file with tensors, read by ``torch.load`` with ``weights_only=True``."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"{str(path)!r} contains torch tensors: install compshift[torch] to read it")
    import torch

    try:
        allowed: Any = [(InputFeatures, f"{name}.InputFeatures") for name in RECORD_MODULES]
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch guesses at the format of a damaged file
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # its message is not shown, because it recommends weights_only=False
        raise InputError(
            f"{str(path)!r} contains more than tensors and numbers, or is damaged: nothing was run; download it "
            "again from a source you trust"
        ) from None


def _reason(error: Exception) -> str:
    """Return the message of an error as one line of at most 200 characters; its class name if the message is empty."""
    return " ".join(str(error).split())[:200] or type(error).__name__
