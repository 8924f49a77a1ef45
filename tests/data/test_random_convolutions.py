import numpy as np
import pytest

from compshift import InputError
from compshift.data import digits_backgrounds as random_convolutions
from compshift.data.digits_backgrounds import RandomConvolutions


def images(n, height=9, width=11, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def reference(pixels, feature_map):
    """The docstring's equation, one patch at a time; cell a has the corners from ⌊a·h/grid⌋ to ⌊(a+1)·h/grid⌋ − 1."""
    size, grid = feature_map.size, feature_map.grid
    height, width = pixels.shape[1] - size + 1, pixels.shape[2] - size + 1
    features = np.zeros((len(pixels), grid, grid, feature_map.n_filters))
    for n, a, b, k in np.ndindex(features.shape):
        responses = []
        for i in range(a * height // grid, (a + 1) * height // grid):
            for j in range(b * width // grid, (b + 1) * width // grid):
                patch = pixels[n, i : i + size, j : j + size] / 255 - 0.5  # (size, size, 3)
                response = sum((patch[:, :, c] * feature_map.filters[k, c].astype(float)).sum() for c in range(3))
                responses.append(max(0.0, response))
        features[n, a, b, k] = np.mean(responses)
    return features.reshape(len(pixels), -1)


@pytest.mark.parametrize(("size", "grid"), [(3, 2), (4, 3), (1, 4), (9, 1)])
def test_matches_a_loop_over_patches(size, grid):
    feature_map = RandomConvolutions(n_filters=5, size=size, grid=grid, random_state=1)
    pixels = images(3)
    features = feature_map(pixels)
    assert features.dtype == np.float32
    assert features.shape == (3, feature_map.n_features)
    np.testing.assert_allclose(features, reference(pixels, feature_map), rtol=1e-4, atol=1e-5)


def test_blocks_change_nothing(monkeypatch):
    feature_map, pixels = RandomConvolutions(n_filters=4, size=3, grid=2), images(10)
    whole = feature_map(pixels)
    monkeypatch.setattr(random_convolutions, "PATCH_CELLS", 3 * 7 * 9 * 27)  # three images to a block
    np.testing.assert_allclose(feature_map(pixels), whole, rtol=1e-5, atol=1e-6)


def test_no_images_give_no_rows():
    assert RandomConvolutions(grid=1)(images(0)).shape == (0, 48)


def test_seed_decides_the_filters():
    pixels = images(2)
    same, other = RandomConvolutions(grid=1, random_state=3), RandomConvolutions(grid=1, random_state=4)
    np.testing.assert_array_equal(same(pixels), RandomConvolutions(grid=1, random_state=3)(pixels))
    assert not np.allclose(same(pixels), other(pixels))


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (images(2).astype(float), "type float64"),
        (images(2)[..., :2], r"shape \(2, 9, 11, 2\)"),
        (images(2)[0], "uint8 images"),
        (images(2), "9 × 11 pixels: filters of size 9 on a grid of 4 need 12 or more"),
    ],
)
def test_images_that_cannot_be_used(pixels, message):
    with pytest.raises(InputError, match=message):
        RandomConvolutions()(pixels)


@pytest.mark.parametrize("setting", ["n_filters", "size", "grid"])
def test_settings_are_counts(setting):
    with pytest.raises(InputError, match=f"{setting} is 0"):
        RandomConvolutions(**{setting: 0})
