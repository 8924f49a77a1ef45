"""Random problems of several shapes, and the array libraries that the maths runs on."""

import numpy as np
import pytest

from tests.references import random_problem

CARDINALITIES = [[3], [2, 3], [4, 2], [3, 2, 4], [2, 3, 2, 2, 3], [1, 3, 2]]


@pytest.fixture(params=CARDINALITIES, ids=str)
def problem(request):
    return random_problem(np.random.default_rng(len(request.param)), request.param)


@pytest.fixture(params=["numpy", "torch"])
def library(request):
    return request.param
