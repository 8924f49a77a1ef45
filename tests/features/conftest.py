"""Photographs and texts of the same few groups."""

import numpy as np
import pytest

from compshift.data.dataset import GroupedDataset, ImageFiles, Texts
from tests.features.small import SPACE, N
from tests.nn import models


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with photographs and two models."""
    home = tmp_path_factory.mktemp("features")
    models.photographs(home / "photos", N)
    models.resnet(home / "resnet")
    models.bert(home / "bert")
    return home


@pytest.fixture
def data(home):
    names = np.array([f"{number:03d}.jpg" for number in range(N)])
    codes = np.stack([np.arange(N) % 2, np.arange(N) % 3], axis=1)
    return GroupedDataset(ImageFiles(home / "photos", names), SPACE, codes, np.arange(N) % 3)


@pytest.fixture
def texts():
    words = ["cat", "dog", "bird", "sits", "runs", "sings", "on", "under", "a", "tree"]
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, size=rng.integers(1, 20))) for _ in range(N)]
    codes = np.stack([np.arange(N) % 2, np.arange(N) % 3], axis=1)
    return GroupedDataset(Texts(np.array(lines, dtype=object)), SPACE, codes)
