"""torchvision's ResNet-50 as a backbone, read from its published checkpoint file; torchvision itself is not needed.

The network is version 1.5: where a stage halves the feature map, the 3 × 3 convolution has the stride, not the 1 × 1
convolution before it as in He et al. (2015). It is built by transformers, which names the weights differently.
"""

from __future__ import annotations

import hashlib
import re
import warnings
import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compshift._errors import InputError
from compshift._files import check_path
from compshift.data.images import SIZE, CentreCrop, Geometry, ImagePreprocessing, Resize
from compshift.nn.backbones import RESNET50, VisionBackbone
from compshift.nn.huggingface import PooledVision, quiet

PUBLISHED = "0676ba61"
"""First digits of the SHA-256 of torchvision's weights ``IMAGENET1K_V1``."""

CHECKPOINT = f"resnet50-{PUBLISHED}.pth"
"""Name of the file with torchvision's weights ``IMAGENET1K_V1``, which is looked for in torch's cache."""

ADDRESS = f"https://download.pytorch.org/models/{CHECKPOINT}"
"""Address at which torchvision publishes the file ``CHECKPOINT``."""

PUBLISHED_NAME = re.compile(r"resnet50-([0-9a-f]{8})\.pth")
"""Matches the name of a published file; its digits are the first ones of the SHA-256 of the content."""

RESIZED_SIDES = {PUBLISHED: 256, "11ad3fa6": 232}
"""Pixels to which the shorter side of images is resized for ``IMAGENET1K_V1`` and ``_V2``, by SHA-256 of the file."""

MAX_CHECKPOINT_BYTES = 1 << 30
"""Maximum size of a checkpoint file; the published ones have 98 MiB."""

ARCHITECTURE: dict[str, Any] = {
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck",
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,  # True would put the stride into the 1 × 1 convolution
}
"""Configuration of ResNet-50 version 1.5 in transformers."""

LAYER_NAMES = {"convolution": "conv", "normalization": "bn"}
"""torchvision's name of each kind of layer in a block, by its name in transformers."""

SHORTCUT_NAMES = {"convolution": "downsample.0", "normalization": "downsample.1"}
"""torchvision's name of each kind of layer in a shortcut, by its name in transformers."""

COUNTER = ".num_batches_tracked"
"""Ending of the names of batch normalisation's counters; older files lack them, and no output depends on them."""


def resnet50(weights: str | PathLike[str] | None = None, geometry: Geometry | None = None) -> VisionBackbone:
    """Load ResNet-50 with torchvision's weights: 2048 features after global average pooling.

    ``weights`` is the path of a checkpoint file, by default of ``CHECKPOINT`` in torch's cache. Without a geometry,
    images are cropped and scaled as torchvision does for these weights.
    """
    from transformers import ResNetConfig, ResNetModel

    path = find_checkpoint() if weights is None else check_path(weights)
    state, digest = read_checkpoint(path)
    with quiet(), torch.random.fork_rng(devices=[]):
        model: nn.Module = ResNetModel(ResNetConfig(**ARCHITECTURE))  # type: ignore[no-untyped-call]
    load_checkpoint(model, state, path)
    side = RESIZED_SIDES.get(digest[:8], RESIZED_SIDES[PUBLISHED])
    preprocessing = ImagePreprocessing(
        geometry=(Resize(side), CentreCrop(SIZE, SIZE)) if geometry is None else geometry, resample="bilinear"
    )
    return VisionBackbone(RESNET50, PooledVision(model, "pooler"), preprocessing, source_config=model.config)


