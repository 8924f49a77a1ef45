"""The paper's printed numbers.

Source: Mahajan, Pezeshki, Arnal, Mitliagkas, Ahuja, Vincent, *Compositional Risk Minimization*, ICML 2025; transcribed
from its tables, nothing corrected or recomputed. Accuracies are percentages, ``_se`` their standard errors over three
seeds. What does not fit together in them is listed in ``docs/researchers.md``.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from compshift._errors import unknown_name

TABLES = (
    "ablations",
    "celeba_multi_attribute",
    "dataset_statistics",
    "hyperparameters",
    "main_results",
    "scenarios",
    "standard_subpopulation",
)


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of one of the paper's tables, as printed."""
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    text = files("compshift.bench").joinpath("paper_tables", f"{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))
