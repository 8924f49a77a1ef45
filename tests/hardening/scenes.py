"""Small commands run in forks of this process, faults injected into them, and what must hold afterwards."""

import fcntl
import hashlib
import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import numpy as np

from compshift.bench import executors
from compshift.cli.main import main
from compshift.nn.huggingface import quiet
from tests.bench.small import Inline, write_birds
from tests.hardening.verdicts import Kind, Tally, unclear
from tests.nn.models import photographs, resnet

Inject = Callable[[], Any]
"""Called in the fork before the command; a callable that it returns is called after it, and its value is noted."""
TIMEOUT = 180.0  # seconds that a command may take, on a busy machine
PIPE = 1 << 20  # bytes that a command may print
OLD = b"an older file\n"
VOLATILE = ("seconds", "finished", "versions")
GROWING = ("metrics.jsonl", "last.safetensors", "best.safetensors")  # files of a run that change while it goes
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")


class Ended(NamedTuple):
    """Exit code (negative: the signal; None: stopped after the timeout), output, and what the injection noted."""

    code: int | None
    out: str
    err: str
    note: Any = None


class FaultError(Exception):
    """A command did not survive a fault; the arguments are the kind of failure and a description."""


def require(condition: Any, text: str, kind: Kind = "lost result") -> None:
    """Raise an error of a kind unless a condition holds."""
    if not condition:
        raise FaultError(kind, text)


