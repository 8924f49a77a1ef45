"""What came of an attempt, and the count of many: right results, clear refusals, and what must never happen."""

import re
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sklearn.exceptions import NotFittedError

from compshift import InputError

Unit = Literal["inputs", "files", "faults"]
Kind = Literal[
    "internal error", "unclear sentence", "wrong result", "lost result", "execution", "read outside", "memory"
]
LONGEST_SENTENCE = 820
SCIKIT_LEARN = "The feature names should match"
"""Of its own words on names of columns, whose lines its estimator checks look for."""


class Failure(NamedTuple):
    """Something that must never happen: of which kind, and what went in and came out."""

    kind: Kind
    what: str


@dataclass
class Tally:
    """The count of one part: every attempt is answered, refused or a failure."""

    part: str
    unit: Unit
    answered: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Attempts in all."""
        return self.answered + self.refused + len(self.failures)

    def kinds(self) -> Counter[str]:
        """Failures of each kind."""
        return Counter(failure.kind for failure in self.failures)

    def fail(self, kind: Kind, what: str) -> None:
        """Count a failure."""
        self.failures.append(Failure(kind, what))

    def attempt(self, label: str, call: Callable[[], Any], check: Callable[[Any], str | None] | None = None) -> Any:
        """What ``call`` returns, or None if it was refused or failed.

        A result is right if ``check`` finds nothing to say of it. An error is a refusal if it is of a kind that
        callers are promised, with one clear sentence; any other is an internal error.
        """
        try:
            result = call()
        except Exception as error:
            complaint = unclear(error)
            if complaint is None:
                self.refused += 1
            elif is_promised(error):
                self.fail("unclear sentence", f"{label}: {complaint}: {error}")
            else:
                self.fail("internal error", f"{label}: {_place(error)}")
            return None
        try:
            found = check(result) if check else None
        except InputError:  # it was taken, and its use is refused in a sentence
            self.refused += 1
            return None
        if found is None:
            self.answered += 1
        else:
            self.fail("wrong result", f"{label}: {found}")
        return result


def is_promised(error: BaseException) -> bool:
    """Whether callers are told to expect an error of this kind."""
    if isinstance(error, OSError):
        return error.filename is not None or bool(error.args)
    return isinstance(error, InputError | NotFittedError)


def unclear(error: BaseException) -> str | None:
    """What is wrong with an error as one clear sentence, or None if it is one."""
    if not is_promised(error):
        return "not an error that callers are told of"
    return unclear_text(str(error))


def unclear_text(text: str) -> str | None:
    """What is wrong with a message as one clear sentence, or None if it is one."""
    if not text.strip():
        return "nothing is said"
    if "\n" in text.strip() and not text.startswith(SCIKIT_LEARN):
        return "more than one line"
    if len(text) > LONGEST_SENTENCE:
        return f"{len(text)} characters"
    if "Traceback (most recent call last)" in text or re.search(r"\bat 0x[0-9a-f]{6,}", text):
        return "the inside of the program is shown"
    return None


def _place(error: BaseException) -> str:
    """The error, and the last line of compshift that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "compshift" in frame.filename]
    where = f" at {frames[-1].filename.rpartition('compshift/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())[:200]}"
