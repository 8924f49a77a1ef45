"""Arguments that the parser refuses, told in one sentence like any other bad input."""

from typing import Any

import typer

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
