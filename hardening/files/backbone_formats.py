"""Folders of Hugging Face models: valid ones, and how they are loaded and put to work."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.nn.models import bert, resnet

import compshift as cs
from compshift.data.dataset import ImageArrays, Texts
from compshift.nn.huggingface import quiet
from hardening.files.formats import BYTES, JSON, Format


def backbone_formats(folder: Path) -> Iterator[Format]:
    """A vision model, and a text model as sentence-transformers publishes them."""
    photos = ImageArrays(np.zeros((2, 40, 30, 3), dtype=np.uint8))
    texts = Texts(np.array(["a bird", "the sea"], dtype=object))
    with quiet():
        vision, text = resnet(folder / "resnet", side=16), bert(folder / "bert", vocabulary=30522)
    for name, content in {
        "modules.json": [{"idx": 0, "type": "a.Transformer"}, {"idx": 1, "type": "a.Pooling"}],
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 16},
        "sentence_bert_config.json": {"max_seq_length": 32},
    }.items():
        (text / name).parent.mkdir(exist_ok=True)
        (text / name).write_text(json.dumps(content))
    for root, kind, samples, files in (
        (vision, "images", photos, (("config.json", JSON, 120), ("preprocessor_config.json", JSON, 120))),
        (
            text,
            "text",
            texts,
            (
                ("config.json", JSON, 120),
                ("tokenizer_config.json", JSON, 60),
                ("modules.json", JSON, 90),
                ("1_Pooling/config.json", JSON, 60),
                ("sentence_bert_config.json", JSON, 60),
            ),
        ),
    ):
        for file, damage, rounds in (*files, ("model.safetensors", BYTES, 60)):
            yield Format(
                f"backbone {root.name} {file}", root / file, _read(root, kind, samples), _problem, damage, rounds
            )


def _read(root: Path, kind: str, samples: Any) -> Callable[[], Any]:
    """Load it and embed two samples."""

    def read() -> Any:
        embedder = cs.features.Embedder(cs.nn.load_backbone(str(root), kind), device="cpu", num_workers=0)
        embedder.about()
        (found,) = embedder.embed(samples, [np.arange(2)])
        return found.features

    return read


def _problem(features: Any) -> str | None:
    return None if features.ndim == 2 and len(features) == 2 and np.isfinite(features).all() else "no features"
