"""Arguments that the parser refuses, told in one sentence like any other bad input.

Standard output and standard error that nobody need read: a command goes on to its end without readers.

``compshift``: the commands, and what happens when one fails.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Annotated, Any, TextIO

import typer

from compshift import __version__
from compshift._errors import InputError, one_line, system_sentence
from compshift.cli import listings as datasets
from compshift.cli.audit import audit
from compshift.cli.bench import bench
from compshift.cli.export import export
from compshift.cli.features import features
from compshift.cli.figure import figure
from compshift.cli.fit import fit
from compshift.cli.listings import methods
from compshift.cli.options import Interrupted, interruptible
from compshift.cli.predict import evaluate, predict
from compshift.cli.report import report
from compshift.cli.tables import tables
from compshift.cli.train import train

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser raises; typer has it from click, or from a copy of its own, and gives it no public name."""

SHOWN = 60
"""Longer values are cut."""


def usage_sentence(error: Any) -> str | None:
    """What was wrong with the arguments; None if there were none, and the help has been shown."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return None
    text = _with_value(error) or error.format_message().rstrip(".")
    text = text.replace(" (Possible options: ", "; did you mean ").replace(". Did you mean", "; did you mean")
    text = text.removesuffix(")" if "did you mean" in text else "").removesuffix("?")
    command = error.ctx.command_path if error.ctx is not None else "compshift"
    return f"{text[:1].lower()}{text[1:]}{'?' * ('did you mean' in text)} (`{command} --help` tells what it takes)"


def _with_value(error: Any) -> str | None:
    """The value that an option was given, before what is wrong with it; None where the parser does not tell it."""
    details = getattr(error.__cause__, "errors", None)
    if details is None or getattr(error, "param", None) is None:
        return None
    (first, *_) = details()
    given = str(first["input"])
    shown = given if len(given) <= SHOWN else f"{given[:SHOWN]}…"
    wanted = str(first["msg"]).removeprefix("Input ")
    name = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.get_error_hint().strip("'")
    return f"{name} is {shown!r} and {wanted}"


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


ROW = re.compile(r"\brow \d")
"""A row by its number; as everywhere in Python, the first one is row 0."""

PARAMETER = re.compile(r"(?<=\bwith )(?:overwrite|skip_broken)\b|(?<=\bor )overwrite\b")
"""Parameters that remedies of the library name; the command line shows them as options."""

MAY_BE_EMPTY = ("--attributes", "--title")
"""No attributes are a choice, and so is no title."""

app = typer.Typer(
    name="compshift",
    help="Classifiers that keep working on combinations of attributes they never saw in training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(audit)
app.command()(features)
app.command()(fit)
app.command()(train)
app.command()(methods)
app.command()(predict)
app.command()(evaluate)
app.command()(export)
app.command()(bench)
app.command()(tables)
app.command()(report)
app.command()(figure)
app.add_typer(datasets.app, name="datasets")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"compshift {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version and stop."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that go before the command; ``main`` takes ``--debug`` out of the arguments before they are parsed."""


def main() -> None:
    """Run the command line. Bad input ends in one sentence and exit code 2; ``--debug`` shows the traceback."""
    debug = "--debug" in sys.argv[1:]
    arguments = [_at_home(argument) for argument in sys.argv[1:] if argument != "--debug"]
    warnings.showwarning = _show_warning
    with unheeded_streams():
        sys.exit(_run(arguments, debug=debug))


def _at_home(argument: str) -> str:
    """``~/…`` as the path it stands for, also in ``--option=~/…``, where shells leave it."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{equals}{os.path.expanduser(value)}" if value.startswith("~/") else argument


def _check_empty(arguments: list[str]) -> None:
    """Refuse options whose value is empty, as that of a variable that was never set: they would count as left out."""
    for option, value in zip(arguments, [*arguments[1:], None], strict=True):
        name, equals, own = option.partition("=")
        if option == "--":
            return
        if (
            name.startswith("--")
            and name not in MAY_BE_EMPTY
            and ((equals and not own) or (not equals and value == ""))
        ):
            raise InputError(f"{name} is empty: pass a value, or leave it out")


def _run(arguments: list[str], *, debug: bool) -> int:
    """The exit code of the command, once what it says is said."""
    try:
        try:
            _check_empty(arguments)
            with interruptible():
                code = app(args=arguments, prog_name="compshift", standalone_mode=False)
        finally:
            sys.stdout.flush()  # while there is somebody to tell that it cannot be written
        return code or 0
    except Interrupted as stop:
        typer.echo(stop.words, err=True)
        raise
    except Exception as error:
        if debug:
            raise
        expected = isinstance(error, InputError | OSError | UsageError)
        sentence = _sentence(error)
        hint = "" if expected else f" ({type(error).__name__}; run again with --debug for the traceback)"
        if sentence is not None:
            typer.echo(f"error: {one_line(sentence)}{hint}", err=True)
        _drop_output()
        return 2 if expected else 1


def _sentence(error: Exception) -> str | None:
    """What to tell of an error; None if it has been told."""
    if isinstance(error, UsageError):
        return usage_sentence(error)
    sentence = system_sentence(error) if isinstance(error, OSError) else str(error)
    sentence = PARAMETER.sub(lambda found: "--" + found[0].replace("_", "-"), sentence)
    return f"{sentence} (rows are counted from 0, without the heading)" if ROW.search(sentence) else sentence


def _drop_output() -> None:
    """Let Python not try once more, when it ends, to write what could not be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    """Warnings as one line, without the source code that Python adds."""
    typer.echo(f"warning: {one_line(str(message))}", err=True)
