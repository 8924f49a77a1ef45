"""Handwritten digits on textured backgrounds: a benchmark with a spurious attribute that needs no download.

Its features are computed by fixed random convolutions, rectified and pooled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from compshift._checks import check_count
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset, ImageArrays

Float32Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
PixelArray: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

BACKGROUNDS = ("stripes", "checks", "rings", "speckle", "gradient")
SPACE = GroupSpace(("digit", "background"), (tuple(range(10)), BACKGROUNDS))

CORRELATION = 0.95
"""Share of each digit's training rows that are on its majority background."""

DRAWS = 2
"""Number of training rows made from one scan."""

SPLIT_PATTERN = (0, 0, 0, 0, 0, 1, 2, 2)
"""Split codes of eight consecutive scans of a digit, repeated along the file.

The writers change along the file, so a short pattern spreads the scans of each writer over all splits.
"""

SIDE = 28
"""Side of an image, in pixels."""

MARGIN = 2
"""Width of the empty margin around the digit, in pixels."""

COLOURS = ((0.70, 0.27, 0.27), (0.16, 0.60, 0.27), (0.22, 0.35, 0.72), (0.58, 0.50, 0.12), (0.55, 0.22, 0.62))
"""Mean colour of each background, as RGB values between 0 and 1."""

PATCH_CELLS = 1 << 22
"""Maximum number of array elements in the patches of one block of images: 16 MB of float32."""


def load_digits_backgrounds(random_state: int = 0, *, balanced: bool = False) -> GroupedDataset:
    """Load scikit-learn's digits, enlarged and placed on five procedural textures.

    In training, 95 % of the rows of digit d have background d mod 5, its majority background. The others are spread
    over the other four backgrounds, so that all 50 groups occur. Each training scan gives two rows, at most one of them
    with a minority background. Each validation and test scan gives five rows, one on every background: validation is
    balanced, as in Waterbirds, so that the accuracy of a group is measured on at least 22 scans. The splits are fixed;
    ``random_state`` determines the textures and which training rows have a minority background.

    ``balanced=True`` spreads each digit's training rows evenly over all backgrounds, with the same number of rows and
    the same validation and test images: the accuracy of a model trained on them shows what is possible without the
    spurious correlation. The ``origin`` of a row is the number of its scan.
    """
    from sklearn.datasets import load_digits

    scans = load_digits()
    masks = _enlarge(scans.images / 16)
    split_of_scan = _split_of_scan(scans.target)
    parts = []
    for split in range(3):
        # One generator per split: validation and test images do not depend on the training rows.
        rng = np.random.default_rng([random_state, split])
        members = np.flatnonzero(split_of_scan == split)
        if split > 0:
            background = np.tile(np.arange(len(BACKGROUNDS)), (len(members), 1))  # (s, 5)
        else:
            background = _training_backgrounds(scans.target[members], balanced, rng)  # (s, DRAWS)
        scan = np.repeat(members, background.shape[1])
        pixels = _composite(masks[scan], background.reshape(-1), rng)
        codes = np.stack([scans.target[scan], background.reshape(-1)], axis=1).astype(np.int64)
        parts.append((pixels, codes, np.full(len(scan), split), scan))
    pixels, codes, split_codes, scan = (np.concatenate(column) for column in zip(*parts, strict=True))
    return GroupedDataset(ImageArrays(pixels), SPACE, codes, split_codes, origin=scan)


def _split_of_scan(digit: IntArray) -> IntArray:
    """Return the split of each scan, determined by its position among the scans of its digit."""
    split = np.empty(len(digit), dtype=np.int64)
    for value in range(10):
        members = np.flatnonzero(digit == value)
        split[members] = np.resize(SPLIT_PATTERN, len(members))
    return split


def _training_backgrounds(digit: IntArray, balanced: bool, rng: np.random.Generator) -> IntArray:
    """Return the backgrounds (s, DRAWS) of the rows made from each training scan."""
    n_backgrounds = len(BACKGROUNDS)
    background = np.repeat(digit[:, None] % n_backgrounds, DRAWS, axis=1)
    for value in range(10):
        members = np.flatnonzero(digit == value)
        n_rows = len(members) * DRAWS
        if balanced:
            background[members] = (np.arange(n_rows) % n_backgrounds).reshape(-1, DRAWS)
            continue
        # Each scan gives at most one minority row, so that a small group has as many different scans as rows.
        chosen = members[np.argsort(rng.random(len(members)), kind="stable")[: round((1 - CORRELATION) * n_rows)]]
        step = 1 + np.arange(len(chosen)) % (n_backgrounds - 1)
        background[chosen, 0] = (value + step) % n_backgrounds
    return background


def _enlarge(images: FloatArray) -> FloatArray:
    """Enlarge images (s, 8, 8) bilinearly to (s, SIDE, SIDE), with an empty margin."""
    inner = SIDE - 2 * MARGIN
    position = np.clip((np.arange(inner) + 0.5) * 8 / inner - 0.5, 0, 7)
    low = np.minimum(position.astype(np.int64), 6)
    weight = position - low
    rows = images[:, low] * (1 - weight)[:, None] + images[:, low + 1] * weight[:, None]  # (s, inner, 8)
    enlarged = rows[:, :, low] * (1 - weight) + rows[:, :, low + 1] * weight  # (s, inner, inner)
    return np.pad(enlarged, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))


