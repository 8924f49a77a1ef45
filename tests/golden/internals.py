"""All that the golden cases and old files take from outside the public Python API."""

import contextlib
import io
import os
import sys
import warnings
from unittest import mock

from compshift.cli.main import main
from compshift.data.dataset import ImageArrays as ImageArrays
from compshift.training.progress import Listener as Listener


def command(*arguments, cwd):
    """Run a command in this process and return what it prints; raise if it fails."""
    out, err = io.StringIO(), io.StringIO()
    before = os.getcwd()
    os.chdir(cwd)
    try:
        with (
            mock.patch.object(sys, "argv", ["compshift", *map(str, arguments)]),
            mock.patch.object(warnings, "showwarning"),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"compshift {' '.join(map(str, arguments))}: {err.getvalue()}") from None
    finally:
        os.chdir(before)
    return out.getvalue()
