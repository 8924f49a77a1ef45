"""Replace the names of parameters in the library's messages by the options of the command that was run.

``as_options`` knows these forms in which a message can name a parameter:

==================================  =========================================
``max_values``, anywhere            ``--max-values``
``alpha is -1``, at the beginning   ``--alpha is -1``
``prior='hull'``                    ``--prior hull``
``cross_fit=True``                  ``--cross-fit``
``pass strict=False``               ``leave out --strict``
``with overwrite``, ``as root``     ``with --overwrite``, ``as --root``
``raise alpha``                     ``raise --alpha``
==================================  =========================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

OTHER_NAMES = {
    "num_workers": "workers",
    "n_jobs": "jobs",
    "random_state": "seed",
    "alphas": "alpha",
    "attributes": "known",
    "coverage": "sets",
    "feature_transform": "transform",
}
"""Parameter of the library → parameter of the command, where the two have different names."""

ALSO_COMMON_WORDS = ("split", "features")
"""Parameters that are also names of columns or arrays: "split has 2 dimensions" is about a file, not about --split."""

QUOTED = r"(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\w\((?:[^()]|\([^()]*\))*\)"
"""Matches text in which nothing is translated: file names, values, commands, and calls of Python functions."""


def command_options(command: Any, arguments: Sequence[str]) -> dict[str, str]:
    """Return the options that the command line offers, by the name of the library's parameter.

    ``command`` is the top-level command, ``arguments`` are its arguments in this call. With --config, parameters may
    come from a file that uses the library's names; then only flags and the options in ``arguments`` are returned.
    """
    for argument in arguments:
        command = getattr(command, "commands", {}).get(argument, command)
    options: dict[str, str] = {}
    given = {argument.partition("=")[0] for argument in arguments}
    for parameter in command.params:
        name = max(parameter.opts, key=len)
        if name.startswith("--") and ("--config" not in given or name in given or getattr(parameter, "is_flag", False)):
            options[parameter.name.rstrip("_")] = name
    return options | {other: options[name] for other, name in OTHER_NAMES.items() if name in options}


def as_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message with every parameter in ``options`` replaced by its option."""

    def one_of(*names: str) -> str:
        return f"(?:{'|'.join(names) or '(?!)'})"  # (?!) never matches

    every = one_of(*options)
    subject = one_of(*(name for name in options if name not in ALSO_COMMON_WORDS))
    coined = one_of(*(name for name in options if "_" in name))
    after_with = one_of(*(name for name in options if name in ("overwrite", "root", "shares", "weights")))
    forms = (
        QUOTED,
        rf"\b(?:use|pass) (?P<unset>{every})=(?:False|None)\b",
        rf"\b(?P<set>{every})=(?P<value>'[^']*'|\"[^\"]*\"|[-+.\w]+)",
        rf"(?:^|(?<=: )){subject}(?=:| (?:is|lists|gives|cannot|needs|names|contains|and)\b)",
        rf"(?<= and ){subject}(?= (?:is|need)\b)",
        rf"(?:(?<=\braise )|(?<=\bloosen )){every}\b",
        rf"(?<=\bleave ){every}(?= out\b)",
        rf"(?:(?<=\bwith )|(?<=\bas )|(?<=\bor )){after_with}\b",
        rf"(?<![-\w./]){coined}(?![-\w/])",
    )

    def option(found: re.Match[str]) -> str:
        if found["unset"]:
            return f"leave out {options[found['unset']]}"
        if found["set"]:
            value = found["value"].strip("'\"")
            return options[found["set"]] + (f" {value}" if value != "True" else "")
        return options.get(found[0], found[0])  # a parameter, or quoted text

    return re.sub("|".join(forms), option, message)
