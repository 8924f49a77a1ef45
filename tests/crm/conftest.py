"""A fitted classifier that tests of CRM share."""

import pytest

from compshift import CRMClassifier
from tests.estimators.made_data import make_data


@pytest.fixture(scope="module")
def fitted():
    X, codes = make_data()
    return CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1]), X, codes
