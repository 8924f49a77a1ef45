"""Every public function × kinds of bad input: each ends in a right result or one clear sentence."""

import re

from tests.public_api import public_api

from hardening.calls import data, estimators, groups, networks
from hardening.calls.table import attempt_all
from hardening.tally import Tally

MODULES = (groups, data, networks, estimators)

ELSEWHERE = {
    r"methods.Method(\..+)?|nn.Backbone(\..+)?|.*\.extra_repr": "written by users, called by the training loop",
    r".*\.(set_\w+_request)": "scikit-learn's",
    r"GroupSpace.(encode_columns|encode_keys|frame_with|frequencies|from_columns|match)": "given what was read",
    r"GroupSpace.columns_of": "part of encode",
    r".*\.(from_model|check_parameters|get_n_splits|group_folds|class_first|rows)": "given what was checked",
    r".*\.(get_extra_state|set_extra_state)": "PyTorch's, tried by loading states",
    r".*\.(last_features|last_weights)": "given what the head made",
    r".*\.(centred_learned_bias|log_score|about|embed|rate|resolved|to_dict|to_frame)": "part of a call that is tried",
    r"CombinationKFold|data.Scenario|features.Extraction|metrics.GroupReport": "made by calls that are tried",
    r"training.TrainedClassifier": "made by training",
    r"ExtrapolationWarning|InputError": "raised, not called",
}
"""Public names that are not called with input of a user's own, and why."""


def run() -> list[Tally]:
    """Try them all, and see that none was forgotten."""
    tally = Tally("public functions × kinds of bad input", "inputs")
    tried: set[str] = set()
    for module in MODULES:
        tried |= attempt_all(tally, module.calls())
    for name in forgotten(tried):
        tally.fail("wrong result", f"{name} is public and in no table of calls")
    return [tally]


def forgotten(tried: set[str]) -> list[str]:
    """Public functions, classes and methods that are neither tried nor tried elsewhere."""
    lines = [line.removeprefix("class ").removeprefix("compshift.") for line in public_api() if "(" in line]
    called = [re.match(r"[\w.]+", line)[0] for line in lines if not re.search(r" \(\w+\)$", line)]  # type: ignore[index]
    return [name for name in called if name not in tried and not any(re.fullmatch(known, name) for known in ELSEWHERE)]
