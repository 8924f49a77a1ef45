import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from compshift import InputError
from compshift.data import digits_backgrounds
from compshift.data.digits_backgrounds import SIDE, SPACE, RandomConvolutions, load_digits_backgrounds

TRAIN, VAL, TEST = range(3)
PIXELS_SHA256 = "0746309dc5d6cb8e0438ca48bdd1dc1b6df177eb7773cc199741b8a0ffced123"
CODES_SHA256 = "82cdeaf5e77f936d09a85bee776c351c7677da5b5d670750d35e72f9eb5c7182"


@pytest.fixture(scope="module")
def data():
    return load_digits_backgrounds()


@pytest.fixture(scope="module")
def balanced():
    return load_digits_backgrounds(balanced=True)


@pytest.fixture(scope="module")
def features(data):
    return RandomConvolutions()(data.samples.pixels)


def group_counts(data, split):
    return np.bincount(SPACE.index(data.codes[data.split == split]), minlength=SPACE.n_groups).reshape(10, 5)


def test_images_are_pinned(data):
    """Pixels and groups of seed 0 must never change, because results are compared across versions."""
    assert data.samples.pixels.shape == (5580, SIDE, SIDE, 3)
    assert data.samples.pixels.dtype == np.uint8
    assert hashlib.sha256(data.samples.pixels.tobytes()).hexdigest() == PIXELS_SHA256
    assert hashlib.sha256(data.codes.astype(np.uint8).tobytes()).hexdigest() == CODES_SHA256


def test_same_seed_same_images(data):
    again, other = load_digits_backgrounds(0), load_digits_backgrounds(1)
    np.testing.assert_array_equal(again.samples.pixels, data.samples.pixels)
    assert (other.samples.pixels != data.samples.pixels).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(other.origin, data.origin)
    np.testing.assert_array_equal(other.split, data.split)


def test_no_two_images_share_a_texture(data):
    """The top row of pixels, which no digit reaches, is different in every image."""
    assert len(np.unique(data.samples.pixels[:, 0].reshape(len(data.samples.pixels), -1), axis=0)) == len(
        data.samples.pixels
    )


def test_scans_keep_their_digit_and_their_split(data):
    np.testing.assert_array_equal(data.codes[:, 0], load_digits().target[data.origin])
    np.testing.assert_array_equal(np.unique(data.origin), np.arange(1797))
    assert len(np.unique(np.stack([data.origin, data.split], axis=1), axis=0)) == 1797


@pytest.mark.parametrize(("split", "fewest"), [(VAL, 20), (TEST, 35)])
def test_evaluation_scans_are_on_every_background(data, split, fewest):
    rows = data.split == split
    scans, counts = np.unique(data.origin[rows], return_counts=True)
    assert (counts == 5).all()
    assert len(np.unique(data.origin[rows] * 5 + data.codes[:, 1][rows])) == 5 * len(scans)
    assert group_counts(data, split).min() >= fewest


def test_training_background_is_correlated_with_the_digit(data):
    counts = group_counts(data, TRAIN)
    majority = counts[np.arange(10), np.arange(10) % 5] / counts.sum(axis=1)
    np.testing.assert_allclose(majority, 0.95, atol=0.003)
    assert counts.min() >= 2


def test_minority_rows_come_from_different_scans(data):
    minority = (data.split == TRAIN) & (data.codes[:, 1] != data.codes[:, 0] % 5)
    assert len(np.unique(data.origin[minority])) == minority.sum()


def test_balanced_changes_training_rows_only(data, balanced):
    np.testing.assert_array_equal(balanced.origin, data.origin)
    np.testing.assert_array_equal(balanced.split, data.split)
    later = data.split != TRAIN
    np.testing.assert_array_equal(balanced.samples.pixels[later], data.samples.pixels[later])
    np.testing.assert_array_equal(balanced.codes[:, 1][later], data.codes[:, 1][later])
    counts = group_counts(balanced, TRAIN)
    assert (np.ptp(counts, axis=1) <= 1).all()


def test_digit_is_drawn_in_one_light_ink(data):
    """Every third pixel has the value of one cell of the 8 × 8 scan: pure ink if it is ≥ 14, no ink if it is 0."""
    shown = data.samples.pixels[:, 3:25:3, 3:25:3].astype(float)  # (n, 8, 8, 3)
    for image, scan in zip(shown, load_digits().images[data.origin], strict=True):
        ink, ground = image[scan >= 14], image[scan == 0]
        assert (np.ptp(ink, axis=0) == 0).all()
        assert ink.mean(axis=1).min() > ground.mean(axis=1).max() + 30


def worst_group_accuracy(data, features, train_features, train_digit):
    """Return the worst group accuracy on test of multinomial logistic regression on standardised features."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (1e-2 * len(train_digit)), max_iter=1000))
    test = data.split == TEST
    correct = model.fit(train_features, train_digit).predict(features[test]) == data.codes[:, 0][test]
    group = SPACE.index(data.codes[test])
    return (np.bincount(group, weights=correct) / np.bincount(group)).min()


@pytest.mark.parametrize("dropped", [(0, "stripes"), (3, "speckle"), (4, "gradient"), (6, "rings")])
def test_erm_fails_when_a_group_is_dropped(data, features, dropped):
    kept = (data.split == TRAIN) & (SPACE.index(data.codes) != SPACE.index(SPACE.encode([dropped])))
    assert worst_group_accuracy(data, features, features[kept], data.codes[:, 0][kept]) < 0.5


def test_every_group_is_accurate_when_training_is_balanced(data, features, balanced):
    train = balanced.split == TRAIN
    balanced_features = RandomConvolutions()(balanced.samples.pixels[train])
    assert worst_group_accuracy(data, features, balanced_features, balanced.codes[:, 0][train]) >= 0.85


def images(n, height=9, width=11, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def reference(pixels, feature_map):
    """Evaluate the docstring's equation by patch; cell a has the corners from ⌊a·h/grid⌋ to ⌊(a+1)·h/grid⌋ − 1."""
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
def test_features_match_a_loop_over_patches(size, grid):
    feature_map = RandomConvolutions(n_filters=5, size=size, grid=grid, random_state=1)
    pixels = images(3)
    features = feature_map(pixels)
    assert features.dtype == np.float32
    assert features.shape == (3, feature_map.n_features)
    np.testing.assert_allclose(features, reference(pixels, feature_map), rtol=1e-4, atol=1e-5)


def test_features_do_not_depend_on_the_blocks(monkeypatch):
    feature_map, pixels = RandomConvolutions(n_filters=4, size=3, grid=2), images(10)
    whole = feature_map(pixels)
    monkeypatch.setattr(digits_backgrounds, "PATCH_CELLS", 3 * 7 * 9 * 27)  # three images per block
    np.testing.assert_allclose(feature_map(pixels), whole, rtol=1e-5, atol=1e-6)


def test_no_images_return_no_rows():
    assert RandomConvolutions(grid=1)(images(0)).shape == (0, 48)


def test_random_state_determines_the_filters():
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
def test_other_images_raise(pixels, message):
    with pytest.raises(InputError, match=message):
        RandomConvolutions()(pixels)


@pytest.mark.parametrize("setting", ["n_filters", "size", "grid"])
def test_settings_below_one_raise(setting):
    with pytest.raises(InputError, match=f"{setting} is 0"):
        RandomConvolutions(**{setting: 0})