def find_checkpoint() -> Path:
    """Return the path of the checkpoint file in torch's cache."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / CHECKPOINT
    if not path.is_file():
        raise InputError(
            f"the backbone {RESNET50!r} needs torchvision's file {CHECKPOINT!r}, which is not in torch's cache "
            f"{str(path.parent)!r}: download it from {ADDRESS}, then put it there or pass its path as weights"
        )
    return path


def read_checkpoint(path: Path) -> tuple[Mapping[str, Tensor], str]:
    """Return the tensors of a checkpoint file by name, and the SHA-256 of the file; no code from the file is run."""
    digest = checkpoint_digest(path)
    try:
        _check_uncompressed(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch guesses at the format of a damaged file
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # its message is not shown, because it recommends weights_only=False
        raise InputError(
            f"{str(path)!r} is not a PyTorch checkpoint, is damaged, or holds more than tensors (nothing in it was "
            f"run): {_REMEDY}"
        ) from None
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise InputError(f"{str(path)!r} holds something other than named tensors: {_REMEDY}")
    return content, digest


def checkpoint_digest(path: Path) -> str:
    """Return the SHA-256 of a checkpoint file, after checking its size and, in a published file's name, the digits."""
    if not path.is_file():
        raise InputError(
            f"there is no file {str(path)!r}: pass the path of torchvision's file {CHECKPOINT!r} as weights; it can be "
            f"downloaded from {ADDRESS}"
        )
    if path.stat().st_size > MAX_CHECKPOINT_BYTES:
        raise InputError(f"{str(path)!r} has {path.stat().st_size:,} bytes, too many for ResNet-50: {_REMEDY}")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    published = PUBLISHED_NAME.fullmatch(path.name)
    if published is not None and not digest.startswith(published[1]):
        raise InputError(
            f"{str(path)!r} is damaged or incomplete, because its SHA-256 starts with {digest[:8]}, not with the "
            f"{published[1]} of its name: download it again, or rename it if it has other weights on purpose"
        )
    return digest


def weights_name(digest: str) -> str:
    """Return the name of weights in a benchmark's protocol: "published", or digits of their file's SHA-256."""
    return "published" if digest.startswith(PUBLISHED) else f"sha256 {digest[:16]}"


_REMEDY = f"pass torchvision's file {CHECKPOINT!r}, or the state_dict of the same network"
"""Remedy that ends the error messages about checkpoint files."""


def _check_uncompressed(path: Path) -> None:
    """Check that a zip archive is not compressed, because a small compressed file could unpack to any size."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("torch never compresses its files")


def load_checkpoint(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Copy the weights of a checkpoint into transformers' ResNet; every tensor must be used, and have the right shape.

    The classification layer and the counters of batch normalisation are left out.
    """
    named = {torchvision_name(name): tensor for name, tensor in model.state_dict().items()}
    ignored = {"fc.weight", "fc.bias", *(name for name in named if name.endswith(COUNTER))}
    for name, tensor in named.items():
        if name in ignored:
            continue
        if name not in state:
            raise InputError(f"{str(path)!r} lacks the weight {name!r} of ResNet-50: {_REMEDY}")
        given = state[name]
        if given.shape != tensor.shape:
            raise InputError(
                f"the weight {name!r} in {str(path)!r} has shape {tuple(given.shape)}, but {tuple(tensor.shape)} in "
                f"ResNet-50: {_REMEDY}"
            )
        if not given.is_floating_point() or given.layout != torch.strided or given.is_meta:
            raise InputError(f"the weight {name!r} in {str(path)!r} is not a dense tensor of real numbers: {_REMEDY}")
    for name in state:
        if name not in named and name not in ignored:
            raise InputError(f"{str(path)!r} holds the weight {name!r}, which ResNet-50 does not have: {_REMEDY}")
    with torch.no_grad():
        for name in named.keys() - ignored:
            named[name].copy_(state[name])  # the tensors of a state dict share the memory of the model


def torchvision_name(name: str) -> str:
    """Return torchvision's name of a weight of transformers' ResNet."""
    match name.split("."):
        case ["embedder", "embedder", layer, tensor]:
            return f"{LAYER_NAMES[layer]}1.{tensor}"
        case ["encoder", "stages", stage, "layers", block, "shortcut", layer, tensor]:
            return f"layer{int(stage) + 1}.{block}.{SHORTCUT_NAMES[layer]}.{tensor}"
        case ["encoder", "stages", stage, "layers", block, "layer", position, layer, tensor]:
            return f"layer{int(stage) + 1}.{block}.{LAYER_NAMES[layer]}{int(position) + 1}.{tensor}"
    raise AssertionError(f"transformers' ResNet has an unknown weight {name!r}")
