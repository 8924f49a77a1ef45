"""Faults of the machine: after each, nothing is lost, and the same command ends as if nothing had happened."""

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from compshift.bench import jobs
from compshift.report import page
from tests.hardening import scenes as s
from tests.hardening.scenes import (
    BrokenCommandError,
    Inject,
    LostError,
    Scene,
    UnclearError,
    kill_before,
    points,
    try_fault,
    watch,
)
from tests.hardening.verdicts import Tally, generator, share

UNIT = "faults"
FOLDERS = ("bench", "train", "features")
SCENES = (*FOLDERS, "fit", "predict", "tables", "report", "export")
TWINS = ("predict to Parquet", "datasets export", "figure")  # they only write their files in other ways
YEAR = 365 * 86400
STALE = '{"pid": 1, "hostname": "another-host"}\n1\nanother-host\n'
HARMLESS = ("config.toml", "metrics.jsonl", "results.parquet")  # for people; no command reads them as results
READERS = {
    "bench": "tables bench",
    "train": "predict run {home}/birds.npz -o read.csv",
    "features": "fit shards --target bird --attributes place -o read.safetensors",
    "fit": "evaluate model.safetensors {home}/birds.npz",
}
all_scenes = pytest.mark.parametrize("name", [*SCENES, *TWINS])
most_scenes = pytest.mark.parametrize("name", SCENES)
folder_scenes = pytest.mark.parametrize("name", FOLDERS)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # memory waits for no disk
    with tempfile.TemporaryDirectory(prefix="faults-", dir=place) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def scenes(home: Path) -> dict[str, Scene]:
    return s.make_scenes(home)


