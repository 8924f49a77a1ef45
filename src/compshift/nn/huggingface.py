"""Hugging Face text and vision models as backbones, from a local folder or the hub.

Models are loaded without running their code and without progress bars. A model whose files lack weights is rejected,
unless only the weights of its pooler are missing.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import torch
from torch import Tensor, nn

from compshift._errors import InputError, check_name
from compshift._files import parse_json
from compshift.data.dataset import Texts
from compshift.data.images import RESAMPLING, SIZE, Geometry, ImagePreprocessing, scaled
from compshift.nn.backbones import Backbone, LoadingError, VisionBackbone, black_image, check_dropout
from compshift.nn.pairs import PAIR_PARTS, interleaved, pair_features

Kind = TypeVar("Kind", dict[str, Any], list[Any])

MAX_LAYERS = 10_000
"""Maximum number of layers accepted in a model's configuration."""

MAX_LAYER_SIZE = 1 << 28
"""Maximum size of a layer accepted in a model's configuration."""

LAYER_KEYS = re.compile(r"layers|depth|blocks|stages")
"""Matches the keys of a configuration that hold a number of layers."""

SIZE_KEYS = re.compile(r"size|dim|heads|channels|width|positions|embeddings")
"""Matches the keys of a configuration that hold the size of a layer."""

DEFAULT_LENGTH = 256
"""Maximum number of tokens of a text if neither the model nor the caller sets it."""


@contextmanager
def offline_without_hub(name: str) -> Iterator[None]:
    """Inside this context, if the hub cannot be reached, use only files already downloaded instead of retrying."""
    from huggingface_hub import constants

    if Path(name).is_dir() or constants.HF_HUB_OFFLINE or _answers(constants.ENDPOINT):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(address: str) -> bool:
    """Return whether a server at the address answers, even with an error status or an untrusted certificate."""
    try:
        with urlopen(Request(address, method="HEAD"), timeout=5.0):
            return True
    except HTTPError:
        return True
    except (URLError, OSError, ValueError) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)  # the hub's client may accept the certificate


def load_model(name: str) -> tuple[nn.Module, Sequence[str]]:
    """Load a model in eval mode; also return the names of pooler weights that are not in its files and thus random."""
    from transformers import AutoModel

    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # makes missing weights reproducible
        config = load_config(name)
        model, info = load_part(AutoModel.from_pretrained, name, config=config, output_loading_info=True)
    missing = sorted(info["missing_keys"])
    if any("pooler" not in key for key in missing):
        first = next(key for key in missing if "pooler" not in key)
        raise InputError(
            f"the files of the model {name!r} lack {len(missing)} weights, such as {first!r}, which would be random: "
            "choose a model with all its weights"
        )
    return model.eval(), missing


def load_config(name: str) -> Any:
    """Load the configuration of a model, and check the number and size of its layers."""
    from transformers import AutoConfig

    config = load_part(AutoConfig.from_pretrained, name)
    load_part(lambda _, **__: _check_extent(config.to_dict()), name)
    return config


def _check_extent(settings: Any, key: str = "") -> None:
    """Check that a configuration has at most ``MAX_LAYERS`` layers, and none larger than ``MAX_LAYER_SIZE``."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            _check_extent(value, str(name))
    elif isinstance(settings, list | tuple):
        for value in settings:
            _check_extent(value, key)
    elif isinstance(settings, int | float):
        most = MAX_LAYERS if LAYER_KEYS.search(key) else MAX_LAYER_SIZE if SIZE_KEYS.search(key) else None
        if most is not None and settings > most:
            raise ValueError(f"its configuration has {key} = {settings:g}, more than {most:,}")


def load_part(load: Callable[..., Any], name: str, **options: Any) -> Any:
    """Call a loading function of transformers without running a model's code; turn any error into a LoadingError."""
    try:
        return load(name, trust_remote_code=False, **options)
    except Exception as error:  # the loaders raise errors of many types on incomplete folders
        reason = " ".join(str(error).split())
        if isinstance(error, pickle.UnpicklingError):  # torch's message recommends running the pickle
            reason = "its weights are a pickle with more than tensors, which was not run"
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        remedy = "pass the folder of a complete model, or the name of a model on the hub"
        raise LoadingError(f"the backbone {name!r} cannot be loaded ({reason[:300]}): {remedy}") from None


def small_file(name: str, file: str, kind: type[Kind]) -> Kind | None:
    """Read a JSON file of a model, from its folder or the hub; return None if it cannot be found.

    It cannot be found if the model lacks it, or if the hub cannot be reached or denies access.
    """
    from transformers.utils.hub import cached_file

    ignored = ("missing_entries", "connection_errors", "gated_repo")
    path = cached_file(name, file, **{f"_raise_exceptions_for_{error}": False for error in ignored})
    if path is None:
        return None
    which, remedy = f"the file {file!r} of the model {name!r}", "download the model again"
    try:
        content = parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise LoadingError(f"{which} is not valid JSON ({error}): {remedy}") from None
    if not isinstance(content, kind):
        raise LoadingError(f"{which} must hold a JSON {'object' if kind is dict else 'list'}: {remedy}")
    return content


