"""The examples of a page of Markdown: its fenced blocks, run in order as a reader would run them."""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from compshift.cli.main import main

BLOCK = re.compile(r"(?:<!-- needs (?P<needs>[\w ]+) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block, the packages that it needs, and the output that the page shows for it."""

    language: str
    text: str
    needs: tuple[str, ...]
    output: str | None

    @property
    def runs_here(self):
        return all(importlib.util.find_spec(name) for name in self.needs)


def blocks(page):
    """Fenced blocks in order; a block without a language that follows directly is the output of the one before.

    A block needs what it imports, and what a comment before it names: ``<!-- needs torch -->``.
    """
    found = list(BLOCK.finditer(page))
    for this, after in zip(found, [*found[1:], None], strict=True):
        shown = after is not None and not after["language"] and not page[this.end() : after.start()].strip()
        imports = IMPORT.findall(this["text"]) if this["language"] == "python" else []
        needs = (*(this["needs"] or "").split(), *imports)
        yield Block(this["language"], this["text"], needs, after["text"] if shown else None)


def plain(text):
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def check_shown(printed, block, name):
    """Check that a page shows what a block printed."""
    assert plain(printed) == plain(block.output), f"{name} shows another output of:\n{block.text}\nnow:\n{printed}"


def run_python(block, namespace, name):
    """Execute a block; what it printed, which must be what the page shows."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, name, "exec"), namespace)
    if block.output is not None:
        check_shown(printed.getvalue(), block, name)
    return printed.getvalue()


def run_commands(block, name):
    """Run the lines of a console block in this folder; what they printed, which must be what the page shows.

    They run in this process, which saves importing everything again. ``< FILE`` is their standard input.
    """
    printed = ""
    for line in block.text.replace("\\\n", " ").splitlines():
        words, _, given = line.removeprefix("$ ").partition(" < ")
        command = shlex.split(words)
        assert command[0] == "compshift", line
        out, err = io.StringIO(), io.StringIO()
        content = io.BytesIO(Path(given.strip()).read_bytes() if given else b"")
        with (
            patch.object(sys, "argv", command),
            patch.object(sys, "stdin", io.TextIOWrapper(content)),
            patch.dict(os.environ, COLUMNS="100"),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
            except SystemExit as stop:
                code = stop.code
        assert code == 0, f"{name}: {line}\n{err.getvalue()}"
        printed += out.getvalue()
    if block.output is not None:
        check_shown(printed, block, name)
    return printed


def run_page(path, namespace=None):
    """Run all examples of a page in the current folder, without those that need what is not installed.

    ``namespace`` has the names that the page takes for granted.
    """
    namespace = {} if namespace is None else namespace
    page = Path(path)
    for block in blocks(page.read_text()):
        if block.language == "python" and block.runs_here:
            run_python(block, namespace, page.name)
        elif block.language == "console" and block.runs_here:
            run_commands(block, page.name)
    return namespace
