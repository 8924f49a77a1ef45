"""Every public function × kinds of bad input: each ends in a right result or one clear sentence."""

import calls_data
import calls_estimators
import calls_groups
import calls_torch
from outcome import Tally
from table import attempt_all

MODULES = (calls_groups, calls_data, calls_torch, calls_estimators)


def run() -> list[Tally]:
    """Try them all."""
    tally = Tally("public functions × kinds of bad input", "inputs")
    for module in MODULES:
        attempt_all(tally, module.calls())
    return [tally]
