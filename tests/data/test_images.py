import json
import struct
import zlib

import numpy as np
import pytest

from compshift import InputError
from compshift.data.images import (
    CROP_AND_RESIZE,
    RESIZE_AND_CROP,
    STRETCH_AND_CROP,
    CentreCrop,
    Resize,
    resized,
    scaled,
)

Image = pytest.importorskip("PIL.Image")

from compshift.data.images import BrokenImageError, ImagePreprocessing, check_image, read_image


def picture(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3)).astype(np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    ("geometry", "size", "resized", "box"),
    [
        (STRETCH_AND_CROP, (300, 500), (256, 256), (16, 16, 240, 240)),
        (RESIZE_AND_CROP, (300, 500), (256, 426), (16, 101, 240, 325)),
        (RESIZE_AND_CROP, (500, 300), (426, 256), (101, 16, 325, 240)),
        (RESIZE_AND_CROP, (256, 256), (256, 256), (16, 16, 240, 240)),
    ],
)
def test_resize_then_crop(geometry, size, resized, box):
    image = picture(*size)
    expected = image.resize(resized, Image.Resampling.BILINEAR).crop(box)
    np.testing.assert_array_equal(ImagePreprocessing(geometry).pixels(image), np.asarray(expected))


def test_crop_then_resize():
    image = picture(178, 218)
    expected = image.crop((0, 20, 178, 198)).resize((224, 224), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(ImagePreprocessing(CROP_AND_RESIZE).pixels(image), np.asarray(expected))


def test_a_crop_beyond_the_edge_is_black():
    pixels = ImagePreprocessing((CentreCrop(6, 6),)).pixels(Image.new("RGB", (4, 4), "white"))
    assert pixels[1:5, 1:5].min() == 255
    assert pixels.sum() == 16 * 3 * 255


def test_a_geometry_for_another_size():
    assert scaled(RESIZE_AND_CROP, 448) == (Resize(512), CentreCrop(448, 448))
    assert scaled(STRETCH_AND_CROP, 112) == (Resize(128, 128), CentreCrop(112, 112))
    assert scaled(CROP_AND_RESIZE, 112) == (
        CentreCrop(178, 178),
        Resize(112),
    )  # the crop is in pixels of the original image
    assert scaled(RESIZE_AND_CROP, 224) is RESIZE_AND_CROP


@pytest.mark.parametrize(
    ("size", "geometry"),
    [
        ((178, 218), CROP_AND_RESIZE),
        ((89, 109), (CentreCrop(89, 89), Resize(224))),
        ((356, 436), (CentreCrop(356, 356), Resize(224))),
        ((128, 128), (CentreCrop(128, 105), Resize(224, 224))),  # squeezed to a square
    ],
)
def test_a_geometry_for_originals_of_another_size(size, geometry):
    assert resized(CROP_AND_RESIZE, (178, 218), size) == geometry
    assert resized(RESIZE_AND_CROP, (178, 218), size) == RESIZE_AND_CROP  # has no crop in pixels of the original


@pytest.mark.parametrize("size", [(89, 109), (60, 73), (128, 128)])
def test_a_smaller_original_shows_the_same_region(size):
    """A smooth picture, cropped at both sizes, is the same up to the loss of resolution, and nowhere black."""
    ramp = np.linspace(60, 255, 218)[:, None] * np.linspace(0.5, 1, 178)
    whole = Image.fromarray(np.repeat(ramp[..., None], 3, axis=2).astype(np.uint8))
    small = whole.resize(size, Image.Resampling.BILINEAR)
    expected = ImagePreprocessing(CROP_AND_RESIZE).pixels(whole).astype(int)
    found = ImagePreprocessing(resized(CROP_AND_RESIZE, whole.size, size)).pixels(small).astype(int)
    assert found.shape == (224, 224, 3)
    assert np.abs(found - expected).max() <= 4
    assert (ImagePreprocessing(CROP_AND_RESIZE).pixels(small) == 0).any()  # the published crop is larger


def test_colours_are_normalised():
    preprocessing = ImagePreprocessing()
    pixels = preprocessing.pixels(picture(256, 256))
    expected = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(preprocessing.normalise(pixels), expected, atol=1e-6)
    assert preprocessing.normalise(pixels).dtype == np.float32
    json.dumps(preprocessing.to_dict())
    assert preprocessing.to_dict() != ImagePreprocessing(STRETCH_AND_CROP).to_dict()
    with pytest.raises(InputError, match="resampling filter 'cubic' is not known"):
        ImagePreprocessing(resample="cubic")


def test_colours_of_a_tensor_agree_with_those_of_an_array():
    torch = pytest.importorskip("torch")
    preprocessing = ImagePreprocessing()
    pixels = preprocessing.pixels(picture(256, 256))
    found = preprocessing.normalise(torch.as_tensor(pixels.copy()))
    np.testing.assert_allclose(found.numpy(), preprocessing.normalise(pixels), rtol=1e-5, atol=1e-6)


def test_every_mode_is_read_as_upright_rgb(tmp_path):
    for mode in ("L", "P", "RGBA", "CMYK", "1", "I;16"):
        path = tmp_path / f"{mode.replace(';', '')}.{'jpg' if mode == 'CMYK' else 'png'}"
        Image.new(mode, (5, 4)).save(path)
        assert np.asarray(read_image(path)).shape == (4, 5, 3)
        check_image(path)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: rotated by 90°
    picture(8, 4).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").size == (4, 8)


@pytest.mark.parametrize("read", [read_image, check_image])
def test_damaged_files_raise(tmp_path, read):
    whole = tmp_path / "whole.jpg"
    picture(200, 150).save(whole)
    read(whole)
    content = whole.read_bytes()
    damaged = {
        "empty.jpg": b"",
        "text.jpg": b"hello",
        "cut.jpg": content[: len(content) * 3 // 4],
        "head.png": b"\x89PNG",
    }
    for name, piece in damaged.items():
        (tmp_path / name).write_bytes(piece)
        with pytest.raises(BrokenImageError, match=rf"the image '.*{name}' cannot be decoded \(.+\)"):
            read(tmp_path / name)
    with pytest.raises(BrokenImageError, match=r"cannot be read \(No such file or directory\)"):
        read(tmp_path / "none.jpg")
    with pytest.raises(BrokenImageError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)


def png(width, height):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"


@pytest.mark.parametrize("content", [png(9_000, 9_000), png(200_000, 1), POSTSCRIPT])
@pytest.mark.parametrize("read", [read_image, check_image])
def test_huge_images_and_postscript_raise(tmp_path, content, read):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(BrokenImageError, match="cannot be decoded"):
        read(tmp_path / "a.jpg")
