"""Parts of Hugging Face models, from a local folder or the hub: loaded quietly, and never with random weights.

Hugging Face text models as backbones.

Hugging Face vision models as backbones.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from compshift._errors import InputError, check_name
from compshift._files import parse_json
from compshift.data.dataset import Texts
from compshift.data.images import RESAMPLING, SIZE, Geometry, ImagePreprocessing, scaled
from compshift.nn.backbones import Backbone, LoadingError, VisionBackbone, black_image

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


TEXT_POOLING = ("auto", "mean", "cls", "pooler")
SENTENCE_POOLING = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
"""Ways of pooling that are known, and what a sentence-transformers folder calls them."""

DEFAULT_LENGTH = 256
"""Most tokens of a text, if neither the model nor the caller says."""


class TextBackbone(Backbone):
    """Token ids (n, length) to features (n, out_features)."""

    kind = "text"

    def __init__(
        self,
        name: str,
        model: nn.Module,
        tokeniser: Any,
        *,
        pooling: str,
        normalised: bool,
        max_length: int,
        source_config: Any = None,
    ) -> None:
        super().__init__()
        self.source_config = model.config if source_config is None else source_config
        self.name = name
        self.model = model
        self.tokeniser = tokeniser
        self.pooling = pooling
        self.normalised = normalised
        self.max_length = max_length
        self.out_features = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Pooled features, of length one if the model is used so."""
        further = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **further)
        if self.pooling == "pooler":
            features = output.pooler_output
        elif self.pooling == "cls":
            features = output.last_hidden_state[:, 0]
        else:
            weight = attention_mask.unsqueeze(-1).to(output.last_hidden_state.dtype)  # (n, length, 1)
            features = (output.last_hidden_state * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)
        return nn.functional.normalize(features, dim=1) if self.normalised else features

    def tokenise(self, texts: Texts) -> dict[str, Tensor]:
        """The arguments of ``forward`` for some texts, padded to the longest."""
        pairs = [] if texts.second is None else [texts.second.tolist()]
        encoded = self.tokeniser(
            texts.first.tolist(), *pairs, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        return {key: encoded[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in encoded}

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]

    def settings(self) -> dict[str, Any]:
        """Pooling and tokenisation."""
        return {
            "pooling": self.pooling,
            "normalised": self.normalised,
            "max_length": self.max_length,
            "tokeniser": _tokeniser_digest(self.tokeniser),
            "model": config_digest(self.model),
        }


def text_backbone(
    name: str,
    *,
    max_length: int | None = None,
    default_length: int | None = None,
    pooling: str = "auto",
    label: str | None = None,
) -> TextBackbone:
    """A text model. ``auto`` pools as a sentence-transformers folder says, and otherwise by the mean over tokens."""
    check_name("pooling", pooling, TEXT_POOLING)
    from transformers import AutoTokenizer

    with quiet():
        tokeniser = load_part(AutoTokenizer.from_pretrained, name)
    model, missing = load_model(name)
    config = model.config
    model = getattr(model, "text_model", model)
    recorded = _sentence_settings(name) if pooling == "auto" else {}
    chosen = recorded.get("pooling", "mean") if pooling == "auto" else pooling
    if chosen == "pooler" and any("pooler" in key for key in missing):
        raise InputError(f"the model {name!r} comes without weights for its pooler: use --pooling mean or cls")
    if tokeniser.pad_token is None:
        tokeniser.pad_token = tokeniser.eos_token
    longest = _longest(model)
    length = max_length or default_length or recorded.get("max_length") or DEFAULT_LENGTH
    if max_length is not None and max_length > longest:
        raise InputError(f"max_length is {max_length}, and the model {name!r} takes {longest} tokens at most")
    return TextBackbone(
        label or name,
        model,
        tokeniser,
        source_config=config,
        pooling=chosen,
        normalised=bool(recorded.get("normalised")),
        max_length=min(length, longest),
    )


def _longest(model: nn.Module) -> int:
    """Most tokens that a model takes: some count positions from after the padding's."""
    positions = int(getattr(model.config, "max_position_embeddings", DEFAULT_LENGTH))
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - int(padding) - 1


def _tokeniser_digest(tokeniser: Any) -> str:
    """A digest of a tokeniser's vocabulary and rules."""
    backend = getattr(tokeniser, "backend_tokenizer", None)
    content = {"vocabulary": tokeniser.get_vocab()} if backend is None else json.loads(backend.to_str())
    for transient in ("truncation", "padding"):  # of the last call
        content.pop(transient, None)
    content |= {"class": type(tokeniser).__name__, "special": tokeniser.special_tokens_map}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _sentence_settings(name: str) -> dict[str, Any]:
    """Pooling, length and normalisation that a sentence-transformers model was published with; nothing for others."""
    modules = small_file(name, "modules.json", list)
    if modules is None:
        return {}
    kinds = [str(module.get("type") if isinstance(module, dict) else module).rsplit(".", 1)[-1] for module in modules]
    pooling = small_file(name, "1_Pooling/config.json", dict) or {}
    chosen = [mode for mode, key in SENTENCE_POOLING.items() if pooling.get(key)]
    if set(kinds) - {"Transformer", "Pooling", "Normalize"} or len(chosen) != 1:
        raise InputError(
            f"the model {name!r} pools in a way of its own ({', '.join(kinds)}): choose one with --pooling mean or cls"
        )
    length = (small_file(name, "sentence_bert_config.json", dict) or {}).get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise InputError(
            f"the model {name!r} says max_seq_length is {length!r}, which is no number of tokens: mend "
            "'sentence_bert_config.json', or choose how to pool with --pooling mean or cls"
        )
    return {"normalised": "Normalize" in kinds, "pooling": chosen[0], "max_length": length}


VISION_POOLING = ("auto", "pooler", "cls", "mean")


class ProcessorPreprocessing:
    """A Hugging Face image processor, which gives the numbers that its network takes."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def pixels(self, image: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The prepared image, (height, width, 3)."""
        values = self.processor(image, return_tensors="np")["pixel_values"][0]  # (3, h, w)
        return np.ascontiguousarray(np.moveaxis(values, 0, -1), dtype=np.float32)

    def normalise(self, pixels: Any) -> Any:
        """Nothing is left to do."""
        return pixels

    def to_dict(self) -> dict[str, Any]:
        """The processor's settings."""
        content: dict[str, Any] = json.loads(self.processor.to_json_string())
        return content


class PooledVision(nn.Module):
    """A vision model followed by the pooling of its output."""

    def __init__(self, model: nn.Module, pooling: str) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling

    def settings(self) -> dict[str, Any]:
        """What decides about the features beside the weights."""
        return {"pooling": self.pooling, "model": config_digest(self.model)}

    def forward(self, pixel_values: Tensor) -> Tensor:
        output = self.model(pixel_values)
        if self.pooling == "pooler":
            return output.pooler_output.flatten(1)  # type: ignore[no-any-return]
        hidden = output.last_hidden_state
        if hidden.ndim == 4:  # a map (n, c, h, w)
            return hidden.mean(dim=(2, 3))  # type: ignore[no-any-return]
        return hidden[:, 0] if self.pooling == "cls" else hidden.mean(dim=1)  # type: ignore[no-any-return]


def vision_backbone(name: str, *, geometry: Geometry | None = None, pooling: str = "auto") -> VisionBackbone:
    """A vision model with the preprocessing that it was published with, or with another geometry.

    ``auto`` takes the model's own pooled output if its weights came with it, and otherwise the class token of a
    transformer or the mean of a convolutional map.
    """
    check_name("pooling", pooling, VISION_POOLING)
    from transformers import AutoImageProcessor

    with quiet():
        processor = load_part(AutoImageProcessor.from_pretrained, name)
    model, missing = load_model(name)
    config = model.config
    model = getattr(model, "vision_model", model)
    preprocessing: Any = ProcessorPreprocessing(processor)
    if geometry is not None:
        preprocessing = _with_geometry(processor, geometry)
    pooled = load_part(lambda _, **__: _has_pooled_output(model, preprocessing), name)
    own_pooler = pooled and not any("pooler" in key for key in missing)
    if pooling == "pooler" and not own_pooler:
        raise InputError(f"the model {name!r} comes without weights for its pooler: use --pooling cls or mean")
    chosen = ("pooler" if own_pooler else "cls") if pooling == "auto" else pooling
    return VisionBackbone(name, PooledVision(model, chosen), preprocessing, source_config=config)


@torch.inference_mode()
def _has_pooled_output(model: nn.Module, preprocessing: Any) -> bool:
    """Whether the model pools its output itself; any error that model and preprocessing can make shows here."""
    return getattr(model(black_image(preprocessing)), "pooler_output", None) is not None


def _with_geometry(processor: Any, geometry: Geometry) -> ImagePreprocessing:
    """The processor's colours and size with another way of cutting and scaling."""
    settings = processor.to_dict()
    size = settings.get("crop_size") or settings.get("size") or {}
    side = size.get("height") or size.get("shortest_edge") or SIZE
    resample = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
    plain = not settings.get("do_normalize", True)
    return ImagePreprocessing(
        geometry=scaled(geometry, int(side)),
        mean=(0.0,) * 3 if plain else tuple(settings["image_mean"]),
        std=(1.0,) * 3 if plain else tuple(settings["image_std"]),
        scale=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0,
        resample=resample.get(int(settings.get("resample", 2)), RESAMPLING[2]),
    )
