"""Feature extraction with a ResNet-50: what the reading, scaling and writing add to the forward pass."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import transformers
from measure import Row
from PIL import Image

from compshift import GroupSpace
from compshift.data.dataset import GroupedDataset, ImageFiles
from compshift.features.embedder import Embedder
from compshift.features.extract import extract_features
from compshift.nn.backbones import load_backbone

N_IMAGES = 192
SIZE = (500, 375)
"""Of the photographs, in pixels: what the benchmarks' images have."""


def rows() -> Iterator[Row]:
    """The share of the time that is not the backbone's, with and without a process that reads ahead."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = _photographs(folder / "photos")
        backbone = load_backbone(str(_resnet50(folder / "resnet50")), "images")
        for label, workers in (("default workers", None), ("no worker", 0)):
            embedder = Embedder(backbone, num_workers=workers)
            done = extract_features(data, embedder, folder / f"features-{workers}", shard_rows=64)
            outside = 1 - done.forward_seconds / done.seconds
            yield Row(
                f"{N_IMAGES} JPEGs of {SIZE[0]} × {SIZE[1]} by a ResNet-50, {label}: time outside the backbone",
                f"{1000 * done.forward_seconds / N_IMAGES:.0f} ms an image in its forward pass",
                f"{outside:.1%} of the whole",
                "20 %" if workers is None else "",
                outside < 0.2,
            )


def _photographs(folder: Path) -> GroupedDataset:
    """Smooth noise, which takes a decoder as long as a photograph does."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = [f"{number:04d}.jpg" for number in range(N_IMAGES)]
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, size=(47, 63, 3)).astype(np.uint8))
        coarse.resize(SIZE, Image.Resampling.BICUBIC).save(folder / name, quality=92)
    codes = (np.arange(N_IMAGES) % 2)[:, None]
    return GroupedDataset(ImageFiles(folder, np.array(names)), GroupSpace.from_cardinalities([2]), codes)


def _resnet50(folder: Path) -> Path:
    """The architecture of the paper's backbone with random weights, which are as fast as trained ones."""
    transformers.ResNetModel(transformers.ResNetConfig()).save_pretrained(folder)
    transformers.ConvNextImageProcessorPil(size={"shortest_edge": 224}).save_pretrained(folder)
    return folder
