"""Turn image files into the arrays that a network takes: decode safely, crop, scale and normalise the colours.

Decoding needs Pillow. ``broken_samples`` checks all images of a data set.
"""

from __future__ import annotations

import dataclasses
import io
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import InputError, an, check_name
from compshift.data.dataset import GroupedDataset, ImageFiles

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling


@dataclass(frozen=True)
class Resize:
    """Scale an image to ``width`` × ``height``; if ``height`` is None, scale its shorter side to ``width``."""

    width: int
    height: int | None = None  # None keeps the aspect ratio

    def apply(self, image: Image, resample: Resampling) -> Image:
        """Return the scaled image."""
        if self.height is not None:
            size = (self.width, self.height)
        else:
            short, long = sorted(image.size)
            other = int(self.width * long / short)
            size = (self.width, other) if image.width <= image.height else (other, self.width)
        return image if image.size == size else image.resize(size, resample)


@dataclass(frozen=True)
class CentreCrop:
    """Crop an image to its centre; pixels beyond its edges are black."""

    width: int
    height: int

    def apply(self, image: Image, resample: Resampling) -> Image:  # noqa: ARG002 - same signature as Resize.apply
        """Return the cropped image."""
        left, top = round((image.width - self.width) / 2), round((image.height - self.height) / 2)
        return image.crop((left, top, left + self.width, top + self.height))


Step = Resize | CentreCrop
Geometry = tuple[Step, ...]
"""Steps that crop and scale an image, in order."""

STEPS: dict[str, type[Resize] | type[CentreCrop]] = {"Resize": Resize, "CentreCrop": CentreCrop}
"""Classes of the steps, by their names in saved files."""

SIZE = 224
"""Side in pixels of the images that the three geometries below produce."""

STRETCH_AND_CROP: Geometry = (Resize(256, 256), CentreCrop(SIZE, SIZE))
"""Geometry of Waterbirds: scale without keeping the aspect ratio, then crop."""

RESIZE_AND_CROP: Geometry = (Resize(256), CentreCrop(SIZE, SIZE))
"""Geometry of MetaShift and NICO++: scale and keep the aspect ratio, then crop."""

CROP_AND_RESIZE: Geometry = (CentreCrop(178, 178), Resize(SIZE))
"""Geometry of CelebA: crop the face, then scale."""


def scaled(geometry: Geometry, size: int) -> Geometry:
    """Adapt a geometry to produce images with sides of ``size`` pixels; crops before the first resize stay the same."""
    if size == SIZE:
        return geometry
    first_resize = next(position for position, step in enumerate(geometry) if isinstance(step, Resize))
    return tuple(
        step if position < first_resize else _scaled_step(step, size / SIZE) for position, step in enumerate(geometry)
    )


def _scaled_step(step: Step, factor: float) -> Step:
    """Return a step with its width and height multiplied by ``factor``."""
    height = None if step.height is None else round(step.height * factor)
    return type(step)(round(step.width * factor), height)  # type: ignore[arg-type] # a crop always has a height


def resized(geometry: Geometry, published: tuple[int, int], size: tuple[int, int]) -> Geometry:
    """Adapt a geometry for originals of the size ``published`` to originals of another ``size``, (width, height) each.

    Only a crop in the first step is adapted: it keeps the same share of the picture. If it was square and no longer is,
    because the originals were squeezed, resizes that keep the aspect ratio become resizes to a square, which undo this.
    """
    crop, *rest = geometry
    if size == published or not isinstance(crop, CentreCrop):
        return geometry
    width = max(1, round(crop.width * size[0] / published[0]))
    height = max(1, round(crop.height * size[1] / published[1]))
    if width != height and crop.width == crop.height:
        rest = [Resize(step.width, step.width) if step == Resize(step.width) else step for step in rest]
    return (CentreCrop(width, height), *rest)


FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "JPEG2000")
"""Image formats to decode. Pillow supports more, but for some of them, such as PostScript, it runs other programs."""

MAX_PIXELS = 1 << 26
"""Maximum number of pixels of an image file, because a file of a few kilobytes can declare any number."""

MAX_ASPECT_RATIO = 100
"""Maximum aspect ratio of an image file, because scaling up the shorter side also scales up the longer one."""

MAX_SIDE = 4096
"""Maximum width and height, in pixels, of a step in a saved geometry."""

MAX_IMAGE_BYTES = 1 << 29
"""Maximum size of an image file, in bytes."""

SAMPLED_SIZES = 100
"""Maximum number of images whose width and height ``image_sizes`` reads."""

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Names of Pillow's resampling filters."""


class BrokenImageError(InputError):
    """Raised when an image file is missing or cannot be decoded."""


