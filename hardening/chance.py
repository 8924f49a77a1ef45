"""Random numbers, the same in every run; ``HARDENING_SEED=7`` makes others."""

import os
import random

SEED = int(os.environ.get("HARDENING_SEED", "0"))


def chance(name: str) -> random.Random:
    """Random numbers for what has this name."""
    return random.Random(f"{SEED} {name}")
