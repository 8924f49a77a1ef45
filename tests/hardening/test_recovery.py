"""Full disks, damaged folders and stale locks: the same command then ends as if nothing had happened, or says why."""

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from compshift.bench import store
from tests.hardening import scenes as s
from tests.hardening.scenes import Scene, kill_before, points, require, try_fault
from tests.hardening.verdicts import Tally, share

UNIT = "faults"
FOLDERS = ("bench", "train", "features")
FILES = ("fit", "predict", "predict to Parquet", "tables", "report", "export", "datasets export", "figure")
HARMLESS = ("config.toml", "metrics.jsonl", "results.parquet")  # for people; no command reads them as results
READERS = {
    "bench": "tables bench",
    "train": "predict run {home}/birds.npz -o read.csv",
    "features": "fit shards --target bird --attributes place -o read.safetensors",
    "fit": "evaluate model.safetensors {home}/birds.npz",
}
DAMAGES = ("empty", "half", "zeros", "garbled", "another", "removed")
HALF_WAY = {"bench": (0.24, 0.93), "train": (0.6, 0.93), "features": (0.8,)}  # of the changes of files
DISK = 300  # kB
PAGE = 4  # kB that a file takes at least
folders = pytest.mark.parametrize("name", FOLDERS)


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a file system in memory on a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def _mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip unless this user may mount."""
    try:
        with _mounted(tmp_path_factory.mktemp("mount"), "size=100k"):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here ({error}): run as root")


@pytest.mark.usefixtures("_mounts")
@pytest.mark.parametrize("name", [*FOLDERS, *FILES])
def test_small_disks(scene: Scene, home: Path, tally: Tally) -> None:
    made = [path for path in (home / f"undisturbed {scene.name}").rglob("*") if path.is_file()]
    pages = sum(-(-path.stat().st_size // (PAGE << 10)) for path in made)
    for free in share(points(pages, 5 if scene.resumes else 3)):
        try_fault(tally, f"{scene.name}, {free * PAGE} kB are free", _filled, scene, f"size={DISK}k", free)
    for number in share(points(len(made) + 1, 3)):
        options = f"size={DISK}k,nr_inodes={number + len(scene.files) + 2}"
        try_fault(tally, f"{scene.name}, a disk for {number} more files", _filled, scene, options, 10)
    for part in share((0.3, 0.6, 0.9) if scene.resumes else ()):
        change = int(part * scene.events)
        try_fault(tally, f"{scene.name}, full when resumed at change {change}", _full_later, scene, change)


def _filled(scene: Scene, options: str, free: int, cwd: Path) -> bool:
    """Run on a disk that a file of somebody else leaves little of; later there is room."""
    with _mounted(cwd, options):
        return _run_beside(scene, cwd, DISK - PAGE * (free + (0 if scene.resumes else len(scene.files))))


def _full_later(scene: Scene, change: int, cwd: Path) -> bool:
    """Kill the command, fill the disk, and run it again."""
    with _mounted(cwd, f"size={DISK}k"):
        scene.run(cwd, kill_before(change))
        disk = os.statvfs(cwd)
        kept = scene.parts(cwd)
        rejected = _run_beside(scene, cwd, disk.f_bavail * disk.f_frsize >> 10)
        require(kept.items() <= scene.parts(cwd).items(), "finished parts are lost")
        return rejected


def _run_beside(scene: Scene, cwd: Path, kilobytes: int) -> bool:
    """Run the command beside a file of some size, and again on a larger disk."""
    other = cwd / "other"
    content = b"of somebody else" * (64 * kilobytes)
    scene.put_old(cwd)
    other.write_bytes(content)
    ended = scene.run(cwd)
    require(other.read_bytes() == content, "a file of somebody else was changed")
    subprocess.run(["mount", "-o", "remount,size=20m,nr_inodes=1000", str(cwd)], check=True)
    return scene.check_rejected(cwd, ended, old=True)


@pytest.mark.parametrize("name", READERS)
def test_damaged_leftovers(scene: Scene, home: Path, tally: Tally) -> None:
    base = Path(scene.output) if scene.resumes else Path()
    cases = [(base / file, damage) for file in _few(scene.found) for damage in DAMAGES[:4]]
    for file, damage in share(cases):
        try_fault(tally, f"{scene.name}, {file} is {damage}", _damaged, scene, home, file, damage)


@folders
def test_damaged_half_way(scene: Scene, home: Path, tally: Tally) -> None:
    cases = []
    for number, part in enumerate(HALF_WAY[scene.name]):
        half = home / f"{part:.0%} of {scene.name}"
        half.mkdir()
        scene.run(half, kill_before(int(part * scene.events)))
        files = [str(path.relative_to(half)) for path in sorted(half.rglob("[!._]*")) if path.is_file()]
        files = [file for file in _few(files) if "locks" not in file]
        cases += [(half, Path(file), damage) for file in files for damage in (DAMAGES[1::2] if number else DAMAGES)]
    for half, file, damage in share(cases):
        try_fault(tally, f"{half.name}, {file} is {damage}", _resumed, scene, half, file, damage)


def _few(files: Any) -> list[str]:
    """Return the files, but of the records of jobs only two."""
    jobs = [file for file in files if "jobs/" in file]
    return [file for file in files if file not in jobs[2:]]


def _damage(path: Path, damage: str) -> None:
    """Leave of a file what a power cut, a failing disk or a careless hand leaves."""
    content = path.read_bytes()
    middle = len(content) // 2
    others = [other for other in path.parent.glob(f"[!.]*{path.suffix}") if other != path and other.is_file()]
    if damage == "removed":
        path.unlink()
        return
    path.write_bytes({
        "empty": b"", "half": content[:middle], "zeros": bytes(len(content)),
        "garbled": bytes(byte ^ (0x80 * (at % (len(content) // 6 + 1) == 1)) for at, byte in enumerate(content)),
        "another": others[0].read_bytes() if others else b"{}",
    }[damage])  # fmt: skip


def _damaged(scene: Scene, home: Path, file: Path, damage: str, cwd: Path) -> bool:
    """Commands that read the file reject it; the one that wrote it rejects it too, or writes it again."""
    copytree(home / f"undisturbed {scene.name}", cwd, dirs_exist_ok=True)
    _damage(cwd / file, damage)
    reader = READERS[scene.name].format(home=home).split()
    read = s.Forked(reader, cwd).end()
    if read.code != 0:
        s.check_sentence(read)
    harmless = file.name in (*HARMLESS, "result.json")  # which only says that the run has ended
    require(read.code != 0 or harmless, f"`compshift {reader[0]}` took it for whole")
    for made in ("read.csv", "read.safetensors"):
        (cwd / made).unlink(missing_ok=True)
    return _mended(scene, cwd, cwd / file)


def _resumed(scene: Scene, half: Path, file: Path, damage: str, cwd: Path) -> bool:
    copytree(half, cwd, dirs_exist_ok=True)
    _damage(cwd / file, damage)
    return _mended(scene, cwd, cwd / file)


def _mended(scene: Scene, cwd: Path, file: Path) -> bool:
    """The same command writes the file again, or names a remedy that works; other finished parts are kept."""
    others = {path: moment for path, moment in scene.parts(cwd).items() if path != file}
    ended = scene.run(cwd)
    require(others.items() <= scene.parts(cwd).items(), "finished parts were computed again, or are lost")
    if ended.code == 0:
        kept = HARMLESS if scene.name == "train" else ()  # a finished run is not repeated for its log
        wanted, found = ({k: v for k, v in state.items() if k not in kept} for state in (scene.found, scene.state(cwd)))
        s.check_equal(wanted, found)
        return False
    s.check_sentence(ended)
    again = "--overwrite" in ended.err or "a new folder" in ended.err
    require(again or "remove it" in ended.err, f"no remedy is named: {ended.err.strip()}", "unclear sentence")
    rmtree(cwd / scene.output) if again else file.unlink()
    scene.check_same_end(cwd, recomputed=True)
    require(again or others.items() <= scene.parts(cwd).items(), "finished parts were computed again")
    return True


@folders
def test_stale_locks(scene: Scene, tally: Tally) -> None:
    host, dead = os.uname().nodename, _dead_process()
    contents = {
        "another host": ("1\nanother-host\n", time.time()), "a dead process": (f"{dead}\n{host}\n", time.time()),
        "the future": (f'{{"pid": {dead}, "hostname": "{host}"}}', 4e9), "1970": (f"1\n{host}\n", 0.0),
        "another program": ("\0\xff" * 50, time.time()),
    }  # fmt: skip
    cases: dict[str, Callable[[Path], Any]] = {
        f"locks of {label}": partial(_stale, scene, content, moment) for label, (content, moment) in contents.items()
    }
    cases |= {
        "locks that nobody may write": partial(_closed, scene), "no locks at all": partial(_no_locks, scene),
        "locks that lead elsewhere": partial(_linked, scene), "locks that are held": partial(_held, scene),
    }  # fmt: skip
    for label, call in share(cases.items()):
        try_fault(tally, f"{scene.name}, {label}", call)


def _dead_process() -> int:
    """Return the number of a process that has ended."""
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return process


def _locks(scene: Scene, cwd: Path) -> list[Path]:
    """Kill the command half-way, and return the path of every lock that it may take when it is resumed."""
    scene.run(cwd, kill_before(scene.events // 2))
    root = cwd / scene.output
    paths = {root / ("_lock" if scene.name == "features" else ".lock"), *root.glob("runs/*/.lock")}
    return sorted(paths | {root / "locks" / Path(file).stem for file in scene.found if file.startswith("jobs/")})


def _stale(scene: Scene, content: str, moment: float, cwd: Path) -> None:
    for path in _locks(scene, cwd):
        path.write_text(content)
        os.utime(path, (moment, moment))
    scene.check_same_end(cwd)


def _closed(scene: Scene, cwd: Path) -> bool:
    """Locks of another user."""
    for path in [*_locks(scene, cwd), cwd, *cwd.rglob("*")]:
        path.touch()
        path.chmod(0o777 if path.is_dir() else 0o444 if "lock" in str(path) else 0o666)
    ended = s.Forked(scene.arguments, cwd, s.drop_rights).end()
    return scene.check_rejected(cwd, ended, must=os.geteuid() == 0)


def _linked(scene: Scene, cwd: Path) -> bool:
    """Links to a file of somebody else."""
    other, locks = cwd / "other", _locks(scene, cwd)
    other.write_bytes(s.OLD)
    for path in locks:
        path.unlink(missing_ok=True)
        path.symlink_to(other)
    ended = scene.run(cwd)
    require(other.read_bytes() == s.OLD, "a file of somebody else was changed")
    for path in locks:
        path.unlink(missing_ok=True)
    return scene.check_rejected(cwd, ended)


def _held(scene: Scene, cwd: Path) -> bool:
    """A lock that another process holds, until it is killed."""
    handle = os.open(_locks(scene, cwd)[0], os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    ended = scene.run(cwd, lambda: setattr(store, "OPENING_PATIENCE", 0.2))
    require("another process" in ended.err, f"it did not mind the lock: {ended.err.strip()}")
    os.close(handle)
    return scene.check_rejected(cwd, ended, must=True)


def _no_locks(scene: Scene, cwd: Path) -> bool:
    """A file system without locks."""
    scene.run(cwd, kill_before(scene.events // 2))

    def missing(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    return scene.check_rejected(cwd, scene.run(cwd, lambda: setattr(fcntl, "flock", missing)), must=True)
