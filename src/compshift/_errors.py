"""Public errors and warnings, and helpers that format their messages.

``check_name`` is here and not in ``_checks`` because the command line calls it before NumPy is loaded.
"""

import difflib
import errno
import math
import os
import re
from collections.abc import Iterable, Sequence

MAX_MESSAGE = 800
"""Number of characters above which the middle of a message is replaced by […]."""


def one_line(text: str) -> str:
    """Return a message on one line, without the line breaks and memory addresses that the ``repr`` of a value may have.

    A long message keeps its beginning, which says what was wrong, and its end, which says how to fix it.
    """
    line = " ".join(re.sub(r" at 0x[0-9a-f]+", "", text).split())
    half = MAX_MESSAGE // 2
    return line if len(line) <= MAX_MESSAGE else f"{line[:half]} […] {line[-half:]}"


class InputError(ValueError):
    """Error for an argument or a file that cannot be used; the message says in one line why, and how to fix it.

    Parameters
    ----------
    message : str
        Text of the message; line breaks become spaces unless ``lines`` is True.
    lines : bool, default=False
        Whether to keep the line breaks of the message.

    Examples
    --------
    >>> from compshift import GroupSpace
    >>> try:
    ...     GroupSpace.from_cardinalities([2, 0])
    ... except InputError as error:
    ...     isinstance(error, ValueError)
    True
    """

    def __init__(self, message: str = "", *, lines: bool = False) -> None:
        super().__init__(message if lines else one_line(message))


class InputTypeError(InputError, TypeError):
    """An InputError that is also a TypeError, for calls where scikit-learn raises a TypeError."""


class ExtrapolationWarning(UserWarning):
    """Warning that predictions depend on groups that the seen groups do not determine.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", ExtrapolationWarning)  # accept such predictions
    """


_AGAIN = "run the same command again"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free some space, and {_AGAIN}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change the permissions, or choose another path"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), f"check the path or create it, and {_AGAIN}"),
    **dict.fromkeys((errno.ELOOP, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG), "choose another path"),
}
"""Remedy for each operating-system error, by errno."""

CANNOT_WRITE = "cannot write: "
"""Prefix of an OSError's ``strerror`` that marks an error raised while writing a file."""


def reason(error: Exception) -> str:
    """Return the message of an error in one line, without the errno and path of an OSError."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())


def system_sentence(error: OSError) -> str:
    """Return an operating-system error as one sentence: which file, why it failed, and what to do."""
    if not error.errno:
        return reason(error)
    remedy = _REMEDIES.get(error.errno, f"check the disk, and {_AGAIN}")
    if error.filename is None:
        return f"{reason(error)}: {remedy}"
    verb = "written" if str(error.strerror).startswith(CANNOT_WRITE) else "used"
    return f"{os.fsdecode(error.filename)!r} cannot be {verb} ({reason(error)}): {remedy}"


def an(name: str) -> str:
    """Return the name of a class with its article: ``an AdditiveGaussian``, ``a str``, ``an SVC``."""
    spelt = name[:2].isupper()  # an acronym, pronounced letter by letter
    vowels = tuple("AEFHILMNORSX") if spelt else ("a", "e", "i", "o", "u", "ndarray")
    return f"{'an' if (name if spelt else name.lower()).startswith(vowels) else 'a'} {name}"


def shown(value: object, limit: int = 80) -> str:
    """Return the ``repr`` of a value, cut to ``limit`` characters and a closing quote."""
    text = repr(value)
    closing_quote = text[0] if text[0] in ("'", '"') else ""
    return text if len(text) <= limit else f"{text[: limit - 1]}…{closing_quote}"


def rough(count: int) -> str:
    """Return a count with three digits, or only its power of ten from 10³⁰⁰ on, where floats would overflow."""
    return f"{count:.3g}" if count < 10**300 else f"1e+{int(math.log10(count))}"


def listing(values: Iterable[object], limit: int = 8) -> str:
    """Return the first ``limit`` values as text: ``'a', 'b' and 3 more``."""
    items = list(values)
    head = ", ".join(shown(item) for item in items[:limit])
    return head if len(items) <= limit else f"{head} and {len(items) - limit} more"


def check_name(what: str, name: object, known: Sequence[str]) -> None:
    """Check that ``name`` is one of the ``known`` names; the message starts with ``what``, e.g. ``"prior"``."""
    if not isinstance(name, str) or name not in known:
        raise unknown_name(what, name, known)


def unknown_name(what: str, name: object, known: Sequence[str]) -> InputError:
    """Return the error for a name that is not one of ``known``; the message suggests the most similar known name."""
    close = difflib.get_close_matches(str(name)[:MAX_MESSAGE], known, n=1)
    hint = f"; did you mean {shown(close[0])}?" if close else ""
    return InputError(f"{what} {shown(name)} is not known: use one of {listing(known, 12)}{hint}")
