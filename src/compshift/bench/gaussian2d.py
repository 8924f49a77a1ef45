"""The paper's two-dimensional example: ERM, CRM with the learned and the extrapolated bias, and Bayes."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from compshift._checks import check_count
from compshift.core.arrays import FloatArray
from compshift.data.dataset import GroupedDataset
from compshift.data.gaussian2d import Gaussian2D
from compshift.estimators.crm import CRMClassifier
from compshift.metrics import GroupReport, group_report

ALPHA = 1e-4
"""Two features and thousands of rows need next to no penalty."""


@dataclass(frozen=True, eq=False)
class Gaussian2DStudy:
    """Data, fitted models and the reports of every method."""

    data: GroupedDataset
    crm: CRMClassifier
    crm_train_prior: CRMClassifier  # the same fit, retargeted
    erm: tuple[Any, Any]  # one binary classifier for each attribute
    classes: dict[str, GroupReport]  # predicting z1
    groups: dict[str, GroupReport]  # predicting (z1, z2)

    def numbers(self) -> list[dict[str, Any]]:
        """Accuracy of each method on each group, for both tasks."""
        return [
            {
                "predicting": task,
                "method": method,
                **dict(zip(("z1", "z2"), group, strict=True)),
                "seen": bool(seen),
                "accuracy": float(accuracy),
                "rows": int(count),
            }
            for task, reports in (("z1", self.classes), ("group", self.groups))
            for method, report in reports.items()
            for group, seen, accuracy, count in zip(
                report.space.decode(report.groups).tolist(), self.crm.seen_, report.accuracy, report.count, strict=True
            )
        ]

    def erm_group(self, X: FloatArray) -> Any:
        """Values (n, 2) that ERM's two classifiers give."""
        return np.stack([model.predict(X) for model in self.erm], axis=1)


def run_gaussian2d(n_train: int = 3000, n_test: int = 4000, random_state: int = 0) -> Gaussian2DStudy:
    """Fit every method to the three seen groups and score it on all four."""
    source = Gaussian2D(random_state)
    data = source.sample(check_count(n_train, "samples"), n_test)
    train, test = data.part("train"), data.part("test")
    z_train, z_test = train.columns(["z1", "z2"]), test.columns(["z1", "z2"])

    crm = CRMClassifier(alpha=ALPHA).fit(train.X, z_train["z1"], attributes=z_train["z2"])
    learned = copy(crm).set_params(bias="learned")
    erm = tuple(LogisticRegression().fit(train.X, z_train[name]) for name in ("z1", "z2"))
    erm_joint = LogisticRegression().fit(train.X, train.space.index(train.codes))
    bayes = source.bayes_group(test.X)
    classes = {
        "ERM": erm[0].predict(test.X),
        "CRM (B̂)": learned.predict(test.X),
        "CRM (B*)": crm.predict(test.X),
        "Bayes": bayes[:, 0],
    }
    groups = {
        "ERM": test.space.decode(test.space.codes(erm_joint.predict(test.X))),
        "CRM (B̂)": learned.predict_group(test.X),
        "CRM (B*)": crm.predict_group(test.X),
        "Bayes": bayes,
    }
    return Gaussian2DStudy(
        data=data,
        crm=crm,
        crm_train_prior=copy(crm).set_prior("train"),
        erm=erm,
        classes={name: group_report(z_test["z1"], predicted, z_test["z2"]) for name, predicted in classes.items()},
        groups={name: group_report(z_test, predicted) for name, predicted in groups.items()},
    )
