"""Every command with every kind of bad input: a right result, or one clear sentence and exit code 2."""

import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hardening.commands.call import attempt
from hardening.commands.features import feature_commands
from hardening.commands.ground import make_ground
from hardening.commands.options import option_commands
from hardening.commands.paths import path_commands
from hardening.commands.surroundings import try_surroundings
from hardening.commands.tables import count_commands, large_commands, table_commands
from hardening.share import some
from hardening.tally import Tally

os.environ["HF_HUB_OFFLINE"] = "1"  # a backbone that is not there is not looked for on the network
MEMORY = 12 << 30
"""Bytes of address space; a number that is out of range must not take the machine with it."""

KINDS = {
    "tables": table_commands,
    "counts": count_commands,
    "large tables": large_commands,
    "feature files": feature_commands,
    "options": option_commands,
    "paths": path_commands,
}


def run() -> Iterator[Tally]:
    """Try them all; one count for each kind of input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        os.chdir(folder)
        ground = make_ground(folder)
        for kind, commands in KINDS.items():
            tally = Tally(f"commands: {kind}", "inputs")
            for command in some(commands(ground)):
                attempt(tally, command, folder / "out")
            yield tally
        tally = Tally("commands: surroundings", "inputs")
        try_surroundings(tally, ground)
        yield tally
