"""What the CRM classifiers share on the way from data to a fitted model."""

from __future__ import annotations

import warnings

from sklearn.exceptions import ConvergenceWarning

from compshift._checks import check_count, check_positive
from compshift._errors import InputError, check_name
from compshift.estimators.choice import AUTO, Options
from compshift.estimators.combination_scores import Setting
from compshift.estimators.crm_fit import ANCHORS, PARTS, check_parts, fit_crm
from compshift.estimators.crm_model import BIASES, CRMModel
from compshift.estimators.fitted_crm import FittedCRM, check_offset
from compshift.estimators.group_classifier import Labelled
from compshift.estimators.partial_labels import fit_partial

TRIED = ("extrapolated", "shrunk", "cumulant")
"""The biases among which ``"auto"`` chooses."""


class CRMFitter(FittedCRM):
    """Reading the data, checking the parameters, fitting one setting. Its parameters are those of its subclasses."""

    bias: str
    anchor: str
    cross_fit: bool | int | str
    tol: float
    max_iter: int

    def _check_options(self, alphas: tuple[float, ...]) -> tuple[Options, float, int]:
        """Refuse parameters that no data can be fitted with; what there is to choose, ``tol`` and ``max_iter``."""
        check_name("bias", self.bias, (*BIASES, AUTO))
        check_name("anchor", self.anchor, (*ANCHORS, AUTO))
        self._check_support()
        if isinstance(self.cross_fit, str) and self.cross_fit != AUTO:
            raise InputError(f"cross_fit is {self.cross_fit!r}: pass True, False, a number of parts, or 'auto'")
        offset = self.unseen_offset
        options = Options(
            alphas,
            ANCHORS if self.anchor == AUTO else (self.anchor,),
            (0, PARTS) if isinstance(self.cross_fit, str) else (check_parts(self.cross_fit),),
            TRIED if self.bias == AUTO else (self.bias,),
            None if isinstance(offset, str) and offset == AUTO else check_offset(offset),
        )
        return options, check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _takes_missing(self) -> bool:
        return True

    def _check_incomplete(self) -> None:
        if isinstance(self.cross_fit, str) or check_parts(self.cross_fit):
            raise InputError(
                f"cross_fit is {self.cross_fit!r} and attributes are missing in some rows: "
                "use cross_fit=False, or leave those rows out"
            )

    def _fit_setting(self, data: Labelled, setting: Setting, tol: float, max_iter: int) -> None:
        """Fit all rows, and take the result over."""
        X, position, weight, candidates = data.X, data.position, data.sample_weight, data.candidates
        if data.incomplete is None:
            model = fit_crm(X, position, weight, candidates, setting.recipe, tol=tol, max_iter=max_iter)
        else:
            model = fit_partial(
                X, position, weight, data.incomplete, candidates, setting.recipe, tol=tol, max_iter=max_iter
            )
        self.n_missing_ = 0 if data.incomplete is None else len(data.incomplete.X)
        self._take(model, setting, data.n_targets, data.one_dimensional, tol, max_iter)

    def _take(
        self, model: CRMModel, setting: Setting, n_targets: int, one_dimensional: bool, tol: float, max_iter: int
    ) -> None:
        """Take a fitted model over, and say so if the search stopped early."""
        if not model.converged:
            warnings.warn(
                f"the fit stopped after {model.n_iter} iterations at a gradient of {model.gradient:.1e} (tol {tol:g}), "
                f"and biases of seen groups are off by up to {model.bias_gap:.1e}: "
                + (
                    f"raise max_iter (now {max_iter}), raise alpha, or loosen tol"
                    if model.n_iter >= max_iter
                    else "rounding allows no further step; raise alpha or loosen tol"
                ),
                ConvergenceWarning,
                stacklevel=4,
            )
        self._adopt(model, setting, n_targets, one_dimensional)