def config_digest(model: nn.Module) -> str:
    """Return a digest of a model's configuration, without the fields that do not change its outputs."""
    content = json.loads(model.config.to_json_string(use_diff=False))  # type: ignore[union-attr, operator]
    for volatile in ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"):
        content.pop(volatile, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and messages that transformers prints while loading."""
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


class TextBackbone(Backbone):
    """Backbone for texts: maps token ids (n, length) to features (n, out_features). It starts in eval mode."""

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
        pairs: str = "joint",
        dropout: float = 0.0,
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
        self.pairs = pairs
        self.dropout = check_dropout(dropout)
        parts = PAIR_PARTS if pairs == "separate" else 1
        self.out_features = parts * int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Pooled features of texts (n, length), or of pairs of texts (n, 2, length); in train mode, after dropout.

        If ``normalised``, the features of each text are scaled to norm 1.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if input_ids.ndim == 3:
            flat = {name: tensor.flatten(0, 1) for name, tensor in inputs.items()}  # (2 n, length)
            features = pair_features(self._pooled(flat))
        else:
            features = self._pooled(inputs)
        return nn.functional.dropout(features, self.dropout, self.training) if self.dropout else features

    def _pooled(self, inputs: dict[str, Tensor]) -> Tensor:
        """Pooled outputs of the model, (n, hidden size), scaled to norm 1 if ``normalised``."""
        output, attention_mask = self.model(**inputs), inputs["attention_mask"]
        if self.pooling == "pooler":
            features = output.pooler_output
        elif self.pooling == "cls":
            features = output.last_hidden_state[:, 0]
        else:
            weight = attention_mask.unsqueeze(-1).to(output.last_hidden_state.dtype)  # (n, length, 1)
            features = (output.last_hidden_state * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)
        return nn.functional.normalize(features, dim=1) if self.normalised else features

    def tokenise(self, texts: Texts) -> dict[str, Tensor]:
        """Convert texts to the arguments of ``forward``, padded to the longest text."""
        if self.pairs == "separate" and texts.second is not None:
            single = self.tokenise(interleaved(texts))
            return {key: tensor.view(len(texts), 2, -1) for key, tensor in single.items()}
        pairs = [] if texts.second is None else [texts.second.tolist()]
        encoded = self.tokeniser(
            texts.first.tolist(), *pairs, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        return {key: encoded[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in encoded}

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids in the vocabulary."""
        return int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]

    def settings(self) -> dict[str, Any]:
        """Pooling, tokeniser and configuration, as JSON values."""
        return {
            "pooling": self.pooling,
            "normalised": self.normalised,
            "max_length": self.max_length,
            "tokeniser": _tokeniser_digest(self.tokeniser),
            "model": config_digest(self.model),
            **({"pairs": self.pairs} if self.pairs == "separate" else {}),  # else absent, as in earlier releases
            **({"dropout": self.dropout} if self.dropout else {}),  # else absent, as in earlier releases
        }


def text_backbone(
    name: str,
    *,
    max_length: int | None = None,
    default_length: int | None = None,
    pooling: str = "auto",
    pairs: str | None = None,
    dropout: float = 0.0,
    label: str | None = None,
) -> TextBackbone:
    """Load a text model.

    The pooling ``auto`` is the pooling that a sentence-transformers model records, and the mean over tokens for other
    models. ``pairs`` is the parameter of ``load_backbone``. ``label`` is the backbone's name, by default ``name``.
    """
    check_name("pooling", pooling, ("auto", "mean", "cls", "pooler"))
    if pairs is not None:
        check_name("pairs", pairs, ("auto", "joint"))
    from transformers import AutoTokenizer

    with quiet():
        tokeniser = load_part(AutoTokenizer.from_pretrained, name)
    model, missing = load_model(name)
    config = model.config
    model = getattr(model, "text_model", model)
    recorded = _sentence_settings(name) if pooling == "auto" else {}
    chosen = recorded.get("pooling", "mean") if pooling == "auto" else pooling
    encodes_sentences = bool(recorded) if pooling == "auto" else small_file(name, "modules.json", list) is not None
    encoding = {"auto": "separate", None: "none"}.get(pairs, "joint") if encodes_sentences else "joint"
    if chosen == "pooler" and any("pooler" in key for key in missing):
        raise InputError(f"the model {name!r} comes without weights for its pooler: use the pooling 'mean' or 'cls'")
    if tokeniser.pad_token is None:
        tokeniser.pad_token = tokeniser.eos_token
    longest = _token_limit(model)
    length = max_length or default_length or recorded.get("max_length") or DEFAULT_LENGTH
    if max_length is not None and max_length > longest:
        raise InputError(
            f"max_length is {max_length}, but the model {name!r} takes at most {longest} tokens: pass a smaller number"
        )
    return TextBackbone(
        label or name,
        model,
        tokeniser,
        source_config=config,
        pooling=chosen,
        normalised=bool(recorded.get("normalised")),
        max_length=min(length, longest),
        pairs=encoding,
        dropout=dropout,
    )


