"""A fixed feature map for small images: random convolutions, rectified and pooled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from compshift._checks import check_count
from compshift._errors import InputError
from compshift.core.arrays import IntArray, row_blocks

Float32Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

BLOCK_CELLS = 1 << 22
"""How many numbers the patches of a block of images may hold: 16 MB of float32."""


@dataclass(frozen=True)
class RandomConvolutions:
    r"""Mean, over each cell of a coarse grid, of rectified responses to random filters.

    .. math:: f_{kab}(x) = \frac{1}{|C_{ab}|} \sum_{(i, j) \in C_{ab}} \max(0, \langle w_k, x_{ij} \rangle)

    x_ij is the patch of RGB values, from −½ to ½, whose corner is at (i, j); w_k has standard normal entries; C_ab
    are the grid² cells of corners. Features are ordered (a, b, k).
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
        """Width p of the result."""
        return self.n_filters * self.grid**2

    @cached_property
    def filters(self) -> Float32Array:
        """The filters w_k, (n_filters, 3, size, size)."""
        rng = np.random.default_rng(self.random_state)
        return rng.normal(size=(self.n_filters, 3, self.size, self.size)).astype(np.float32)

    def __call__(self, pixels: Any) -> Float32Array:
        """Features (n, p) of uint8 images (n, height, width, 3)."""
        pixels = np.asarray(pixels)
        corners = self._corners(pixels)
        features = np.empty((len(pixels), self.n_features), dtype=np.float32)
        weights = self.filters.reshape(self.n_filters, -1).T  # (3·size², n_filters)
        for block in row_blocks(len(pixels), corners[0] * corners[1] * len(weights), BLOCK_CELLS):
            values = pixels[block].astype(np.float32) / 255 - np.float32(0.5)
            patches = sliding_window_view(values, (self.size, self.size), axis=(1, 2))  # (n, h, w, 3, size, size)
            responses = np.maximum(patches.reshape(-1, len(weights)) @ weights, 0)
            pooled = self._pool(responses.reshape(len(values), *corners, self.n_filters))
            features[block] = pooled.reshape(len(values), -1)
        return features

    def _corners(self, pixels: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Rows and columns of patch corners in an image."""
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            raise InputError(
                f"pixels has type {pixels.dtype} and shape {pixels.shape}: pass uint8 images, (n, height, width, 3)"
            )
        height, width = pixels.shape[1:3]
        if min(height, width) - self.size + 1 < self.grid:
            raise InputError(
                f"the images are {height} × {width} pixels: filters of size {self.size} on a grid of {self.grid} need "
                f"{self.size + self.grid - 1} or more each way"
            )
        return height - self.size + 1, width - self.size + 1

    def _pool(self, responses: Float32Array) -> Float32Array:
        """Means over the cells, (n, h, w, k) to (n, grid, grid, k)."""
        for axis in (1, 2):
            starts, lengths = self._cells(responses.shape[axis])
            shape = [-1 if position == axis else 1 for position in range(4)]
            sums = np.add.reduceat(responses, starts, axis=axis)
            responses = np.asarray(sums / lengths.reshape(shape), dtype=np.float32)
        return responses

    def _cells(self, length: int) -> tuple[IntArray, Float32Array]:
        """Starts and lengths of the grid's cells along an axis; lengths differ by one at most."""
        edges = np.arange(self.grid + 1) * length // self.grid
        return edges[:-1], np.diff(edges).astype(np.float32)
