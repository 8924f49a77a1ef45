"""Faults of the machine: after each, nothing is lost, and the same command ends as if nothing had happened."""

import errno
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from compshift.bench import jobs
from compshift.report import page
from tests.hardening import scenes as s
from tests.hardening.scenes import Inject, Scene, kill_before, points, require, try_fault, watch
from tests.hardening.verdicts import Tally, generator, share

UNIT = "faults"
FOLDERS = ("bench", "train", "features")
SCENES = (*FOLDERS, "fit", "predict", "tables", "report", "export")
TWINS = ("predict to Parquet", "datasets export", "figure")  # they only write their files in other ways
YEAR = 365 * 86400
all_scenes = pytest.mark.parametrize("name", [*SCENES, *TWINS])
most_scenes = pytest.mark.parametrize("name", SCENES)


@all_scenes
def test_kills(scene: Scene, tally: Tally) -> None:
    most = {"bench": 24, "train": 20, "features": 16, "figure": 4}.get(scene.name, 25)
    for number in share(points(scene.events, most)):
        inject = kill_before(number, torn=number % 2 == 0 or scene.events < 12)
        label = f"{scene.name}, kill before change {number} of {scene.events}"
        try_fault(tally, label, _killed, scene, inject, number % 2 == 1)
    for part in share((0.01, 0.5, 0.9)):
        inject = _no_file_beyond(int(part * scene.largest), deadly=True)
        try_fault(tally, f"{scene.name}, killed in a write at {part:.0%}", _killed, scene, inject, False)
    moments = generator(scene.name)
    for _ in share(range(12 if scene.resumes else 2)):
        moment = max(moments.random() * scene.seconds, 0.001)
        try_fault(tally, f"{scene.name}, killed after {moment:.3f} s", _killed, scene, _die_after(moment), False)


def _killed(scene: Scene, inject: Inject, old: bool, cwd: Path) -> None:
    if old:
        scene.put_old(cwd)
    ended = scene.run(cwd, inject)
    died = ended.code is not None and (ended.code < 0 or "_die_after" in inject.__qualname__)
    require(died, f"it should have died, but ended with {ended.code}: {ended.err[-300:]}", "internal error")
    scene.check_whole(cwd, old=old)
    scene.check_same_end(cwd)


def _die_after(seconds: float) -> Inject:
    """Die at a moment that has nothing to do with files, even in native code."""

    def inject() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    return inject


def _no_file_beyond(size: int, *, deadly: bool) -> Inject:
    """Let no file grow beyond a size: the write kills the process, or fails."""

    def inject() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return inject


