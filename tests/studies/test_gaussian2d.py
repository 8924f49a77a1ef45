"""The paper's two-dimensional example: ERM predicts both attributes, CRM the missing group."""

import numpy as np
import pytest

from compshift.studies.gaussian2d import run_gaussian2d


@pytest.fixture(scope="module")
def study():
    return run_gaussian2d(n_train=600, n_test=400)


def test_erm_predicts_each_attribute_by_its_own_classifier(study):
    test = study.data.part("test")
    values = study.data.space.decode(test.codes)
    seen = study.crm.seen_[study.data.space.index(test.codes)]
    right = (study.erm_group(test.X) == values)[seen].mean(axis=0)  # (2,)
    assert (right > 0.75).all()


def test_crm_predicts_the_missing_group_where_erm_does_not(study):
    missing = int(np.flatnonzero(~study.crm.seen_)[0])
    accuracy = {name: report.accuracy[missing] for name, report in study.groups.items()}
    erm = next(value for name, value in accuracy.items() if "ERM" in name)
    assert max(accuracy.values()) > erm + 0.2
