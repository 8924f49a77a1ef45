"""``compshift``: register all commands, and turn errors into one sentence and an exit code.

Exit codes: 0 for success, 1 for an internal error (or failed jobs, or broken files), 2 for bad input, 3 and 4 for what
``monitor`` found, and 128 + n if signal n stopped the command.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, TextIO

import typer

from compshift import __version__
from compshift._errors import InputError, one_line, system_sentence
from compshift.cli.audit import audit
from compshift.cli.bench import bench, tables
from compshift.cli.compare import compare
from compshift.cli.features import features
from compshift.cli.figure import figure
from compshift.cli.fit import fit
from compshift.cli.interruption import Interrupted, interruptible
from compshift.cli.listings import app as datasets
from compshift.cli.listings import methods
from compshift.cli.option_names import as_options, command_options
from compshift.cli.predict import evaluate, export, monitor, predict
from compshift.cli.report import report
from compshift.cli.serve import serve
from compshift.cli.train import train

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Base class of the argument parser's errors, which click defines; typer's own copy of click does not export it."""

MAX_VALUE_CHARACTERS = 60
"""Maximum length of a value in an error message; longer values are cut."""

ROW = re.compile(r"\brow \d")
"""Matches a row number in an error message; rows are counted from 0."""

app = typer.Typer(
    name="compshift",
    help="Classifiers that keep working on combinations of attributes that are absent from the training data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in {
    "Data": (audit,),
    "Models": (fit, features, train, compare),
    "Models in use": (predict, evaluate, report, monitor, serve, export),
    "Research": (bench, tables, methods, figure),
}.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(datasets, name="datasets", rich_help_panel="Data")


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
    """Declare the options before the command; ``main`` handles ``--debug`` itself, before arguments are parsed."""


def main() -> None:
    """Run the command line. Bad input prints one sentence and exits with 2; ``--debug`` shows the traceback."""
    debug = "--debug" in sys.argv[1:]
    arguments = [_expand_home(argument) for argument in sys.argv[1:] if argument != "--debug"]
    warnings.showwarning = partial(_show_warning, arguments)
    with _tolerant_streams():
        sys.exit(_run(arguments, debug=debug))


def _expand_home(argument: str) -> str:
    """Expand ``~/`` at the beginning of an argument, also in ``--option=~/…``, which shells do not expand."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{equals}{os.path.expanduser(value)}" if value.startswith("~/") else argument


def _check_empty(arguments: list[str]) -> None:
    """Raise an InputError for an option with an empty value, such as an unset shell variable.

    Without this check the option would be ignored.
    """
    for option, value in zip_longest(arguments, arguments[1:]):
        name, equals, own = option.partition("=")
        if option == "--":
            return
        if (
            name.startswith("--")
            and name not in ("--attributes", "--title")
            and ((equals and not own) or (not equals and value == ""))
        ):
            raise InputError(f"{name} is empty: pass a value, or leave it out")


def _run(arguments: list[str], *, debug: bool) -> int:
    """Run the command, print the message of an error, and return the exit code."""
    try:
        try:
            _check_empty(arguments)
            with interruptible():
                code = app(args=arguments, prog_name="compshift", standalone_mode=False)
        finally:
            sys.stdout.flush()  # inside this try, so that a failed write is reported as an error
        return code or 0
    except Interrupted as stop:
        typer.echo(stop.message, err=True)
        raise
    except Exception as error:
        if debug:
            raise
        expected = isinstance(error, InputError | OSError | UsageError)
        sentence = _message(error, arguments)
        hint = "" if expected else f" ({type(error).__name__}; run again with --debug for the traceback)"
        if sentence is not None:
            typer.echo(f"error: {one_line(sentence)}{hint}", err=True)
        _drop_output()
        return 2 if expected else 1


def _message(error: Exception, arguments: list[str]) -> str | None:
    """Return the message to print for an error; None if the parser has already printed the help instead."""
    if isinstance(error, UsageError):
        return _usage_message(error)
    sentence = system_sentence(error) if isinstance(error, OSError) else _with_options(str(error), arguments)
    return f"{sentence} (rows are counted from 0, without the header)" if ROW.search(sentence) else sentence


def _with_options(sentence: str, arguments: list[str]) -> str:
    """Return a message of the library with options in place of the parameters that it names."""
    return as_options(sentence, command_options(typer.main.get_command(app), arguments))


def _drop_output() -> None:
    """Discard buffered output that cannot be written; otherwise Python would try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(arguments: list[str], message: Any, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the file name and source line that Python adds."""
    typer.echo(f"warning: {one_line(_with_options(str(message), arguments))}", err=True)


def _usage_message(error: Any) -> str | None:
    """Return a message about invalid arguments; None if no arguments were given and the help was printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return None
    text = _with_value(error) or error.format_message().rstrip(".")
    text = text.replace(" (Possible options: ", "; did you mean ").replace(". Did you mean", "; did you mean")
    text = text.removesuffix(")" if "did you mean" in text else "").removesuffix("?")
    command = error.ctx.command_path if error.ctx is not None else "compshift"
    return f"{text[:1].lower()}{text[1:]}{'?' * ('did you mean' in text)} (see `{command} --help`)"


def _with_value(error: Any) -> str | None:
    """Return a message with the option, its value and the expected value; None if the error lacks the value."""
    details = getattr(error.__cause__, "errors", None)
    if details is None or getattr(error, "param", None) is None:
        return None
    (first, *_) = details()
    given = str(first["input"])
    shown = given if len(given) <= MAX_VALUE_CHARACTERS else f"{given[:MAX_VALUE_CHARACTERS]}…"
    wanted = str(first["msg"]).removeprefix("Input ")
    name = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.get_error_hint().strip("'")
    return f"{name} is {shown!r} but {wanted}"


class _DiscardingFile(io.FileIO):
    """A binary file that discards further output once the reader of its pipe has closed it."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self.fileno())
            os.close(null_device)
            return len(content)


@contextmanager
def _tolerant_streams() -> Iterator[None]:
    """Let the block run to its end even if the reader of its output has closed the pipe.

    Other write errors, such as a full disk, are still raised. Characters that the terminal cannot show become "?".
    """
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            replacement = _tolerant(stream)
            if replacement is not None:
                stack.enter_context(redirect(replacement))
                stack.callback(replacement.flush)
        yield


def _tolerant(stream: TextIO | None) -> TextIO | None:
    """Return a replacement for a stream that ignores closed pipes; None to keep the stream."""
    if stream is None:  # closed before the command started
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return None
    stream.flush()
    try:
        raw = _DiscardingFile(stream.fileno(), "wb", closefd=False)
    except io.UnsupportedOperation:  # a stream in memory has no file descriptor
        stream.reconfigure(errors="replace")
        return None
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
