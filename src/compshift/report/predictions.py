"""Predictions as a table, and tables as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import InputError
from compshift._files import check_target, replacing
from compshift.data.shards import PARQUET
from compshift.data.text_tables import ending

if TYPE_CHECKING:
    import pandas as pd

    from compshift.core.groups import GroupSpace


def prediction_frame(clf: Any, X: Any, *, groups: bool, explain: bool) -> pd.DataFrame:
    """One row per sample: each target, the probability of its values, and on request of every group.

    Probability columns are named ``P(bird=waterbird)`` and ``P(bird=waterbird, place=land)``. With ``explain`` the
    columns ``group …`` tell the most probable group and what its bias rests on.
    """
    import pandas as pd

    if (groups or explain) and not hasattr(clf, "group_log_proba"):
        raise InputError("--groups and --explain are for models of groups, and this one predicts classes alone")
    targets = clf.targets_
    predicted, proba = clf.predict(X), clf.predict_proba(X)
    if predicted.ndim == 1:
        predicted, proba = predicted[:, None], [proba]
    columns: dict[str, Any] = {name: predicted[:, column] for column, name in enumerate(targets.names)}
    for name, values, part in zip(targets.names, targets.values, proba, strict=True):
        columns |= {f"P({name}={value})": part[:, column] for column, value in enumerate(values)}
    if groups:
        joint = np.exp(clf.group_log_proba(X))
        columns |= {_group_column(clf.space_, code): joint[:, column] for column, code in enumerate(clf.groups_)}
    frame = pd.DataFrame(columns).infer_objects()
    if explain:
        reasons = clf.explain(X)
        further = ["probability", "seen", "inside hull", "effective sample size"]
        names = [f"{name} (attribute)" if name in further else name for name in clf.space_.names]
        reasons.columns = [f"group {name}" for name in (*names, *further)]
        frame = pd.concat([frame, reasons], axis=1)
    return frame


def _group_column(space: GroupSpace, code: Any) -> str:
    """``P(bird=waterbird, place=land)``."""
    pairs = zip(space.names, space.values, code, strict=True)
    return "P(" + ", ".join(f"{name}={values[position]}" for name, values, position in pairs) + ")"


def check_table_path(path: Path, *sources: str | Path | None) -> None:
    """Refuse a path that a table cannot be written to, or that is one of the ``sources``."""
    if ending(path) not in (".csv", *PARQUET):
        raise InputError(f"{path.name!r} has the ending {path.suffix!r}: tables are written as .csv or .parquet")
    check_target(path, *sources)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV or Parquet, by the ending of its name."""
    check_table_path(path)
    with replacing(path) as temporary:
        if ending(path) == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)
