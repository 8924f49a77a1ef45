"""Hugging Face text models as backbones."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import Tensor, nn

from compshift._errors import InputError, check_name
from compshift.data.samples import Texts
from compshift.nn.backbones import Backbone
from compshift.nn.huggingface import config_digest, load_model, load_part, quiet, small_file

POOLING = ("auto", "mean", "cls", "pooler")
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
    check_name("pooling", pooling, POOLING)
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
