"""Choosing one draw of several, by validation alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compshift.bench.scores import scores


def choose_draw(records: Mapping[int, dict[str, Any]], metric: str) -> int | None:
    """The draw whose reported predictor has the best validation accuracy, the first of equals.

    Draws that diverged are out of the question; None if all did. A lone draw needs no validation rows.
    """
    finished = {draw: record for draw, record in sorted(records.items()) if record["status"] == "done"}
    if len(finished) <= 1:
        return next(iter(finished), None)
    found = {draw: scores(record, "val")[metric] for draw, record in finished.items()}
    return max(found, key=lambda draw: (found[draw], -draw))