@dataclass(frozen=True)
class ImagePreprocessing:
    """Preprocessing of images: crop and scale, then normalise the colours as (pixel · scale − mean) / std."""

    geometry: Geometry = RESIZE_AND_CROP
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of ImageNet's colours
    std: tuple[float, ...] = (0.229, 0.224, 0.225)  # of ImageNet
    scale: float = 1 / 255
    resample: str = "bilinear"

    def __post_init__(self) -> None:
        check_name("resampling filter", self.resample, RESAMPLING)
        if not isinstance(self.geometry, tuple | list):
            raise InputError(f"geometry is {an(type(self.geometry).__name__)}: pass a tuple of Resize and CentreCrop")
        for step in self.geometry:
            if not hasattr(step, "apply"):
                raise InputError(f"geometry contains {step!r}, which is not a step: pass Resize and CentreCrop")

    def pixels(self, image: Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the cropped and scaled image, (height, width, 3) uint8."""
        from PIL.Image import Resampling

        for step in self.geometry:
            image = step.apply(image, Resampling[self.resample.upper()])
        return np.asarray(image)

    def normalise(self, pixels: Any) -> Any:
        """Normalise the colours of an array or tensor of pixels (…, height, width, 3); return float32."""
        if isinstance(pixels, np.ndarray):
            mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            return (pixels.astype(np.float32) * np.float32(self.scale) - mean) / std
        import torch

        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        return (pixels.to(torch.float32) * self.scale - mean) / std

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as JSON values."""
        steps = [{"step": type(step).__name__, **dataclasses.asdict(step)} for step in self.geometry]
        return {**dataclasses.asdict(self), "geometry": steps}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ImagePreprocessing:
        """Check every value of a ``to_dict`` result and build the preprocessing from it."""
        try:
            steps = tuple(
                STEPS[step["step"]](**{key: value for key, value in step.items() if key != "step"})
                for step in content["geometry"]
            )
            for step in steps:
                if not all(
                    size is None or (type(size) is int and 1 <= size <= MAX_SIDE) for size in (step.width, step.height)
                ):
                    raise TypeError(
                        f"width {step.width!r} and height {step.height!r} must be integers from 1 to {MAX_SIDE}"
                    )
            numbers = np.array([*content["mean"], *content["std"], content["scale"]], dtype=np.float64)
            if numbers.shape != (7,) or not np.isfinite(numbers).all() or not numbers[3:6].all():
                raise TypeError("mean and std must be three finite numbers each, scale one, and no std may be 0")
            colours = {key: tuple(content[key]) for key in ("mean", "std")}
            return cls(geometry=steps, **colours, scale=content["scale"], resample=content["resample"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the saved image preprocessing is incomplete or damaged ({error}): save the model again"
            ) from None


def decode_image(content: bytes, path: Path) -> Image:
    """Decode the content of an image file to an upright RGB image."""
    with _decoding(path):
        from PIL import ImageOps

        with _open_image(content) as image:
            return ImageOps.exif_transpose(image).convert("RGB")


def read_bytes(path: Path) -> bytes:
    """Return the content of an image file; raise a BrokenImageError if it cannot be read or is too large."""
    try:
        status = path.stat()
        ordinary = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)  # reading a pipe may never end
        if ordinary and status.st_size <= MAX_IMAGE_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise BrokenImageError(f"the image {str(path)!r} cannot be read ({error.strerror})") from None
    limit = f"it has {status.st_size:,} bytes, the limit is {MAX_IMAGE_BYTES:,}"
    reason = limit if ordinary else "it is a pipe or device, not a regular file"
    raise BrokenImageError(f"the image {str(path)!r} cannot be read ({reason})")


def read_image(path: Path) -> Image:
    """Read an image from disk as upright RGB."""
    return decode_image(read_bytes(path), path)


def check_image(path: Path) -> None:
    """Check that the whole image can be decoded; for speed, a JPEG is decoded at an eighth of its size."""
    content = read_bytes(path)
    with _decoding(path), _open_image(content) as image:
        image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()


@contextmanager
def _open_image(content: bytes) -> Iterator[Image]:
    """Open an image and check its size before any pixel is decoded."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        short, long = sorted(image.size)
        if short * long > MAX_PIXELS or long > MAX_ASPECT_RATIO * short:
            raise ValueError(
                f"it has {image.width} × {image.height} pixels, but at most {MAX_PIXELS:,} and an aspect ratio of at "
                f"most {MAX_ASPECT_RATIO} are accepted"
            )
        yield image


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Turn any exception of the decoder into a BrokenImageError that names the path."""
    try:
        yield
    except ModuleNotFoundError:
        raise InputError("images need Pillow: install compshift[torch]") from None
    except Exception as error:  # a damaged file can raise almost anything
        reason = str(error).split("<_io")[0].strip() or type(error).__name__
        raise BrokenImageError(f"the image {str(path)!r} cannot be decoded ({reason})") from None


def image_sizes(samples: ImageFiles) -> Counter[tuple[int, int]]:
    """Count the widths and heights of up to ``SAMPLED_SIZES`` evenly spaced images that can be read."""
    found: Counter[tuple[int, int]] = Counter()
    for row in np.linspace(0, len(samples) - 1, min(len(samples), SAMPLED_SIZES)).astype(int).tolist():
        with suppress(InputError):
            found[read_image(samples.path(row)).size] += 1
    return found


def broken_samples(data: GroupedDataset, progress: Callable[[int], None] = lambda _: None) -> Iterator[str]:
    """Yield an error message for every image that is missing or cannot be decoded, in row order.

    ``progress`` is called with the number of images checked since its last call.
    """
    if not isinstance(data.samples, ImageFiles):
        return
    rows, problem = iter(range(len(data))), partial(_image_problem, data.samples)
    with ThreadPoolExecutor() as pool:
        while block := list(islice(rows, 256)):
            yield from (message for message in pool.map(problem, block) if message)
            progress(len(block))


def _image_problem(samples: ImageFiles, row: int) -> str:
    """Return the error message for the image of a row; empty if the image can be decoded."""
    try:
        path = samples.path(row)
    except InputError as error:  # the path or a symbolic link leads out of the data set's folder
        return str(error)
    try:
        check_image(path)
    except BrokenImageError as error:
        return str(error)
    return ""
