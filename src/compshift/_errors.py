"""The errors and warnings that callers see, and the phrases their messages are made of."""

import difflib
import errno
import math
import os
import re
from collections.abc import Iterable, Sequence

LONGEST_MESSAGE = 800
QUOTES = ("'", '"')


def one_line(text: str) -> str:
    """A message without line breaks and addresses in memory, which a value may have brought into it.

    Of a very long one the beginning, which says what was wrong, and the end, which says how to mend it, are kept.
    """
    line = " ".join(re.sub(r" at 0x[0-9a-f]+", "", text).split())
    half = LONGEST_MESSAGE // 2
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:half]} […] {line[-half:]}"


class InputError(ValueError):
    """Something that was passed in cannot be used; the message, one line, says why and how to mend it."""

    def __init__(self, message: str = "", *, lines: bool = False) -> None:
        super().__init__(message if lines else one_line(message))


class InputTypeError(InputError, TypeError):
    """An InputError where callers of scikit-learn expect a TypeError."""


class ExtrapolationWarning(UserWarning):
    """Groups are predicted that the training groups do not determine."""


_AGAIN = "run the same command again"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free some space, and {_AGAIN}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change the permissions, or choose another path"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), f"put it there, and {_AGAIN}"),
    **dict.fromkeys((errno.ELOOP, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG), "choose another path"),
}
"""What helps against errors of the system."""

CANNOT_WRITE = "cannot write: "
"""How the reason of an error begins that came of writing a file."""


def reason(error: Exception) -> str:
    """Why it failed, in one line and without the number and the path that the system adds."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())


def system_sentence(error: OSError) -> str:
    """An error of the system as one sentence: what could not be done, why, and what helps."""
    if not error.errno:
        return reason(error)
    remedy = _REMEDIES.get(error.errno, f"check the disk, and {_AGAIN}")
    if error.filename is None:
        return f"{reason(error)}: {remedy}"
    verb = "written" if str(error.strerror).startswith(CANNOT_WRITE) else "used"
    return f"{os.fsdecode(error.filename)!r} cannot be {verb} ({reason(error)}): {remedy}"


def an(name: str) -> str:
    """The name of a class after its article, for messages: ``an AdditiveGaussian``, ``a str``, ``an SVC``."""
    spelt = name[:2].isupper()  # letter by letter
    vowels = tuple("AEFHILMNORSX") if spelt else ("a", "e", "i", "o", "u", "ndarray")
    return f"{'an' if (name if spelt else name.lower()).startswith(vowels) else 'a'} {name}"


def shown(value: object, limit: int = 80) -> str:
    """The value as Python writes it, cut where it is long, for messages."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…{text[0] if text[0] in QUOTES else ''}"


def rough(count: int) -> str:
    """A count to three digits, or its power of ten where it is beyond all floats, for messages."""
    return f"{count:.3g}" if count < 10**300 else f"1e+{int(math.log10(count))}"


def listing(values: Iterable[object], limit: int = 8) -> str:
    """The values as ``'a', 'b' and 3 more``, for messages."""
    found = list(values)
    head = ", ".join(shown(value) for value in found[:limit])
    return head if len(found) <= limit else f"{head} and {len(found) - limit} more"


def check_name(what: str, name: object, known: Sequence[str]) -> None:
    """Refuse what is not one of the ``known`` names."""
    if not isinstance(name, str) or name not in known:
        raise unknown_name(what, name, known)


def unknown_name(what: str, name: object, known: Sequence[str]) -> InputError:
    """The error for a name that is not one of ``known``, with the nearest one suggested."""
    close = difflib.get_close_matches(str(name)[:LONGEST_MESSAGE], known, n=1)
    hint = f"; did you mean {shown(close[0])}?" if close else ""
    return InputError(f"{what} {shown(name)} is not known: use one of {listing(known, 12)}{hint}")
