"""The paper's methods and printed tables.

Source: Mahajan, Pezeshki, Arnal, Mitliagkas, Ahuja, Vincent, *Compositional Risk Minimization*, ICML 2025. The tables
are transcribed as printed, without corrections: accuracies are percentages, and columns that end in ``_se`` are their
standard errors over three seeds. ``docs/researchers.md`` lists printed numbers that contradict each other.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from compshift._errors import unknown_name

PAPER_METHODS = {
    "erm": "ERM",
    "groupdro": "GroupDRO",
    "lc": "LC",
    "sla": "sLA",
    "irm": "IRM",
    "vrex": "VREx",
    "mixup": "Mixup",
    "crm": "CRM",
}
"""The paper's eight methods in the paper's order, with the names in its tables."""

POOL_METHOD = "crm-unlabelled"
"""Name of CRM with a pool of unlabelled rows. Plans include it if a pool is requested; users cannot pass the name."""

FURTHER_METHODS = {
    POOL_METHOD: "CRM + unlabelled",
    "rwg": "RWG",
    "subg": "SUBG",
    "dfr": "DFR",
    "crm-resolved": "CRM resolved",
}
"""Methods of this package that are absent from the paper's main table, with their names in tables."""

VARIANTS = {
    "extrapolated-uniform": "CRM",
    "extrapolated-empirical": "B* + Emp Prior",
    "learned-uniform": "B_hat + Unf Prior",
    "learned-empirical": "B_hat + Emp Prior",
}
"""CRM's predictors, with their names in the paper's ablation table."""

PAPER_TABLES = (
    "ablations",
    "celeba_multi_attribute",
    "dataset_statistics",
    "hyperparameters",
    "main_results",
    "scenarios",
    "standard_subpopulation",
)
"""Names of the transcribed tables; each is a CSV file in ``paper_tables``."""


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the paper's tables, as printed."""
    if name not in PAPER_TABLES:
        raise unknown_name("table", name, PAPER_TABLES)
    text = files("compshift.bench").joinpath("paper_tables", f"{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def printed(method: str) -> str:
    """Return the name of a method in tables; methods of plugins are printed under their own name."""
    return {**PAPER_METHODS, **FURTHER_METHODS}.get(method, method)
