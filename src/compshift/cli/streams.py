"""Standard output and standard error that nobody need read: a command goes on to its end without readers."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO


class _Unheeded(io.FileIO):
    """A descriptor that may be a pipe; once its reader is gone, what is written goes nowhere."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(content)


@contextmanager
def unheeded_streams() -> Iterator[None]:
    """Let the block print whether or not somebody reads; a disk that is full is told of still.

    A terminal that lacks a sign shows "?" and goes on.
    """
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            found = _unheeded(stream)
            if found is not None:
                stack.enter_context(redirect(found))
                stack.callback(found.flush)
        yield


def _unheeded(stream: TextIO | None) -> TextIO | None:
    """The stream in a form that outlives its reader; None where another program's own is to be left as it is."""
    if stream is None:  # closed before the command began
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return None
    stream.flush()
    try:
        raw = _Unheeded(stream.fileno(), "wb", closefd=False)
    except io.UnsupportedOperation:  # text in memory
        stream.reconfigure(errors="replace")
        return None
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
