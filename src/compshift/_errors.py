"""The errors and warnings that callers see, and the phrases their messages are made of."""

import difflib
from collections.abc import Iterable, Sequence

QUOTES = ("'", '"')


class InputError(ValueError):
    """Something that was passed in cannot be used; the message says why and how to mend it."""


class ExtrapolationWarning(UserWarning):
    """Groups are predicted that the training groups do not determine."""


def an(name: str) -> str:
    """The name of a class after its article, for messages: ``an AdditiveGaussian``, ``a str``, ``an SVC``."""
    spelt = name[:2].isupper()  # letter by letter
    vowels = tuple("AEFHILMNORSX") if spelt else ("a", "e", "i", "o", "u", "ndarray")
    return f"{'an' if (name if spelt else name.lower()).startswith(vowels) else 'a'} {name}"


def shown(value: object, limit: int = 80) -> str:
    """The value as Python writes it, cut where it is long, for messages."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…{text[0] if text[0] in QUOTES else ''}"


def listing(values: Iterable[object], limit: int = 8) -> str:
    """The values as ``'a', 'b' and 3 more``, for messages."""
    found = list(values)
    head = ", ".join(shown(value) for value in found[:limit])
    return head if len(found) <= limit else f"{head} and {len(found) - limit} more"


def unknown_name(what: str, name: object, known: Sequence[str]) -> InputError:
    """The error for a name that is not one of ``known``, with the nearest one suggested."""
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {shown(close[0])}?" if close else ""
    return InputError(f"{what} {shown(name)} is not known: use one of {listing(known, 12)}{hint}")
