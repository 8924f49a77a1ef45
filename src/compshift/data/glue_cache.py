"""Walk over a pickle without building anything, so that one that would fill the memory is refused before it does.

A reader of pickles makes room for whatever number an instruction names: thirteen bytes are enough to have it take many
gigabytes. In a pickle that a program wrote, no text is longer than what is left of the file, and no more things are
remembered than there are bytes.

Cached BERT features of GLUE tasks: pickled lists of ``utils_glue.InputFeatures``, read without running their code.

A pickle can name any function and have it called, and can set attributes of what it names. So nothing real is ever
handed to it: the few names that a cache needs resolve to stand-ins that accept whole numbers and nothing else; every
other name is refused before it is looked up. A pickle that would fill the memory is refused before it is read. Files
with torch tensors in them go through torch's own restricted reader.
"""

from __future__ import annotations

import importlib.util
import io
import mmap
import pickle
import pickletools
import re
import warnings
import zipfile
from array import array
from pathlib import Path
from typing import IO, Any

import numpy as np

from compshift._errors import InputError, an

REMEMBER, REMEMBER_TEXT = ord("r"), ord("p")
STOP = ord(".")
REFUSED = ("EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "LONG_BINPUT", "PUT", "STOP")
"""Instructions that no cache has, or that are looked at one by one."""

LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""How many bytes tell the length of what follows."""


def _tables() -> tuple[re.Pattern[bytes], dict[int, int]]:
    """A pattern of instructions that can be passed over, and those whose length is told by their first bytes."""
    fixed: dict[int, bytes] = {}
    lines: dict[int, bytes] = {}
    counted = {}
    for instruction in pickletools.opcodes:
        code, argument = ord(instruction.code), instruction.arg
        if instruction.name in REFUSED:
            continue
        size = 0 if argument is None else argument.n
        if size >= 0:
            fixed[size] = fixed.get(size, b"") + bytes([code])
        elif size == pickletools.UP_TO_NEWLINE:
            number = 2 if argument is not None and "pair" in argument.name else 1
            lines[number] = lines.get(number, b"") + bytes([code])
        else:
            counted[code] = LENGTHS[size]
    parts = [b"[%s].{%d}" % (re.escape(codes), size) for size, codes in fixed.items()]
    parts += [b"[%s](?:[^\n]*\n){%d}" % (re.escape(codes), number) for number, codes in lines.items()]
    return re.compile(b"(?:%s)*+" % b"|".join(parts), re.DOTALL), counted


PASSED_OVER, COUNTED = _tables()


def pickle_end(content: bytes | mmap.mmap, start: int = 0) -> int:
    """Where the pickle that begins at ``start`` ends; a ValueError if it is cut off, or asks for too much memory."""
    size = len(content)
    position = start
    while True:
        run = PASSED_OVER.match(content, position)
        position = position if run is None else run.end()
        if position >= size:
            raise ValueError("it is cut off")
        code = content[position]
        position += 1
        if code == STOP:
            return position
        if code in COUNTED:
            width = COUNTED[code]
            position += width + int.from_bytes(content[position : position + width], "little")
        elif code == REMEMBER:
            _check_number(int.from_bytes(content[position : position + 4], "little"), size)
            position += 4
        elif code == REMEMBER_TEXT:
            end = content.find(b"\n", position, position + 20)
            _check_number(int(content[position:end]) if end >= 0 else size, size)
            position = end + 1
        else:
            raise ValueError(f"it has the instruction {code}, which no cache needs")


def _check_number(number: int, size: int) -> None:
    if not 0 <= number < size:
        raise ValueError(f"it has {size} bytes and remembers {number + 1} things: it was made to fill the memory")


FIELDS = ("input_ids", "input_mask", "segment_ids", "label_id")
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""First of the pickles in a file that torch wrote before version 1.6; the fourth holds the object."""

WHOLE_NUMBERS = re.compile(r"[<>|=]?[iub][1248]")
RECORD_MODULES = ("utils_glue", "__main__", "data.utils_glue")


class InputFeatures:
    """One tokenised example."""

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
    """An array that a pickle fills in."""

    __slots__ = ("values",)
    values: Any

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if type(dtype) is not _Dtype or type(content) is not bytes:
            raise pickle.UnpicklingError("an array must hold whole numbers")
        values = np.frombuffer(content, dtype.name).reshape(tuple(map(int, shape)), order="F" if fortran else "C")
        object.__setattr__(self, "values", values)


class _Dtype:
    """The type of an array's numbers."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, *_: Any) -> None:
        if type(name) is not str or WHOLE_NUMBERS.fullmatch(name) is None:
            raise pickle.UnpicklingError(f"an array must hold whole numbers, not {name!r}")
        object.__setattr__(self, "name", name)

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            object.__setattr__(self, "name", state[1] + self.name.lstrip("<>|="))


class _Function:
    """A function that a pickle may call; it has no attributes to be set."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("functions have no state")


class _NewArray(_Function):
    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


class _NewDtype(_Function):
    __slots__ = ()

    def __call__(self, *arguments: Any) -> _Dtype:
        return _Dtype(*arguments)


class _Scalar(_Function):
    __slots__ = ()

    def __call__(self, dtype: Any, content: Any) -> int:
        if type(dtype) is not _Dtype or type(content) is not bytes:
            raise pickle.UnpicklingError("a label must be a whole number")
        return int(np.frombuffer(content, dtype.name)[0])


class _Bytes(_Function):
    """How old pickles store the bytes of an array: as text."""

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


class _HasTensorsError(Exception):
    """The pickle refers to torch storages outside of it."""


class _Unpickler(pickle.Unpickler):
    """Resolves the admitted names and nothing else."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        super().__init__(stream, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
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
    except Exception as error:  # a damaged file makes the readers of pickles and archives fail in every way there is
        raise InputError(f"{str(path)!r} cannot be read as a feature cache ({_reason(error)})") from None
    if type(features) is not list or not features or type(features[0]) is not InputFeatures:
        raise InputError(f"{str(path)!r} holds {an(type(features).__name__)}: a list of InputFeatures is expected")
    try:
        length = len(features[0].input_ids)
        if (
            len(features) * length > path.stat().st_size
        ):  # every id takes a byte or more, unless one list stands for many
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
    """One field of every example, checked one by one: text, fractions and nested lists are not whole numbers."""
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
    """The object in a plain pickle, or in a file of torch.save, old or new."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(inside) != 1:
                raise InputError(f"{str(path)!r} is a zip archive without a data.pkl: it is no feature cache")
            if archive.getinfo(inside[0]).file_size > path.stat().st_size:
                raise ValueError("data.pkl is packed, which torch never does")
            content = archive.read(inside[0])
            pickle_end(content)
            return _Unpickler(io.BytesIO(content), path).load()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        end = pickle_end(whole)
        found = _Unpickler(stream, path).load()
        if type(found) is int and found == TORCH_MAGIC:
            for _ in range(3):  # the protocol's version, the writer's system, then the object
                stream.seek(end)
                end = pickle_end(whole, end)
                found = _Unpickler(stream, path).load()
        return found


def _load_with_torch(path: Path) -> Any:
    """The same through torch, for files with tensors; it too admits nothing beyond tensors and the record."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"{str(path)!r} holds torch tensors: install compshift[torch] to read it")
    import torch

    try:
        admitted: Any = [(InputFeatures, f"{name}.InputFeatures") for name in RECORD_MODULES]
        with torch.serialization.safe_globals(admitted), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a damaged file might have been
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # as above; torch's own sentences advise to load the file without care
        raise InputError(
            f"{str(path)!r} holds more than tensors and numbers, or is damaged: it was not run; get the file anew "
            "from a source you trust"
        ) from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