def _token_limit(model: nn.Module) -> int:
    """Return the maximum number of tokens that a model takes; some models number positions from ``padding_idx`` + 1."""
    positions = int(getattr(model.config, "max_position_embeddings", DEFAULT_LENGTH))
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - int(padding) - 1


def _tokeniser_digest(tokeniser: Any) -> str:
    """Return a digest of a tokeniser's vocabulary and rules."""
    backend = getattr(tokeniser, "backend_tokenizer", None)
    content = {"vocabulary": tokeniser.get_vocab()} if backend is None else json.loads(backend.to_str())
    for transient in ("truncation", "padding"):  # they depend on the last call
        content.pop(transient, None)
    content |= {"class": type(tokeniser).__name__, "special": tokeniser.special_tokens_map}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _sentence_settings(name: str) -> dict[str, Any]:
    """Return the pooling, maximum length and normalisation of a sentence-transformers model; empty for others."""
    modules = small_file(name, "modules.json", list)
    if modules is None:
        return {}
    kinds = [str(module.get("type") if isinstance(module, dict) else module).rsplit(".", 1)[-1] for module in modules]
    pooling = small_file(name, "1_Pooling/config.json", dict) or {}
    # keys of the poolings in the configuration of a sentence-transformers model
    chosen = [
        mode
        for mode, key in {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}.items()
        if pooling.get(key)
    ]
    if set(kinds) - {"Transformer", "Pooling", "Normalize"} or len(chosen) != 1:
        raise InputError(
            f"the pooling of the model {name!r} is not supported ({', '.join(kinds)}): choose the pooling 'mean' or "
            "'cls'"
        )
    length = (small_file(name, "sentence_bert_config.json", dict) or {}).get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise InputError(
            f"the model {name!r} has max_seq_length {length!r}, which is not a number of tokens: correct "
            "'sentence_bert_config.json', or choose the pooling 'mean' or 'cls'"
        )
    return {"normalised": "Normalize" in kinds, "pooling": chosen[0], "max_length": length}


class ProcessorPreprocessing:
    """Image preprocessing by the processor of a Hugging Face model."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def pixels(self, image: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Preprocessed image, (height, width, 3)."""
        values = self.processor(image, return_tensors="np")["pixel_values"][0]  # (3, h, w)
        return np.ascontiguousarray(np.moveaxis(values, 0, -1), dtype=np.float32)

    def normalise(self, pixels: Any) -> Any:
        """Return the pixels unchanged, because the method ``pixels`` has normalised them already."""
        return pixels

    def to_dict(self) -> dict[str, Any]:
        """Settings of the processor, as JSON values."""
        content: dict[str, Any] = json.loads(self.processor.to_json_string())
        return content


class PooledVision(nn.Module):
    """A vision model followed by the pooling of its output."""

    def __init__(self, model: nn.Module, pooling: str) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling

    def settings(self) -> dict[str, Any]:
        """Pooling and configuration, as JSON values."""
        return {"pooling": self.pooling, "model": config_digest(self.model)}

    def forward(self, pixel_values: Tensor) -> Tensor:
        output = self.model(pixel_values)
        if self.pooling == "pooler":
            return output.pooler_output.flatten(1)  # type: ignore[no-any-return]
        hidden = output.last_hidden_state
        if hidden.ndim == 4:  # a feature map (n, c, h, w)
            return hidden.mean(dim=(2, 3))  # type: ignore[no-any-return]
        return hidden[:, 0] if self.pooling == "cls" else hidden.mean(dim=1)  # type: ignore[no-any-return]


def vision_backbone(name: str, *, geometry: Geometry | None = None, pooling: str = "auto") -> VisionBackbone:
    """Load a vision model with its published preprocessing; ``geometry`` replaces its cropping and resizing.

    The pooling ``auto`` is the model's pooler if the files contain its weights; otherwise it is the class token of a
    transformer, or the mean of a convolutional feature map.
    """
    check_name("pooling", pooling, ("auto", "pooler", "cls", "mean"))
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
    has_pooler = pooled and not any("pooler" in key for key in missing)
    if pooling == "pooler" and not has_pooler:
        raise InputError(f"the model {name!r} comes without weights for its pooler: use the pooling 'cls' or 'mean'")
    chosen = ("pooler" if has_pooler else "cls") if pooling == "auto" else pooling
    return VisionBackbone(name, PooledVision(model, chosen), preprocessing, source_config=config)


@torch.inference_mode()
def _has_pooled_output(model: nn.Module, preprocessing: Any) -> bool:
    """Return whether the model has pooled output; raise if it does not accept preprocessed images."""
    return getattr(model(black_image(preprocessing)), "pooler_output", None) is not None


def _with_geometry(processor: Any, geometry: Geometry) -> ImagePreprocessing:
    """Return preprocessing with the processor's normalisation and image size, but another ``geometry``."""
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
