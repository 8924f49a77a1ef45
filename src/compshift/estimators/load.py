"""Read any fitted classifier that compshift saved."""

from os import PathLike
from typing import Any

from compshift._errors import InputError, listing
from compshift.estimators import model_file
from compshift.estimators.crm import CRMClassifier

KINDS: dict[str, Any] = {"CRMClassifier": CRMClassifier}


def load(path: str | PathLike[str]) -> Any:
    """The fitted classifier in a model file. Nothing in the file is ever executed."""
    kind, header, arrays = model_file.read(path)
    if kind not in KINDS:
        raise InputError(f"{str(path)!r} holds a {kind!r}: this release can load {listing(KINDS)}")
    try:
        return KINDS[kind]._from_file(header, arrays)
    except InputError as error:
        raise InputError(f"{str(path)!r} cannot be loaded: {error}") from None
