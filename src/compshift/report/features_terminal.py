"""An extraction of features on the terminal, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compshift.features.extract import Extraction

MAX_SENTENCES = 10
"""More broken samples than this are counted only."""


def print_extraction(done: Extraction, backbone: str, *, as_json: bool) -> None:
    """What was computed, what was there, what was left out, and how fast it went."""
    if as_json:
        content = {
            "folder": str(done.folder),
            "backbone": backbone,
            "rows": done.rows,
            "features": done.features,
            "shards": done.shards,
            "shards_reused": done.reused,
            "broken": list(done.broken),
            "seconds": done.seconds,
            "forward_seconds": done.forward_seconds,
        }
        print(json.dumps(content))
        return
    reused = f", {done.reused} of them from before" if done.reused else ""
    shards = f"{done.shards} shard{'s' * (done.shards > 1)}"
    print(f"{done.rows} rows of {done.features} features by {backbone} in {shards}{reused}")
    if done.forward_seconds:
        share = 1 - done.forward_seconds / done.seconds
        print(f"{done.seconds:.1f} s, {share:.0%} of them outside the backbone")
    for sentence in done.broken[:MAX_SENTENCES]:
        print(f"left out: {sentence}")
    if len(done.broken) > MAX_SENTENCES:
        print(f"left out: {len(done.broken) - MAX_SENTENCES} more; --json lists them")
    print(f"features written to {done.folder}")
