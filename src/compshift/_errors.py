"""The errors and warnings that callers see, and the phrases their messages are made of."""

import difflib
from collections.abc import Iterable, Sequence

LONGEST_SENTENCE = 600
"""Characters of a message: values that it quotes can be of any length, and come from anybody's files."""


class InputError(ValueError):
    """Something that was passed in cannot be used; the message says why and how to mend it, in one line."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_one_line(message))


class ExtrapolationWarning(UserWarning):
    """Groups are predicted that the training groups do not determine."""


def _one_line(message: str) -> str:
    """A message without line breaks; one that is too long loses its middle, as the remedy stands at the end."""
    text = " ".join(message.split()) if "\n" in message else message
    if len(text) <= LONGEST_SENTENCE:
        return text
    return f"{text[: LONGEST_SENTENCE * 2 // 3 - 3]} … {text[-LONGEST_SENTENCE // 3 :]}"


def an(name: str) -> str:
    """The name of a class after its article, for messages: ``an AdditiveGaussian``, ``a str``, ``an SVC``."""
    spelt = name[:2].isupper()  # letter by letter
    vowels = tuple("AEFHILMNORSX") if spelt else ("a", "e", "i", "o", "u", "ndarray")
    return f"{'an' if (name if spelt else name.lower()).startswith(vowels) else 'a'} {name}"


def listing(values: Iterable[object], limit: int = 8) -> str:
    """The values as ``'a', 'b' and 3 more``, for messages."""
    shown = [repr(value) for value in values]
    if len(shown) <= limit:
        return ", ".join(shown)
    return ", ".join(shown[:limit]) + f" and {len(shown) - limit} more"


def unknown_name(what: str, name: object, known: Sequence[str]) -> InputError:
    """The error for a name that is not one of ``known``, with the nearest one suggested."""
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return InputError(f"{what} {name!r} is not known: use one of {listing(known, 12)}{hint}")
