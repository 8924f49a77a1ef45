"""How an image is cut and scaled before a network sees it, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling


@dataclass(frozen=True)
class Resize:
    """Scale to a width and height, or so that the shorter side has a length, keeping the proportions."""

    width: int
    height: int | None = None  # None: ``width`` is the length of the shorter side

    def apply(self, image: Image, resample: Resampling) -> Image:
        """The scaled image."""
        if self.height is not None:
            size = (self.width, self.height)
        else:
            short, long = sorted(image.size)
            other = int(self.width * long / short)
            size = (self.width, other) if image.width <= image.height else (other, self.width)
        return image if image.size == size else image.resize(size, resample)


@dataclass(frozen=True)
class CentreCrop:
    """Cut out the middle; what lies beyond the edge is black."""

    width: int
    height: int

    def apply(self, image: Image, resample: Resampling) -> Image:  # noqa: ARG002 - the interface of a step
        """The middle of the image."""
        left, top = round((image.width - self.width) / 2), round((image.height - self.height) / 2)
        return image.crop((left, top, left + self.width, top + self.height))


Step = Resize | CentreCrop
Geometry = tuple[Step, ...]

STEPS: dict[str, type[Resize] | type[CentreCrop]] = {"Resize": Resize, "CentreCrop": CentreCrop}
"""By their names in files."""

SIZE = 224
"""Side of the images that the published geometries end in."""

STRETCH_AND_CROP: Geometry = (Resize(256, 256), CentreCrop(SIZE, SIZE))
RESIZE_AND_CROP: Geometry = (Resize(256), CentreCrop(SIZE, SIZE))
CROP_AND_RESIZE: Geometry = (CentreCrop(178, 178), Resize(SIZE))


def scaled(geometry: Geometry, size: int) -> Geometry:
    """The geometry for a network that wants images of another size: crops of the original stay as they are."""
    if size == SIZE:
        return geometry
    first_resize = next(position for position, step in enumerate(geometry) if isinstance(step, Resize))
    return tuple(
        step if position < first_resize else _scaled_step(step, size / SIZE) for position, step in enumerate(geometry)
    )


def _scaled_step(step: Step, factor: float) -> Step:
    height = None if step.height is None else round(step.height * factor)
    return type(step)(round(step.width * factor), height)  # type: ignore[arg-type] # a crop always has a height
