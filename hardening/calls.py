"""Every public function × kinds of bad input: each ends in a right result or one clear sentence."""

from hardening import calls_data, calls_estimators, calls_groups, calls_torch
from hardening.table import attempt_all
from hardening.tally import Tally

MODULES = (calls_groups, calls_data, calls_torch, calls_estimators)


def run() -> list[Tally]:
    """Try them all."""
    tally = Tally("public functions × kinds of bad input", "inputs")
    for module in MODULES:
        attempt_all(tally, module.calls())
    return [tally]