@all_scenes
def test_full_disks(scene: Scene, tally: Tally) -> None:
    most = {"bench": 10, "train": 12, "features": 8, "figure": 2}.get(scene.name, 10)
    cases = [(number, errno.ENOSPC) for number in points(scene.events, most)]
    cases += [(scene.events, errno.EIO), (scene.events // 2 + 1, errno.EROFS)]
    for number, code in share(cases):
        label = f"{scene.name}, {errno.errorcode[code]} from change {number} of {scene.events} on"
        try_fault(tally, label, _stopped, scene, _fail_from(number, code))
    for part in share((0.1, 0.9)):
        inject = _no_file_beyond(int(part * scene.largest), deadly=False)
        try_fault(tally, f"{scene.name}, no file beyond {part:.0%}", _stopped, scene, inject)


def _fail_from(number: int, code: int) -> Inject:
    """Fail everything that takes space from a change on."""

    def act(seen: int, event: str, subject: Any) -> None:
        if seen >= number and event in ("open", "os.mkdir", "fsync", "os.rename"):
            raise OSError(code, os.strerror(code), subject if isinstance(subject, str) else None)

    return lambda: watch(act)


def _stopped(scene: Scene, inject: Inject, cwd: Path) -> bool:
    scene.put_old(cwd)
    return scene.check_rejected(cwd, scene.run(cwd, inject), old=True)


@most_scenes
def test_wrong_places(scene: Scene, tally: Tally) -> None:
    cases: dict[str, Callable[[Path], Any]] = {
        "no right to write": partial(_no_right_to_write, scene),
        "no right to read": partial(_no_right_to_read, scene),
        "output of another kind": partial(_taken, scene, ""),
        **{f"a link to {to}": partial(_taken, scene, to) for to in ("nowhere/there", scene.output, "/dev/full")},
    }
    for number in points(scene.events, 4) if scene.resumes else ():
        cases[f"folder deleted at change {number}"] = partial(_deleted, scene, number)
    for label, call in share(cases.items()):
        try_fault(tally, f"{scene.name}, {label}", call)


def _no_right_to_write(scene: Scene, cwd: Path) -> bool:
    cwd.chmod(0o555)
    ended = scene.run(cwd, s.drop_rights)
    cwd.chmod(0o755)
    return scene.check_rejected(cwd, ended, must=True)


def _no_right_to_read(scene: Scene, cwd: Path) -> bool:
    source = next(Path(word) for word in scene.arguments if word.startswith("/"))
    closed = cwd / (f"{source.name}/bench.json" if source.is_dir() else source.name)
    subprocess.run(["cp", "-r", str(source), str(cwd)], check=True)
    closed.chmod(0)
    cwd.chmod(0o777)
    arguments = [str(cwd / source.name) if word == str(source) else word for word in scene.arguments]
    s.check_sentence(s.Forked(arguments, cwd, s.drop_rights).end())
    require(not (cwd / scene.output).is_file(), "there is an output without an input")
    closed.chmod(0o644)
    again = s.Forked(arguments, cwd, s.drop_rights).end()
    require(again.code == 0, f"it then ended with {again.code}: {again.err[-300:]}")
    return True


def _taken(scene: Scene, target: str, cwd: Path) -> bool:
    """Put a link to ``target``, a file instead of a folder, or a folder instead of a file where the output goes."""
    path = cwd / scene.output
    if target:
        path.symlink_to(target)
    elif scene.resumes:
        path.write_bytes(s.OLD)
    else:
        path.mkdir()
    ended = scene.run(cwd)
    require(path.is_symlink() == bool(target), "the link was replaced")
    require(target or path.is_dir() or path.read_bytes() == s.OLD, "a file of the user was overwritten")
    path.rmdir() if path.is_dir() and not target else path.unlink()
    return scene.check_rejected(cwd, ended, must=True)


def _deleted(scene: Scene, number: int, cwd: Path) -> bool:
    def act(seen: int, *_: Any) -> None:
        if seen == number:
            rmtree(cwd / scene.output, ignore_errors=True)

    return scene.check_rejected(cwd, scene.run(cwd, lambda: watch(act)))


@most_scenes
def test_clocks(scene: Scene, tally: Tally) -> None:
    for seconds in share((-YEAR, -(10**10), 20 * YEAR) if scene.resumes else ()):
        try_fault(tally, f"{scene.name}, clock jumps by {seconds} s after a kill", _jump, scene, seconds, False)
        try_fault(tally, f"{scene.name}, times of files move by {seconds} s", _jump, scene, seconds, True)
    try_fault(tally, f"{scene.name}, clock runs backwards", _backwards, scene)


def _jump(scene: Scene, seconds: int, files: bool, cwd: Path) -> None:
    scene.run(cwd, kill_before(2 * scene.events // 3))
    moment = max(0, time.time() + seconds)
    for number, path in enumerate(sorted(cwd.rglob("*")) if files else ()):
        os.utime(path, (moment - number, moment - number))
    scene.check_same_end(cwd, None if files else lambda: _set_clock(seconds))


def _backwards(scene: Scene, cwd: Path) -> None:
    ended = scene.run(cwd, lambda: _set_clock(0, -3600))
    require(ended.code == 0, ended.err[-300:], "internal error")
    scene.check_whole(cwd)
    scene.check_same_end(cwd)


def _set_clock(shift: float, step: float = 0.0) -> None:
    """Shift this process's clock, and move it by ``step`` at every look."""
    now, looks = time.time, iter(range(1, 10**9))

    def shown() -> float:
        return max(1.0, now() + shift + step * next(looks))

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(0, tz or UTC) + timedelta(seconds=shown())

    time.time, time.time_ns = shown, lambda: int(shown() * 1e9)
    jobs.datetime = page.datetime = Shifted


@most_scenes
def test_several_writers(scene: Scene, tally: Tally) -> None:
    for count in share((2, 3)):
        try_fault(tally, f"{scene.name}, {count} at once", _at_once, scene, count)


def _at_once(scene: Scene, count: int, cwd: Path) -> bool:
    """All succeed, or are told that another process is at work; jobs are run once."""
    slow: Inject = lambda: watch(lambda *_: time.sleep(0.002))  # noqa: E731 - so that all are there at the same time
    ended = [process.end() for process in [s.Forked(scene.arguments, cwd, slow) for _ in range(count)]]
    stopped = [one.err for one in ended if one.code != 0]
    right = len(stopped) < count and all("another process" in text for text in stopped)
    require(right and (not stopped or scene.name in ("train", "features")), f"some were stopped: {stopped}")
    once = scene.name != "bench" or sum(json.loads(one.out)["new"] for one in ended) == scene.jobs
    require(once, "jobs were run twice, or not at all")
    scene.check_same_end(cwd)
    return bool(stopped)


@most_scenes
def test_signals(scene: Scene, tally: Tally) -> None:
    sent = [(number, at) for number in (signal.SIGINT, signal.SIGTERM) for at in points(scene.events, 4)]
    for number, at in share(sent if scene.resumes else sent[::4]):
        try_fault(tally, f"{scene.name}, {number.name} at change {at}", _signalled, scene, number, at)


def _signalled(scene: Scene, sent: signal.Signals, at: int, cwd: Path) -> None:
    scene.put_old(cwd)
    inject: Inject = lambda: watch(lambda seen, *_: os.kill(os.getpid(), sent) if seen == at else None)  # noqa: E731
    ended = scene.run(cwd, inject)
    said = [line for line in ended.err.strip().splitlines() if not line.startswith("warning: ")]
    text = f"exit code {ended.code}: {ended.err.strip()[-300:]}"
    require("Traceback" not in text and "Exception ignored" not in text and ended.code, text, "internal error")
    require(ended.code == 128 + sent and len(said) == 1, text, "unclear sentence")
    scene.check_whole(cwd, old=True)
    scene.check_same_end(cwd)
