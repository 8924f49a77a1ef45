"""Faults of the machine: after each, nothing is lost or counted twice, and the same command ends as if undisturbed."""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree

from hardening.faults.clocks import clock_faults
from hardening.faults.disks import disk_faults
from hardening.faults.forked import import_what_is_used
from hardening.faults.injection import counting
from hardening.faults.kills import kill_faults
from hardening.faults.leftovers import leftover_faults
from hardening.faults.places import place_faults
from hardening.faults.scenes import Reference, Scene, make_scenes
from hardening.faults.signals import signal_faults
from hardening.faults.verdicts import REFERENCES, Fault, Verdict, count, labelled
from hardening.faults.workers import worker_faults
from hardening.faults.writers import writer_faults
from hardening.share import some
from hardening.tally import Failure, Tally

AT_ONCE = 2


def run() -> Iterable[Tally]:
    """Try every fault, two at a time, and count by kind."""
    with _home() as home:
        scenes = make_scenes(home)
        import_what_is_used([(scene.arguments, home / "made") for scene in scenes])
        for path in home.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # for a user without rights too
        for scene in scenes:
            REFERENCES[scene.name] = _undisturbed(scene, home)
        faults = some(all_faults())
        tallies = {fault.part: Tally(f"faults: {fault.part}", "faults") for fault in faults}
        with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("fork")) as pool:
            folders = [str(home / f"fault{number}") for number in range(len(faults))]
            for fault, verdict in zip(faults, pool.map(attempt, faults, folders), strict=True):
                count(tallies[fault.part], labelled(fault.label, verdict))
    return tallies.values()


def all_faults() -> Iterator[Fault]:
    """Long ones first, so that the last to end is a short one."""
    yield from worker_faults()
    yield from kill_faults()
    yield from disk_faults()
    yield from place_faults()
    yield from clock_faults()
    yield from writer_faults()
    yield from signal_faults()
    yield from leftover_faults()


def attempt(fault: Fault, folder: str) -> Verdict:
    """Try one fault in a new folder; an error of the check itself must not pass for a success."""
    cwd = Path(folder)
    cwd.mkdir()
    try:
        return fault.call(cwd)
    except Exception as error:
        return Failure("internal error", f"the check failed: {type(error).__name__}: {error}")
    finally:
        rmtree(cwd, ignore_errors=True)


def _undisturbed(scene: Scene, home: Path) -> Reference:
    """What a scene leaves in a new folder, and in how many changes."""
    cwd = home / f"undisturbed {scene.name}"
    cwd.mkdir()
    start = time.perf_counter()
    ended = scene.run(cwd, counting)
    seconds = time.perf_counter() - start
    if ended.code != 0:
        raise RuntimeError(f"{scene.name} ended with {ended.code} without a fault: {ended.err}")
    largest = max(path.stat().st_size for path in cwd.rglob("*") if path.is_file())
    return Reference(scene, scene.found(cwd), ended.out, ended.note, largest, seconds)


@contextmanager
def _home() -> Iterator[Path]:
    """A folder in memory if there is one: what is written is small, and waits for no disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="faults-", dir=place) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
