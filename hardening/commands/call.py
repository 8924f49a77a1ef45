"""One command in this process: what was printed, how it ended, and whether that is allowed."""

import io
import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from compshift.cli.main import main
from hardening.commands.endings import Told, read_endings
from hardening.tally import Tally, unclear_text

Ending = Literal["answer", "refuse", "either"]
KNOWN: dict[str, Told] | None = read_endings()
"""How commands that may end either way ended before; None while that is written down."""

ENDED: dict[str, Told] = {}
"""How those of this run ended."""

LONGEST = 60
"""Seconds that a command on a small bad input may take."""


class Ran(NamedTuple):
    """How a command ended."""

    code: Any
    out: str
    err: str
    folder: Path  # where it could write


class Command(NamedTuple):
    """A command to try: ``{out}`` in an argument is a new empty folder, all that it may write to."""

    label: str
    arguments: Sequence[str]
    ending: Ending = "either"
    check: Callable[[Ran], str | None] | None = None


class TooLong(BaseException):
    """The command did not end."""


def attempt(tally: Tally, command: Command, scratch: Path) -> None:
    """Run a command and count how it ended."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    arguments = [argument.replace("{out}", str(scratch)) for argument in command.arguments]
    label = f"{command.label}: compshift {' '.join(_short(argument) for argument in arguments)}"
    try:
        ran = call(arguments, scratch)
    except TooLong:
        tally.fail("internal error", f"{label}: no end after {LONGEST} s")
        return
    except BaseException as error:
        tally.fail("internal error", f"{label}: {type(error).__name__} came out of main: {str(error)[:200]}")
        return
    judge(tally, label, command, ran)


def judge(tally: Tally, label: str, command: Command, ran: Ran) -> None:
    """Count a right result, one clear sentence, or a failure."""
    left = sorted(str(path.relative_to(ran.folder)) for path in ran.folder.rglob("*") if path.is_file())
    if "Traceback (most recent call last)" in ran.out + ran.err:
        tally.fail("internal error", f"{label}: a traceback: {ran.err.strip().splitlines()[-1][:200]}")
    elif ran.code == 2:
        lines = [line for line in ran.err.splitlines() if not line.startswith("warning: ")]
        said = lines[-1] if lines else ""
        complaint = unclear_text(said.removeprefix("error: "))
        if not said.startswith("error: ") or len(lines) > 1 or complaint:
            tally.fail("unclear sentence", f"{label}: {complaint or 'not one line'}: {ran.err[:300]!r}")
        elif ran.out:
            tally.fail("wrong result", f"{label}: refused, and {ran.out[:100]!r} is on standard output")
        elif left:
            tally.fail("wrong result", f"{label}: refused, and {left[:3]} are left")
        elif _expected(command, label, "refuse") == "answer":
            tally.fail("wrong result", f"{label}: refused without need: {said[:300]}")
        else:
            tally.refused += 1
    elif ran.code not in (0, None):
        tally.fail("internal error", f"{label}: exit code {ran.code}: {ran.err.strip()[-300:]}")
    elif found := _wrong(command, label, ran, left):
        tally.fail("wrong result", f"{label}: {found}")
    else:
        tally.answered += 1


def _expected(command: Command, label: str, ended: Told) -> Ending:
    """How a command is to end; one that may end either way is to end as it did before."""
    if command.ending != "either":
        return command.ending
    ENDED[label] = ended
    return ended if KNOWN is None else KNOWN.get(label, "either")


def _wrong(command: Command, label: str, ran: Ran, left: Sequence[str]) -> str | None:
    """What is wrong with the result of a command that says it succeeded."""
    if _expected(command, label, "answer") == "refuse":
        return f"taken for good input: {ran.out[-200:]!r}"
    if any(".tmp" in name for name in left):
        return f"half-made files are left: {left}"
    if "error: " in ran.err:
        return f"an error is told and the exit code is 0: {ran.err[-200:]!r}"
    if "--json" in command.arguments:
        try:
            json.loads(ran.out, parse_constant=_refuse_constant)
        except ValueError as error:
            return f"standard output is no JSON ({error}): {ran.out[:100]!r}"
    return command.check(ran) if command.check else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def call(arguments: Sequence[str], folder: Path, longest: int = LONGEST) -> Ran:
    """Run the command line in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before = sys.argv, sys.stdout, sys.stderr, warnings.showwarning
    sys.argv, sys.stdout, sys.stderr = ["compshift", *arguments], out, err
    code: Any = None
    try:
        with warnings.catch_warnings(), _limited(longest):
            warnings.simplefilter("default")
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv, sys.stdout, sys.stderr, warnings.showwarning = before
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Ran(code, *texts, folder)


@contextmanager
def _limited(longest: int) -> Iterator[None]:
    """Stop what takes too long."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(longest)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _short(argument: str) -> str:
    shown = os.path.basename(argument) if os.path.isabs(argument) else argument
    return repr(shown if len(shown) < 40 else f"{shown[:40]}…")
