"""A command in a fork of this process, which has everything imported: a tenth of a second where a start takes three."""

import fcntl
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from compshift.cli.main import main

PATIENCE = 60.0
"""Seconds that a command may take."""

PIPE = 1 << 20
"""Bytes that a command may print."""


class Ended(NamedTuple):
    """How a command ended: its code, the negative signal or None if it had to be stopped, and what it printed."""

    code: int | None
    out: str
    err: str
    note: Any = None  # what the injection wrote down

    @property
    def told(self) -> dict[str, Any]:
        """What ``--json`` printed."""
        content: dict[str, Any] = json.loads(self.out[self.out.index("{") :])
        return content


class Inline:
    """Runs jobs where it stands, so that a benchmark costs no workers."""

    slots = 1

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """What has been done already."""
        from concurrent.futures import Future

        future: Any = Future()
        future.set_result(function(argument))
        return future


Inject = Callable[[], Callable[[], Any] | None]
"""Called in the fork before the command; what it returns is called after it, and what that returns is noted."""


class Forked:
    """A command line that has been started in ``cwd``."""

    def __init__(self, arguments: Sequence[str], cwd: Path, inject: Inject | None = None) -> None:
        ends = {name: os.pipe() for name in ("out", "err", "note")}
        for _, write in ends.values():
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)  # so that nobody has to read while the command runs
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.process = os.fork()
        if self.process == 0:
            _become(arguments, cwd, inject, {name: pair[1] for name, pair in ends.items()})
        for _, write in ends.values():
            os.close(write)
        self.ends = {name: read for name, (read, _) in ends.items()}

    def end(self, patience: float = PATIENCE) -> Ended:
        """Wait for it; one that takes too long is stopped."""
        code = _wait(self.process, patience)
        texts = {name: _drain(read) for name, read in self.ends.items()}
        return Ended(code, texts["out"], texts["err"], json.loads(texts["note"]) if texts["note"] else None)


def run_forked(arguments: Sequence[str], cwd: Path, inject: Inject | None = None, patience: float = PATIENCE) -> Ended:
    """Run a command line to its end."""
    return Forked(arguments, cwd, inject).end(patience)


def import_what_is_used(commands: Sequence[tuple[Sequence[str], Path]]) -> None:
    """Run commands once, and import here what they import, so that later forks have it."""
    for arguments, cwd in commands:
        ended = run_forked(arguments, cwd, inject=lambda: lambda: sorted(sys.modules))
        if ended.code != 0:
            raise RuntimeError(f"{' '.join(arguments)} ended with {ended.code}: {ended.err}")
        for name in ended.note:
            if name not in sys.modules and not name.startswith(("__", "ray", "distributed")):
                with suppress(Exception):
                    importlib.import_module(name)


def _become(arguments: Sequence[str], cwd: Path, inject: Inject | None, ends: dict[str, int]) -> None:
    """Be the command, and end: never returns."""
    code = 70
    try:
        os.setsid()
        os.dup2(ends["out"], 1)
        os.dup2(ends["err"], 2)
        os.chdir(cwd)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.argv = ["compshift", *arguments]
        _tame()
        after = inject() if inject else None
        code = _main_code()
        if after is not None:
            os.write(ends["note"], json.dumps(after()).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _main_code() -> int:
    """The exit code of the command line, as Python would give it."""
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"Exception ignored: {error!r}", file=sys.stderr)
        code = 120
    return code


def _tame() -> None:
    """One thread, and jobs in this process."""
    from threadpoolctl import threadpool_limits

    from compshift.bench import executors as engines

    @contextmanager
    def inline(*_: Any, **__: Any) -> Iterator[Inline]:
        yield Inline()

    engines.start_executor = inline
    threadpool_limits(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _wait(child: int, patience: float) -> int | None:
    limit = time.monotonic() + patience
    pause = 0.001
    while time.monotonic() < limit:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.01, pause * 1.5)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _drain(end: int) -> str:
    """All that lies in a pipe, whoever else still has its other end."""
    os.set_blocking(end, False)
    parts = []
    with suppress(BlockingIOError):
        while part := os.read(end, PIPE):
            parts.append(part)
    os.close(end)
    return b"".join(parts).decode(errors="replace")
