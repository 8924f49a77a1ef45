"""Fitted models on disk: safetensors for the arrays, JSON for everything else. Reading one never runs code.

The JSON stands in the file's metadata under ``compshift``. A checksum over the JSON and the arrays tells a damaged or
edited file from a whole one.
"""

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from compshift import __version__
from compshift._errors import InputError
from compshift._files import check_path, replacing
from compshift._json import parse_json
from compshift.data.table_files import PARQUET
from compshift.data.text_tables import TEXT

FORMAT_VERSION = 1
KEY = "compshift"


class ModelFile(NamedTuple):
    """What a model file holds."""

    kind: str
    header: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]


def write(path: str | PathLike[str], kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a model file whole or not at all."""
    from safetensors.numpy import save

    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = {"format_version": FORMAT_VERSION, "kind": kind, "compshift_version": __version__, **header}
    text = _json_text(content)
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata={KEY: text, "sha256": _checksum(text, tensors)}))


def _json_text(content: Mapping[str, Any]) -> str:
    """The header as JSON, once it is known that it can be written and read again."""
    try:
        text = json.dumps(content, allow_nan=False, sort_keys=True, ensure_ascii=False)
        text.encode("utf-8")
        parse_json(text)
    except UnicodeEncodeError as error:
        odd = error.object[max(0, error.start - 20) : error.start + 1]
        raise InputError(f"the model cannot be written: {odd!r} ends in half a character; leave it out") from None
    except RecursionError:
        raise InputError("the model cannot be written as JSON: its inputs are nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the model cannot be written as JSON ({error}): use text, numbers or booleans") from None
    return text


def read(path: str | PathLike[str]) -> ModelFile:
    """Read a model file and check that it is whole and of a version this release knows."""
    from safetensors import safe_open

    path = check_path(path)
    if not path.is_file():
        raise InputError(
            f"there is no model file {str(path)!r}: pass the path that a model was saved to, or the folder of a run"
        )
    try:
        with safe_open(path, framework="numpy") as stream:
            metadata = stream.metadata() or {}
            arrays = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a mapping
    except Exception as error:  # damaged files make readers fail in every way there is
        if path.suffix in TEXT or path.suffix in PARQUET or path.suffix == ".npz":
            kind = "feature file" if path.suffix == ".npz" else "table"
            raise InputError(
                f"{str(path)!r} is a {kind}, and no model: pass a file that a model was saved to; where both are asked "
                "for, the model goes first"
            ) from None
        raise InputError(
            f"{str(path)!r} cannot be read as a model: it is damaged or another kind of file ({error})"
        ) from None
    text = metadata.get(KEY)
    if text is None:
        raise InputError(
            f"{str(path)!r} is a safetensors file but not a compshift model: pass one that compshift saved"
        )
    if metadata.get("sha256") != _checksum(text, arrays):
        raise InputError(f"{str(path)!r} was changed after it was saved (its checksum differs): save the model again")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise InputError(f"{str(path)!r} cannot be read as a model: its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise InputError(f"{str(path)!r} cannot be read as a model: its header is no JSON object")
    version = header.get("format_version")
    if type(version) is not int or version > FORMAT_VERSION:
        raise InputError(
            f"{str(path)!r} has model format {version}, written by compshift {header.get('compshift_version')}; this "
            f"release reads up to {FORMAT_VERSION}: upgrade compshift"
        )
    return ModelFile(str(header.get("kind")), header, arrays)


def _checksum(text: str, arrays: Mapping[str, Any]) -> str:
    """SHA-256 of the JSON text and of every array's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass"))
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode(errors="surrogatepass"))
        digest.update(array.tobytes())
    return digest.hexdigest()