class Forked:
    """A command line started in a fork, where everything is imported: a tenth of a second instead of three."""

    def __init__(self, arguments: Sequence[str], cwd: Path, inject: Inject | None = None) -> None:
        ends = [os.pipe() for _ in range(3)]
        for _, write in ends:
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)  # so that nobody has to read while the command runs
        self.process = os.fork()
        if self.process == 0:
            _become(arguments, cwd, inject, [write for _, write in ends])
        for _, write in ends:
            os.close(write)
        self.ends = [read for read, _ in ends]

    def end(self) -> Ended:
        """Wait for the command, and kill it after the timeout."""
        limit, code = time.monotonic() + TIMEOUT, None
        while code is None and time.monotonic() < limit:
            found, status = os.waitpid(self.process, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if found else None
            time.sleep(0.002)
        if code is None:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        texts = []
        for end in self.ends:
            os.set_blocking(end, False)  # a grandchild may still hold the other end
            with open(end, "rb", buffering=0) as stream:
                texts.append((stream.read(PIPE) or b"").decode(errors="replace"))
        return Ended(code, texts[0], texts[1], json.loads(texts[2]) if texts[2] else None)


def _become(arguments: Sequence[str], cwd: Path, inject: Inject | None, ends: Sequence[int]) -> None:
    """Turn the fork into the command, and exit."""
    code: Any = 70
    try:
        os.setsid()
        os.dup2(ends[0], 1)
        os.dup2(ends[1], 2)
        os.chdir(cwd)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.argv = ["compshift", *arguments]
        executors.start_executor = lambda *_, **__: nullcontext(Inline())  # jobs run in this process
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        after = inject() if inject else None
        try:
            code = main() or 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
        if callable(after):
            os.write(ends[2], json.dumps(after()).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Scene:
    """A command line, the file or folder that it writes, and what it leaves when nothing disturbs it."""

    def __init__(self, name: str, line: str, output: str, *, resumes: bool = False, beside: Sequence[str] = ()) -> None:
        self.name, self.output, self.resumes, self.files = name, output, resumes, (output, *beside)
        self.arguments = [*line.split(), "-o", output]
        self.found: dict[str, Any] = {}
        self.events = self.largest = self.jobs = 0  # changes of files; bytes of the largest file; jobs of a benchmark
        self.seconds = 0.0

    def run(self, cwd: Path, inject: Inject | None = None) -> Ended:
        """Run the command in a folder."""
        return Forked(self.arguments, cwd, inject).end()

    def measure(self, cwd: Path) -> None:
        """Run the command undisturbed and note what it leaves."""
        cwd.mkdir()
        start = time.perf_counter()
        ended = self.run(cwd, lambda: watch(lambda *_: None))
        assert ended.code == 0, f"{self.name} ended with {ended.code} without a fault: {ended.err}"
        self.seconds, self.events = time.perf_counter() - start, ended.note
        self.found = self.state(cwd)
        self.largest = max(path.stat().st_size for path in cwd.rglob("*") if path.is_file())
        self.jobs = sum(name.startswith("jobs/") for name in self.found)

    def state(self, cwd: Path) -> dict[str, Any]:
        """Return the contents of the output, without times and locks."""
        if not self.resumes:
            return {name: _content(cwd / name) for name in self.files if (cwd / name).is_file()}
        root = cwd / self.output
        paths = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith((".", "_lock"))]
        names = {str(path.relative_to(root)): path for path in sorted(paths)}
        return {name: _content(path) for name, path in names.items() if not name.startswith(("locks", "runs"))}

    def parts(self, cwd: Path) -> dict[Path, int]:
        """Return finished parts of the output, with the times at which they were written."""
        pattern = {"bench": "bench/jobs/[!.]*.json", "features": "shards/[!.]*.parquet"}.get(self.name, "nothing")
        return {path: path.stat().st_mtime_ns for path in cwd.glob(pattern)}

    def put_old(self, cwd: Path) -> None:
        """Write an older output, unless the command would continue it."""
        for file in self.files if not self.resumes else ():
            (cwd / file).write_bytes(OLD)

    def check_whole(self, cwd: Path, *, old: bool = False) -> None:
        """Check that every file under its final name is whole, or what was there before."""
        try:
            state = self.state(cwd)
        except (ValueError, KeyError) as error:
            raise FaultError("lost result", f"half a file has its final name ({error})") from None
        for name, content in state.items():
            kept = old and (cwd / name).is_file() and (cwd / name).read_bytes() == OLD
            whole = name in GROWING or content == self.found.get(name, content)
            require(whole or kept, f"{name} is neither whole nor what it was")
        for name in self.files if old and not self.resumes else ():
            require((cwd / name).exists(), f"{name} is gone, and was there before")

    def check_same_end(self, cwd: Path, inject: Inject | None = None, *, recomputed: bool = False) -> None:
        """Run the command again: it must end as if nothing had happened, and keep finished parts."""
        kept = self.parts(cwd)
        again = self.run(cwd, inject)
        require(again.code == 0, f"the same command then ended with {again.code}: {again.err.strip()[-300:]}")
        check_equal(self.found, self.state(cwd))
        if recomputed:
            return
        still = {path: moment for path, moment in self.parts(cwd).items() if path in kept}
        require(kept == still, "finished parts were computed again")
        if self.name == "bench":
            told = json.loads(again.out[again.out.index("{") :])
            counts = (told["known"], told["new"])
            require(counts == (len(kept), self.jobs - len(kept)), f"{len(kept)} jobs were finished, not {counts[0]}")

    def check_rejected(self, cwd: Path, ended: Ended, *, old: bool = False, must: bool = False) -> bool:
        """Check a command that may (or ``must``) have been stopped by the system; return whether it was."""
        require(ended.code != 0 or not must, "it reports success")
        self.check_whole(cwd, old=old)
        if ended.code != 0:
            check_sentence(ended)
        self.check_same_end(cwd)
        return ended.code != 0


def _content(path: Path) -> Any:
    """Return what is compared of a file."""
    content = path.read_bytes()
    if path.name == "results.parquet":
        return content[:4] == content[-4:] == b"PAR1"
    if path.suffix != ".json":
        return hashlib.sha256(re.sub(rb"20\d\d-\d\d-\d\d \d\d:\d\d UTC", b"", content)).hexdigest()
    record = json.loads(content)
    for part in (record, record.get("detail")):
        for name in VOLATILE if isinstance(part, dict) else ():
            part.pop(name, None)
    return record


def check_equal(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """Check that two states have the same files with the same contents."""
    different = [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
    require(not different, f"the output differs in {different[:3]}")


def check_sentence(ended: Ended) -> None:
    """Check that a command ended with exit code 2 and one clear sentence."""
    progress = ("warning: ", "failed: ")  # lines about single jobs, besides the sentence
    said = "\n".join(line for line in ended.err.strip().splitlines() if not line.startswith(progress))
    internal = any(word in ended.err for word in ("Traceback", "for the traceback", "Exception ignored"))
    text = f"exit code {ended.code}: {ended.err.strip()[-400:]}"
    require(ended.code == 2 and not internal, text, "internal error")
    raw = any(word in ended.err for word in ("[Errno", "None", "os error"))
    require(not raw and unclear(said) is None, text, "unclear sentence")


def try_fault(tally: Tally, label: str, call: Callable[..., Any], *arguments: Any) -> None:
    """Count one fault in a folder of its own; the call returns whether the command ended with a sentence."""
    cwd = Path.cwd() / "fault"
    cwd.mkdir()
    try:
        rejected = call(*arguments, cwd)
        tally.rejected += bool(rejected)
        tally.accepted += not rejected
    except FaultError as error:
        tally.fail(error.args[0], f"{label}: {error.args[1]}")
    except Exception as error:
        tally.fail("internal error", f"{label}: {type(error).__name__}: {error}")
    finally:
        rmtree(cwd, ignore_errors=True)


def make_scenes(home: Path) -> dict[str, Scene]:
    """Write the inputs, measure each command undisturbed, and import all that it imports."""
    write_birds(home / "birds.npz")
    photos = enumerate(photographs(home / "photos", 12))
    rows = [f"{name},{('land', 'water')[n % 2]},{('sea', 'sand')[n // 2 % 2]}\n" for n, name in photos]
    (home / "photos.csv").write_text("".join(["path,bird,place\n", *rows]))
    with quiet():
        resnet(home / "resnet", side=8)
    birds, model, labels = f"{home}/birds.npz", f"{home}/made/model.safetensors", "--target bird --attributes place"
    bench = f"bench {birds} --methods erm,mixup --drop water,sea --draws 2 --seeds 2 --steps 4 --features --json"
    train = f"train {birds} {labels} --steps 12 --eval-every 4 --batch-size 16 --method crm --json"
    network = f"--backbone {home}/resnet --root {home}/photos --workers 0 --shard-rows 4 --json"
    scenes = [
        Scene("fit", f"fit {birds} {labels}", "model.safetensors"),
        Scene("bench", bench, "bench", resumes=True),
        Scene("train", train, "run", resumes=True),
        Scene("features", f"features {home}/photos.csv --path path {labels} {network}", "shards", resumes=True),
        Scene("predict", f"predict {model} {birds}", "p.csv"),
        Scene("predict to Parquet", f"predict {model} {birds}", "p.parquet"),
        Scene("tables", f"tables {home}/made/bench", "t.md"),
        Scene("report", f"report {home}/photos.csv --attributes bird,place", "r.html"),
        Scene("export", f"export {model}", "m.onnx"),
        Scene("datasets export", "datasets export penguins", "d.npz"),
        Scene("figure", "figure hull", "f.png", beside=["f.csv"]),
    ]
    (home / "made").mkdir()
    for scene in scenes:
        ended = scene.run(home / "made", lambda: lambda: sorted(sys.modules))
        for name in ended.note or ():
            if name not in sys.modules and not name.startswith(("__", "ray", "distributed")):
                with suppress(Exception):
                    importlib.import_module(name)
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # also for a user without rights
    for scene in scenes:
        scene.measure(home / f"undisturbed {scene.name}")
    return {scene.name: scene for scene in scenes}


def points(number: int, most: int) -> list[int]:
    """Return up to ``most`` of 1 … number, evenly spaced, with both ends."""
    return sorted({round(value) for value in np.linspace(1, number, min(number, most))})


def watch(act: Callable[[int, str, Any], None]) -> Callable[[], int]:
    """Call ``act(number, event, subject)`` before every change of a file in this folder; return their count."""
    here, seen, synchronise = os.getcwd(), 0, os.fsync

    def count(event: str, subject: Any) -> None:
        nonlocal seen
        seen += 1
        act(seen, event, subject)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if (opens or event in CHANGES) and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.fsdecode(arguments[0])
            if path.startswith(here) or not os.path.isabs(path):
                count(event, path)

    def fsync(handle: Any) -> None:
        count("fsync", handle)
        synchronise(handle)

    os.fsync = fsync
    sys.addaudithook(hear)
    return lambda: seen


def kill_before(number: int, *, torn: bool = False) -> Inject:
    """Kill the command before a change; ``torn`` leaves half of the file that was about to be synchronised."""

    def act(seen: int, event: str, subject: Any) -> None:
        if seen == number:
            path = f"/proc/self/fd/{subject}"
            if torn and event == "fsync" and os.path.isfile(path):
                content = Path(path).read_bytes()
                log = os.readlink(path).endswith(".jsonl")  # whose earlier lines are safe already
                os.truncate(path, ((content[:-1].rfind(b"\n") + 1 if log else 0) + len(content)) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: watch(act)


def drop_rights() -> None:
    """Become a user without rights, if this is the superuser."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
