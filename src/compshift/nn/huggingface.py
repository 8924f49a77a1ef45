"""Parts of Hugging Face models, from a local folder or the hub: loaded quietly, and never with random weights."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from compshift._errors import InputError
from compshift._json import parse_json
from compshift.nn.backbones import LoadingError

Kind = TypeVar("Kind", dict[str, Any], list[Any])


MOST_LAYERS, LARGEST_LAYER = 10_000, 1 << 28
"""Of a model that is worth building: a configuration can ask for more than any machine would ever finish."""

LAYERS, SIZES = (
    re.compile(r"layers|depth|blocks|stages"),
    re.compile(r"size|dim|heads|channels|width|positions|embeddings"),
)


def load_model(name: str) -> tuple[nn.Module, Sequence[str]]:
    """The model, and the names of the weights that were not in its files and so are random."""
    from transformers import AutoModel

    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # weights that are not in the files are the same every time
        config = load_config(name)
        model, info = load_part(AutoModel.from_pretrained, name, config=config, output_loading_info=True)
    missing = sorted(info["missing_keys"])
    if any("pooler" not in key for key in missing):
        first = next(key for key in missing if "pooler" not in key)
        raise InputError(
            f"the model {name!r} lacks weights ({len(missing)}, the first is {first!r}): they would be random"
        )
    return model.eval(), missing


def load_config(name: str) -> Any:
    """The configuration of a model that can be built."""
    from transformers import AutoConfig

    config = load_part(AutoConfig.from_pretrained, name)
    load_part(lambda _, **__: _check_extent(config.to_dict()), name)
    return config


def _check_extent(settings: Any, key: str = "") -> None:
    """Refuse numbers of layers, and sizes of layers, that no model has."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            _check_extent(value, str(name))
    elif isinstance(settings, list | tuple):
        for value in settings:
            _check_extent(value, key)
    elif isinstance(settings, int | float):
        most = MOST_LAYERS if LAYERS.search(key) else LARGEST_LAYER if SIZES.search(key) else None
        if most is not None and settings > most:
            raise ValueError(f"its configuration has {key} = {settings:g}, and {most:,} is the most")


def load_part(load: Callable[..., Any], name: str, **options: Any) -> Any:
    """Load a part of a model, never code; the many errors that this can raise become one sentence."""
    try:
        return load(name, trust_remote_code=False, **options)
    except Exception as error:  # a folder that is no whole model makes the loaders fail in every way there is
        reason = " ".join(str(error).split())
        if isinstance(error, pickle.UnpicklingError):  # torch advises to run it after all
            reason = "its weights are a pickle that holds more than tensors; it was not run"
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        hint = "the folder is not a whole model" if Path(name).is_dir() else "no such folder, or no way to the hub"
        raise LoadingError(f"the backbone {name!r} cannot be loaded ({hint}): {reason[:300]}") from None


def small_file(name: str, file: str, kind: type[Kind]) -> Kind | None:
    """A JSON file of a model that holds an object or a list, from its folder or the hub; None if there is none."""
    from transformers.utils.hub import cached_file

    quiet = ("missing_entries", "connection_errors", "gated_repo")
    path = cached_file(name, file, **{f"_raise_exceptions_for_{reason}": False for reason in quiet})
    if path is None:
        return None
    try:
        content = parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise LoadingError(f"the file {file!r} of the model {name!r} cannot be read ({error})") from None
    if not isinstance(content, kind):
        wanted = "object" if kind is dict else "list"
        raise LoadingError(f"the file {file!r} of the model {name!r} holds no JSON {wanted}")
    return content


def config_digest(model: nn.Module) -> str:
    """A digest of the settings of a model's layers, such as their activation."""
    content = json.loads(model.config.to_json_string(use_diff=False))  # type: ignore[union-attr, operator]
    for volatile in ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"):
        content.pop(volatile, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and reports that loading prints."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