def _composite(mask: FloatArray, background: IntArray, rng: np.random.Generator) -> PixelArray:
    """Draw each digit in light ink on its background, (n, SIDE, SIDE, 3); both colours vary from image to image."""
    pixels = np.empty((*mask.shape, 3), dtype=np.uint8)
    for value in range(len(BACKGROUNDS)):
        rows = np.flatnonzero(background == value)
        shape = (len(rows), 1, 1, 3)
        colour = np.array(COLOURS[value]) + rng.uniform(-0.1, 0.1, shape)
        contrast = rng.uniform(0.12, 0.24, shape)
        ink = 0.92 + rng.uniform(-0.06, 0.06, shape)  # brightness, between 0 and 1
        ground = colour + contrast * (_pattern(value, len(rows), rng)[..., None] - 0.5)
        opacity = np.minimum(1.2 * mask[rows, :, :, None], 1)
        image = ground * (1 - opacity) + ink * opacity
        pixels[rows] = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    return pixels


def _pattern(background: int, n: int, rng: np.random.Generator) -> FloatArray:
    """Draw n greyscale patterns (n, SIDE, SIDE) of one background, with values between 0 and 1."""
    name = BACKGROUNDS[background]
    if name == "speckle":
        return rng.random((n, SIDE, SIDE))
    axis = np.arange(SIDE) - (SIDE - 1) / 2
    angle, phase, other_phase = rng.uniform(0, 2 * np.pi, (3, n, 1, 1))
    pitch = 2 * np.pi / rng.uniform(5, 7, (n, 1, 1))
    along = axis * np.cos(angle) + axis[:, None] * np.sin(angle)  # (n, SIDE, SIDE)
    if name == "gradient":
        return np.asarray(np.clip(0.5 + along / SIDE, 0, 1))
    if name == "rings":
        x, y = rng.uniform(-SIDE / 4, SIDE / 4, (2, n, 1, 1))
        wave = np.sin(pitch * np.sqrt((axis - x) ** 2 + (axis[:, None] - y) ** 2) + phase)
    else:
        wave = np.sin(pitch * along + phase)
    if name == "checks":
        across = axis[:, None] * np.cos(angle) - axis * np.sin(angle)
        wave = wave * np.sin(pitch * across + other_phase)
    return np.asarray(np.clip(0.5 + 1.5 * wave, 0, 1))


@dataclass(frozen=True)
class RandomConvolutions:
    r"""Feature map for small images: rectified responses to random filters, averaged over the cells of a coarse grid.

    .. math:: f_{kab}(x) = \frac{1}{|C_{ab}|} \sum_{(i, j) \in C_{ab}} \max(0, \langle w_k, x_{ij} \rangle)

    x_ij is the patch of RGB values between −½ and ½ whose corner is at (i, j), w_k has standard normal entries, and the
    cells C_ab divide the corners into grid × grid blocks. Features are ordered (a, b, k).
    """

    n_filters: int = 48
    size: int = 9
    grid: int = 4
    random_state: int = 0

    def __post_init__(self) -> None:
        for name in ("n_filters", "size", "grid"):
            check_count(getattr(self, name), name)

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return self.n_filters * self.grid**2

    @cached_property
    def filters(self) -> Float32Array:
        """Filters w_k, (n_filters, 3, size, size)."""
        rng = np.random.default_rng(self.random_state)
        return rng.normal(size=(self.n_filters, 3, self.size, self.size)).astype(np.float32)

    def __call__(self, pixels: Any) -> Float32Array:
        """Return the features (n, p) of uint8 images (n, height, width, 3)."""
        pixels = np.asarray(pixels)
        corners = self._corners(pixels)
        features = np.empty((len(pixels), self.n_features), dtype=np.float32)
        weights = self.filters.reshape(self.n_filters, -1).T  # (3·size², n_filters)
        for block in row_blocks(len(pixels), corners[0] * corners[1] * len(weights), PATCH_CELLS):
            values = pixels[block].astype(np.float32) / 255 - np.float32(0.5)
            patches = sliding_window_view(values, (self.size, self.size), axis=(1, 2))  # (n, h, w, 3, size, size)
            responses = np.maximum(patches.reshape(-1, len(weights)) @ weights, 0)
            pooled = self._pool(responses.reshape(len(values), *corners, self.n_filters))
            features[block] = pooled.reshape(len(values), -1)
        return features

    def _corners(self, pixels: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Return the number of rows and columns of patch corners in an image."""
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            raise InputError(
                f"pixels has type {pixels.dtype} and shape {pixels.shape}: pass uint8 images (n, height, width, 3)"
            )
        height, width = pixels.shape[1:3]
        if min(height, width) - self.size + 1 < self.grid:
            raise InputError(
                f"the images are {height} × {width} pixels: filters of size {self.size} on a grid of {self.grid} need "
                f"{self.size + self.grid - 1} or more in both directions"
            )
        return height - self.size + 1, width - self.size + 1

    def _pool(self, responses: Float32Array) -> Float32Array:
        """Average responses (n, h, w, k) over the cells of the grid; return (n, grid, grid, k)."""
        for axis in (1, 2):
            starts, lengths = self._cells(responses.shape[axis])
            shape = [-1 if position == axis else 1 for position in range(4)]
            sums = np.add.reduceat(responses, starts, axis=axis)
            responses = np.asarray(sums / lengths.reshape(shape), dtype=np.float32)
        return responses

    def _cells(self, length: int) -> tuple[IntArray, Float32Array]:
        """Return the start and length of each grid cell along an axis; the lengths differ by at most one."""
        edges = np.arange(self.grid + 1) * length // self.grid
        return edges[:-1], np.diff(edges).astype(np.float32)


BENCHMARK = Benchmark(
    name="digits-backgrounds",
    title="digit × background, small images",
    kind="images",
    groups="10 × 5",
    make=load_digits_backgrounds,
    feature_map=lambda samples: RandomConvolutions()(samples.pixels),
)
