"""Images from disk to the arrays that a network takes. Pillow alone is needed."""

from __future__ import annotations

import dataclasses
import io
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import InputError, an, unknown_name
from compshift.data.geometry import RESIZE_AND_CROP, STEPS, Geometry

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "JPEG2000")
"""What is decoded. Pillow knows many more; some of them start other programs, as PostScript does."""

MOST_PIXELS = 1 << 26
"""Of one image, 67 million; a file of a few kilobytes can ask for any number."""

MOST_TIMES_LONGER = 100
"""One side than the other; scaling the shorter side up scales the longer one too."""

LARGEST_SIDE = 4096
"""Pixels of the images that a network takes."""

MOST_BYTES = 1 << 29
"""Of one file."""

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


class BrokenImageError(InputError):
    """A file is missing or cannot be decoded as an image."""


@dataclass(frozen=True)
class ImagePreprocessing:
    """Cut and scale, then shift and scale the colours: (pixel · scale − mean) / std."""

    geometry: Geometry = RESIZE_AND_CROP
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    scale: float = 1 / 255
    resample: str = "bilinear"

    def __post_init__(self) -> None:
        if self.resample not in RESAMPLING:
            raise unknown_name("resampling filter", self.resample, RESAMPLING)
        if not isinstance(self.geometry, tuple | list) or not all(hasattr(step, "apply") for step in self.geometry):
            raise InputError(f"geometry is {an(type(self.geometry).__name__)}: pass a tuple of steps, such as Resize")

    def pixels(self, image: Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The cut and scaled image, (height, width, 3) of 8 bits."""
        from PIL.Image import Resampling

        for step in self.geometry:
            image = step.apply(image, Resampling[self.resample.upper()])
        return np.asarray(image)

    def normalise(self, pixels: Any) -> Any:
        """Pixels (…, height, width, 3), an array or a tensor, as the numbers that a network takes, in 32 bits."""
        if isinstance(pixels, np.ndarray):
            mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            return (pixels.astype(np.float32) * np.float32(self.scale) - mean) / std
        import torch

        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        return (pixels.to(torch.float32) * self.scale - mean) / std

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides about the numbers, for JSON."""
        steps = [{"step": type(step).__name__, **dataclasses.asdict(step)} for step in self.geometry]
        return {**dataclasses.asdict(self), "geometry": steps}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ImagePreprocessing:
        """What ``to_dict`` gave."""
        try:
            steps = tuple(
                STEPS[step["step"]](**{key: value for key, value in step.items() if key != "step"})
                for step in content["geometry"]
            )
            for step in steps:
                if not all(
                    size is None or (type(size) is int and 1 <= size <= LARGEST_SIDE)
                    for size in (step.width, step.height)
                ):
                    raise TypeError(f"a side of {step.width!r} or {step.height!r} pixels")
            numbers = np.array([*content["mean"], *content["std"], content["scale"]], dtype=np.float64)
            if numbers.shape != (7,) or not np.isfinite(numbers).all() or not numbers[3:6].all():
                raise TypeError("the colours are not three numbers each")
            colours = {key: tuple(content[key]) for key in ("mean", "std")}
            return cls(geometry=steps, **colours, scale=content["scale"], resample=content["resample"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"it is not said how images are prepared ({error})") from None


def decode_image(content: bytes, path: Path) -> Image:
    """The image in a file's bytes, upright and in colour."""
    with _named(path):
        from PIL import ImageOps

        with _opened(content) as image:
            return ImageOps.exif_transpose(image).convert("RGB")


def read_bytes(path: Path) -> bytes:
    """A file's content; one that is missing or cannot be read is named."""
    try:
        about = path.stat()
        ordinary = stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)  # no pipe that never ends
        if ordinary and about.st_size <= MOST_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise BrokenImageError(f"the image {str(path)!r} cannot be read ({error.strerror})") from None
    reason = f"it has {about.st_size:,} bytes, too many for an image" if ordinary else "it is no ordinary file"
    raise BrokenImageError(f"the image {str(path)!r} cannot be read ({reason})")


def read_image(path: Path) -> Image:
    """An image from disk, upright and in colour."""
    return decode_image(read_bytes(path), path)


def check_image(path: Path) -> None:
    """Refuse a file that cannot be decoded to its end; a JPEG is decoded at an eighth of its size, which is faster."""
    content = read_bytes(path)
    with _named(path), _opened(content) as image:
        image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()


@contextmanager
def _opened(content: bytes) -> Iterator[Image]:
    """The image before any pixel of it is decoded; one that is too large is refused."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        short, long = sorted(image.size)
        if short * long > MOST_PIXELS or long > MOST_TIMES_LONGER * short:
            raise ValueError(f"it has {image.width} × {image.height} pixels, too many or too long")
        yield image


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever a decoder raises, as one sentence with the path."""
    try:
        yield
    except ModuleNotFoundError:
        raise InputError("images need Pillow: install compshift[torch]") from None
    except Exception as error:  # damaged files make decoders fail in every way there is
        reason = str(error).split("<_io")[0].strip() or type(error).__name__
        raise BrokenImageError(f"the image {str(path)!r} cannot be decoded ({reason})") from None
