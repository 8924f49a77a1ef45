"""Full and failing disks: refusals at changes of files, files that may not grow, and a real small disk."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from hardening.faults.forked import Ended
from hardening.faults.injection import BROKEN, FULL, READ_ONLY, no_file_beyond, refuse_from
from hardening.faults.scenes import Reference, numbers
from hardening.faults.verdicts import REFERENCES, Fault, Verdict, half_written, lost, one_sentence, put_old, same_end

MOST = {"bench": 10, "train": 12, "features": 8, "figure": 2}
SHARES = (0.1, 0.9)
"""Sizes beyond which no file can grow, as shares of the largest one."""

SMALL_DISKS = (20, 44)
"""Kilobytes of a real disk."""


def disk_faults() -> list[Fault]:
    """Faults of the disk under every command."""
    faults = []
    for name, reference in REFERENCES.items():
        for number in numbers(reference.events, MOST.get(name, 10)):
            label = f"{name}, disk full from change {number} of {reference.events} on"
            faults.append(Fault("full disk", label, partial(refused, name, number=number, code=FULL)))
        for number in numbers(reference.events, 2)[1:]:
            label = f"{name}, disk broken from change {number} on"
            faults.append(Fault("full disk", label, partial(refused, name, number=number, code=BROKEN)))
        label = f"{name}, disk becomes read-only half-way"
        faults.append(
            Fault("full disk", label, partial(refused, name, number=reference.events // 2 + 1, code=READ_ONLY))
        )
        for size in sorted({int(share * reference.largest) for share in SHARES}):
            label = f"{name}, no file beyond {size} bytes"
            faults.append(Fault("full disk", label, partial(refused, name, size=size)))
    if can_mount():
        for name in ("bench", "train", "features"):
            for kilobytes in SMALL_DISKS:
                label = f"{name} on a disk of {kilobytes} kB"
                faults.append(Fault("full disk", label, partial(on_small_disk, name, kilobytes)))
    return faults


def refused(name: str, cwd: Path, *, number: int = 0, code: int = 0, size: int | None = None) -> Verdict:
    """One refusal of the system, and the same command again once it is over."""
    reference = REFERENCES[name]
    old = not reference.scene.resumes
    if old:
        put_old(reference, cwd)
    inject = no_file_beyond(size, deadly=False) if size is not None else refuse_from(number, code)
    return judged(reference, cwd, reference.scene.run(cwd, inject), old=old)


def judged(reference: Reference, cwd: Path, ended: Ended, *, old: bool = False) -> Verdict:
    """A command that was refused something said so and lost nothing, or did without."""
    found = half_written(reference, cwd, old=old)
    if found:
        return lost(found)
    if ended.code != 0:
        failure = one_sentence(ended)
        if failure:
            return failure
    verdict = same_end(reference, cwd, "refused")
    return "refused" if verdict == "answered" and ended.code != 0 else verdict


def on_small_disk(name: str, kilobytes: int, cwd: Path) -> Verdict:
    """A file system that is full before the command ends, and is then enlarged."""
    reference = REFERENCES[name]
    with small_disk(cwd, f"{kilobytes}k"):
        ended = reference.scene.run(cwd)
        subprocess.run(["mount", "-o", "remount,size=20m", str(cwd)], check=True)
        return judged(reference, cwd, ended)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of some size in a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@cache
def can_mount() -> bool:
    """Whether this user may mount; without that, full disks are injected ones alone."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder), "100k"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False
