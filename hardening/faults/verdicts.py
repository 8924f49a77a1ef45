"""What is asked after a fault: nothing lost, nothing half taken for whole, one clear sentence, and the same end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from hardening.faults.forked import Ended, Inject
from hardening.faults.scenes import OLD, Found, Reference
from hardening.tally import Failure, Tally, unclear_text

Verdict = Literal["answered", "refused"] | Failure

GROWING = ("metrics.jsonl", "last.safetensors", "best.safetensors")
"""Files of a run that change while it goes."""

REFERENCES: dict[str, Reference] = {}
"""By the names of the scenes; filled before any fault is tried."""


TWINS = ("predict to Parquet", "datasets export", "figure")
"""Scenes that differ from others in how a file is written, and in nothing else."""


def unlike() -> list[tuple[str, Reference]]:
    """Scenes, each of another kind."""
    return [(name, reference) for name, reference in REFERENCES.items() if name not in TWINS]


class Fault(NamedTuple):
    """Something to go wrong, in a folder of its own."""

    part: str
    label: str
    call: Callable[[Path], Verdict]


def count(tally: Tally, verdict: Verdict) -> None:
    """Add what came of a fault."""
    if verdict == "answered":
        tally.answered += 1
    elif verdict == "refused":
        tally.refused += 1
    else:
        tally.fail(*verdict)


def lost(what: str) -> Failure:
    """A result is lost, counted twice, or half of it taken for whole."""
    return Failure("lost result", what)


def half_written(reference: Reference, cwd: Path, *, old: bool) -> str | None:
    """What under a final name is neither whole nor what was there before."""
    try:
        found = reference.scene.found(cwd)
    except (ValueError, KeyError) as error:
        return f"half a file has its final name ({error})"
    for name, content in found.items():
        if name in GROWING or content == reference.found.get(name, content):
            continue
        if old and (cwd / name).is_file() and (cwd / name).read_bytes() == OLD:
            continue
        return f"{name} is neither whole nor what it was"
    if old:
        gone = [name for name in (reference.scene.output, *reference.scene.beside) if not (cwd / name).exists()]
        if gone:
            return f"{gone[0]} is gone, and was there before"
    return None


def kept_parts(reference: Reference, cwd: Path) -> dict[Path, int]:
    """Finished parts of a folder, with the moments at which they were written."""
    patterns = {"bench": "bench/jobs/[!.]*.json", "features": "shards/[!.]*.parquet"}
    pattern = patterns.get(reference.scene.name)
    return {path: path.stat().st_mtime_ns for path in cwd.glob(pattern)} if pattern else {}


def same_end(
    reference: Reference, cwd: Path, before: str, inject: Inject | None = None, *, recomputed: bool = False
) -> Verdict:
    """Run the command again: it must end as if nothing had happened, and leave finished parts alone."""
    kept = kept_parts(reference, cwd)
    again = reference.scene.run(cwd, inject)
    if again.code != 0:
        return lost(f"{before}: then the same command ended with {again.code}: {again.err.strip()[-300:]}")
    difference = differing(reference.found, reference.scene.found(cwd))
    if difference:
        return lost(f"{before}: then the same command ended otherwise, in {difference}")
    if not recomputed and kept != {path: moment for path, moment in kept_parts(reference, cwd).items() if path in kept}:
        return lost(f"{before}: then finished parts were made again")
    if reference.scene.name == "bench" and not recomputed:
        told = again.told
        total = sum(json.loads(reference.out)[name] for name in ("new", "known"))
        if (told["known"], told["new"]) != (len(kept), total - len(kept)):
            return lost(f"{before}: {len(kept)} jobs were finished, and it told of {told['known']} + {told['new']}")
    return "answered"


def one_sentence(ended: Ended, codes: tuple[int, ...] = (2,)) -> Failure | None:
    """What is wrong with how a command refused."""
    said = [line for line in ended.err.strip().splitlines() if not line.startswith("warning: ")]
    if ended.code is None:
        return Failure("internal error", "it did not end")
    if "Traceback" in ended.err or "for the traceback" in ended.err or "Exception ignored" in ended.err:
        return Failure("internal error", ended.err.strip()[-400:])
    if ended.code not in codes:
        return Failure("internal error", f"exit code {ended.code}: {ended.err.strip()[-300:]}")
    if said[:1] and said[0].startswith("Usage: "):  # of the parser, with the sentence in a box
        said = [" ".join(line.strip("│ ") for line in said if line.startswith("│"))]
    complaint = unclear_text("\n".join(said))
    for raw in ("[Errno", "None", "os error"):
        if complaint is None and raw in said[-1]:
            complaint = f"{raw!r} is said"
    return Failure("unclear sentence", f"{complaint}: {ended.err.strip()[-400:]}") if complaint else None


def put_old(reference: Reference, cwd: Path) -> None:
    """Have an older output there."""
    for file in (reference.scene.output, *reference.scene.beside):
        (cwd / file).write_bytes(OLD)


def differing(wanted: Found, found: Found) -> str | None:
    """The first name under which two states differ."""
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            return name + ("" if name in found else " (missing)" if name in wanted else " (new)")
    return None


def labelled(label: str, verdict: Verdict) -> Verdict:
    """A failure that tells of which fault it is."""
    return Failure(verdict.kind, f"{label}: {verdict.what}") if isinstance(verdict, Failure) else verdict