@pytest.fixture
def scene(name: str, scenes: dict[str, Scene], home: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> Scene:  # noqa: ARG001
    """One command; the working directory is a folder in memory."""
    monkeypatch.chdir(home)
    return scenes[name]


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
    if ended.code is None or (ended.code >= 0 and "_die_after" not in inject.__qualname__):
        raise BrokenCommandError(f"it should have died, but ended with {ended.code}: {ended.err[-300:]}")
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
    for size in share((20, 44) if scene.resumes and can_mount() else ()):
        try_fault(tally, f"{scene.name} on a disk of {size} kB", _on_small_disk, scene, size)


def _fail_from(number: int, code: int) -> Inject:
    """Fail everything that takes space from a change on."""

    def act(seen: int, event: str, subject: Any) -> None:
        if seen >= number and event in ("open", "os.mkdir", "fsync", "os.rename"):
            raise OSError(code, os.strerror(code), subject if isinstance(subject, str) else None)

    return lambda: watch(act)


def _stopped(scene: Scene, inject: Inject, cwd: Path) -> bool:
    scene.put_old(cwd)
    return scene.check_rejected(cwd, scene.run(cwd, inject), old=True)


def _on_small_disk(scene: Scene, size: int, cwd: Path) -> bool:
    with small_disk(cwd, f"{size}k"):
        ended = scene.run(cwd)
        subprocess.run(["mount", "-o", "remount,size=20m", str(cwd)], check=True)
        return scene.check_rejected(cwd, ended)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of some size."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@cache
def can_mount() -> bool:
    """Return whether this user may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder), "100k"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@most_scenes
def test_wrong_places(scene: Scene, tally: Tally) -> None:
    cases: dict[str, Callable[[Path], Any]] = {
        "no right to write": partial(_no_right_to_write, scene),
        "no right to read": partial(_no_right_to_read, scene),
        "output of another kind": partial(_another_kind, scene),
        **{f"a link to {to}": partial(_link, scene, to) for to in ("nowhere/there", scene.output, "/dev/full")},
        "standard output is full": partial(_full_standard_output, scene),
    }
    if can_mount():
        cases["a read-only disk"] = partial(_read_only_disk, scene)
    for number in points(scene.events, 4) if scene.resumes else ():
        cases[f"folder deleted at change {number}"] = partial(_deleted, scene, number)
    for label, call in share(cases.items()):
        try_fault(tally, f"{scene.name}, {label}", call)


def _must_stop(scene: Scene, cwd: Path, ended: s.Ended) -> bool:
    if ended.code == 0:
        raise LostError("it reports success")
    return scene.check_rejected(cwd, ended)


def _drop_rights() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def _no_right_to_write(scene: Scene, cwd: Path) -> bool:
    cwd.chmod(0o555)
    ended = scene.run(cwd, _drop_rights)
    cwd.chmod(0o755)
    return _must_stop(scene, cwd, ended)


def _no_right_to_read(scene: Scene, cwd: Path) -> bool:
    source = next(Path(word) for word in scene.arguments if word.startswith("/"))
    closed = cwd / (f"{source.name}/bench.json" if source.is_dir() else source.name)
    subprocess.run(["cp", "-r", str(source), str(cwd)], check=True)
    closed.chmod(0)
    cwd.chmod(0o777)
    arguments = [str(cwd / source.name) if word == str(source) else word for word in scene.arguments]
    s.check_sentence(s.Forked(arguments, cwd, _drop_rights).end())
    if (cwd / scene.output).is_file():
        raise LostError("there is an output without an input")
    closed.chmod(0o644)
    again = s.Forked(arguments, cwd, _drop_rights).end()
    if again.code != 0:
        raise LostError(f"it then ended with {again.code}: {again.err[-300:]}")
    return True


def _another_kind(scene: Scene, cwd: Path) -> bool:
    """A file where a folder is wanted, or a folder where a file is."""
    path = cwd / scene.output
    path.write_bytes(s.OLD) if scene.resumes else path.mkdir()
    ended = scene.run(cwd)
    if path.is_file() and path.read_bytes() != s.OLD:
        raise LostError("a file of the user was overwritten")
    path.unlink() if path.is_file() else path.rmdir()
    return _must_stop(scene, cwd, ended)


def _link(scene: Scene, target: str, cwd: Path) -> bool:
    (cwd / scene.output).symlink_to(target)
    ended = scene.run(cwd)
    if not (cwd / scene.output).is_symlink():
        raise LostError("the link was replaced")
    (cwd / scene.output).unlink()
    return _must_stop(scene, cwd, ended)


def _full_standard_output(scene: Scene, cwd: Path) -> bool:
    ended = scene.run(cwd, lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1))
    if ended.code == 0 and scene.out:
        raise BrokenCommandError("exit code 0 without its output")
    return scene.check_rejected(cwd, ended)


def _read_only_disk(scene: Scene, cwd: Path) -> bool:
    with small_disk(cwd, "20m"):
        subprocess.run(["mount", "-o", "remount,ro", str(cwd)], check=True)
        ended = scene.run(cwd)
        subprocess.run(["mount", "-o", "remount,rw", str(cwd)], check=True)
        return _must_stop(scene, cwd, ended)


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
    if ended.code != 0:
        raise BrokenCommandError(ended.err[-300:])
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
        try_fault(tally, f"{scene.name}, {count} at once", _at_once, scene, count, False)
    if scene.resumes:
        try_fault(tally, f"{scene.name}, 2 at once after a kill", _at_once, scene, 2, True)
        try_fault(tally, f"{scene.name}, locks of another host are left", _stale_locks, scene)
        try_fault(tally, f"{scene.name}, a file system without locks", _without_locks, scene)


def _at_once(scene: Scene, count: int, after_kill: bool, cwd: Path) -> bool:
    """All succeed, or are told that another process is at work; every job is run once."""
    if after_kill:
        scene.run(cwd, kill_before(scene.events // 2))
    finished = len(scene.parts(cwd))
    slow: Inject = lambda: watch(lambda *_: time.sleep(0.002))  # noqa: E731 - so that all are there at the same time
    ended = [process.end() for process in [s.Forked(scene.arguments, cwd, slow) for _ in range(count)]]
    stopped = [one for one in ended if one.code != 0]
    for one in stopped:
        s.check_sentence(one)
        if "another process" not in one.err or scene.name not in ("train", "features") or len(stopped) == count:
            raise LostError(f"{len(stopped)} of {count} were stopped: {one.err.strip()}")
    s.check_equal(scene.found, scene.state(cwd))
    if scene.name == "bench" and sum(json.loads(one.out)["new"] for one in ended) != scene.jobs - finished:
        raise LostError("jobs were run twice, or not at all")
    scene.check_same_end(cwd)
    return bool(stopped)


def _stale_locks(scene: Scene, cwd: Path) -> None:
    scene.run(cwd, kill_before(scene.events // 2))
    jobs = [f"bench/locks/{Path(name).stem}" for name in scene.found if name.startswith("jobs/")]
    for lock in ("bench/.lock", "run/.lock", "shards/_lock", *jobs):
        if (cwd / lock).parent.is_dir():
            (cwd / lock).write_text(STALE)
    scene.check_same_end(cwd)


def _without_locks(scene: Scene, cwd: Path) -> bool:
    def missing(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    return _must_stop(scene, cwd, scene.run(cwd, lambda: setattr(fcntl, "flock", missing)))


@most_scenes
def test_signals(scene: Scene, tally: Tally) -> None:
    sent = [(number, at) for number in (signal.SIGINT, signal.SIGTERM) for at in points(scene.events, 4)]
    for number, at in share(sent if scene.resumes else sent[::4]):
        try_fault(tally, f"{scene.name}, {number.name} at change {at}", _signalled, scene, number, at)
    try_fault(tally, f"{scene.name}, standard output is closed", _unread, scene)


def _signalled(scene: Scene, sent: signal.Signals, at: int, cwd: Path) -> None:
    scene.put_old(cwd)
    inject: Inject = lambda: watch(lambda seen, *_: os.kill(os.getpid(), sent) if seen == at else None)  # noqa: E731
    ended = scene.run(cwd, inject)
    said = [line for line in ended.err.strip().splitlines() if not line.startswith("warning: ")]
    if "Traceback" in ended.err or "Exception ignored" in ended.err or ended.code is None:
        raise BrokenCommandError(f"{ended.code}: {ended.err.strip()[-300:]}")
    if ended.code != 128 + sent or len(said) != 1:
        raise UnclearError(f"exit code {ended.code}, {len(said)} lines: {ended.err.strip()[-300:]}")
    scene.check_whole(cwd, old=True)
    scene.check_same_end(cwd)


def _unread(scene: Scene, cwd: Path) -> None:
    def inject() -> None:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)

    ended = scene.run(cwd, inject)
    if ended.code != 0 or "rror" in ended.err.replace("warning: ", ""):
        raise BrokenCommandError(f"{ended.code}: {ended.err.strip()[-300:]}")
    scene.check_whole(cwd)
    scene.check_same_end(cwd)


@pytest.mark.parametrize("name", READERS)
def test_damaged_leftovers(scene: Scene, home: Path, tally: Tally) -> None:
    jobs = [file for file in scene.found if file.startswith("jobs/")][2:]
    base = Path(scene.output) if scene.resumes else Path()
    damages = ("empty", "half", "zeros")
    cases = [(base / file, damage) for file in scene.found if file not in jobs for damage in damages]
    for file, damage in share(cases):
        try_fault(tally, f"{scene.name}, {file} is {damage}", _damaged, scene, home, file, damage)
    files = ("last.safetensors", "best.safetensors", "metrics.jsonl", "run.json", "config.toml")
    for file, damage in share([(f, damage) for f in files for damage in damages] if scene.name == "train" else ()):
        try_fault(tally, f"train, {file} is {damage} half-way", _damaged_half_way, scene, base / file, damage)


def _damage(path: Path, damage: str) -> None:
    """Leave what a power cut leaves of a file."""
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "zeros": bytes(len(content))}[damage])


def _damaged(scene: Scene, home: Path, file: Path, damage: str, cwd: Path) -> bool:
    """Commands that read the file reject it; the one that wrote it rejects it too, or writes it again."""
    copytree(home / f"undisturbed {scene.name}", cwd, dirs_exist_ok=True)
    _damage(cwd / file, damage)
    reader = READERS[scene.name].format(home=home).split()
    read = s.Forked(reader, cwd).end()
    if read.code != 0:
        s.check_sentence(read)
    elif file.name not in (*HARMLESS, "result.json"):  # which only says that the run has ended
        raise LostError(f"`compshift {reader[0]}` took it for whole")
    for made in ("read.csv", "read.safetensors"):
        (cwd / made).unlink(missing_ok=True)
    return _mended(scene, cwd, cwd / file)


def _damaged_half_way(scene: Scene, file: Path, damage: str, cwd: Path) -> bool:
    scene.run(cwd, kill_before(2 * scene.events // 3))
    _damage(cwd / file, damage)
    return _mended(scene, cwd, cwd / file)


def _mended(scene: Scene, cwd: Path, file: Path) -> bool:
    """The same command writes the file again, or names a remedy that works."""
    ended = scene.run(cwd)
    if ended.code == 0:
        kept = HARMLESS if scene.name == "train" else ()  # a finished run is not repeated for its log
        wanted, found = ({k: v for k, v in state.items() if k not in kept} for state in (scene.found, scene.state(cwd)))
        s.check_equal(wanted, found)
        return False
    s.check_sentence(ended)
    if "remove it" in ended.err:
        file.unlink()
    elif "--overwrite" in ended.err:
        rmtree(cwd / scene.output)
    else:
        raise UnclearError(f"no remedy is named: {ended.err.strip()}")
    scene.check_same_end(cwd, recomputed=True)
    return True
