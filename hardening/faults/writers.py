"""Two and three processes that write to one place at once, and locks that somebody left behind."""

import errno
import fcntl
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from hardening.faults.forked import Forked
from hardening.faults.injection import kill_before, watch
from hardening.faults.verdicts import REFERENCES, Fault, Verdict, differing, lost, one_sentence, same_end, unlike

PART = "several writers"
STALE = '{"pid": 1, "hostname": "another-host"}\n1\nanother-host\n'


def writer_faults() -> list[Fault]:
    """Every command beside itself; stale locks; a file system without locks."""
    faults = []
    for name, reference in unlike():
        faults += [Fault(PART, f"{name}, {count} at once", partial(at_once, name, count)) for count in (2, 3)]
        if reference.scene.resumes:
            faults.append(Fault(PART, f"{name}, locks of another host are left", partial(stale, name)))
            faults.append(Fault(PART, f"{name}, a file system without locks", partial(without_locks, name)))
            faults.append(Fault(PART, f"{name}, 2 at once after a kill", partial(at_once, name, 2, after_kill=True)))
    return faults


def at_once(name: str, count: int, cwd: Path, *, after_kill: bool = False) -> Verdict:
    """All succeed, or are told that another is at work; every finished job counts once."""
    reference = REFERENCES[name]
    if after_kill:
        reference.scene.run(cwd, kill_before(reference.events // 2))
    finished = len(list(cwd.glob("bench/jobs/[!.]*.json")))
    running = [Forked(reference.scene.arguments, cwd, lambda: watch(_slowly)) for _ in range(count)]
    ended = [process.end() for process in running]
    refused = 0
    for one in ended:
        if one.code != 0:
            failure = one_sentence(one)
            if failure:
                return failure
            if not ("another process" in one.err and name in ("train", "features")):
                return lost(f"one of {count} was refused: {one.err.strip()}")
            refused += 1
    if refused == count:
        return lost("each was refused for another's sake")
    found = differing(reference.found, reference.scene.found(cwd))
    if found:
        return lost(f"{count} at once differ from one alone in {found}")
    if name == "bench":
        new = sum(json.loads(one.out)["new"] for one in ended)
        total = json.loads(reference.out)["new"]
        if new != total - finished:
            return lost(f"{new} jobs were run, and {total - finished} were to be")
    verdict = same_end(reference, cwd, f"{count} at once")
    return "refused" if verdict == "answered" and refused else verdict


def stale(name: str, cwd: Path) -> Verdict:
    """Lock files with somebody's name in them, and nobody who holds them."""
    reference = REFERENCES[name]
    reference.scene.run(cwd, kill_before(reference.events // 2))
    if name == "bench":
        records = [path for path in reference.found if path.startswith("jobs/")]
        for record in records:
            (cwd / "bench" / "locks" / Path(record).stem).write_text(STALE)
    for lock in ("bench/.lock", "run/.lock", "shards/_lock"):
        if (cwd / lock).parent.is_dir():
            (cwd / lock).write_text(STALE)
    return same_end(reference, cwd, "stale locks")


def without_locks(name: str, cwd: Path) -> Verdict:
    """Where there are no locks, nothing is begun that could be done twice."""
    reference = REFERENCES[name]
    ended = reference.scene.run(cwd, _no_flock)
    if ended.code == 0:
        return lost("it went on without locks")
    failure = one_sentence(ended)
    if failure:
        return failure
    verdict = same_end(reference, cwd, "without locks")
    return "refused" if verdict == "answered" else verdict


def _no_flock() -> None:
    def missing(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    fcntl.flock = missing


def _slowly(*_: Any) -> None:
    """Stay a while at every change, so that the others are there at the same time."""
    time.sleep(0.002)
