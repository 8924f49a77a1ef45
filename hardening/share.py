"""All attempts, or every so manieth of them where time is short: ``HARDENING_SHARE=4`` tries a quarter."""

import os
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")
SHARE = int(os.environ.get("HARDENING_SHARE", "1"))


def some(items: Iterable[Item]) -> list[Item]:
    """The first of every ``SHARE`` items."""
    return list(items)[::SHARE]
