"""Whether the Hugging Face hub can be reached, asked once and quickly."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

PATIENCE = 5.0
"""Seconds that the hub has to answer."""


@contextmanager
def offline_without_hub(name: str) -> Iterator[None]:
    """Load ``name`` from what was downloaded before if the hub cannot be reached, instead of asking again and again."""
    from huggingface_hub import constants

    if Path(name).is_dir() or constants.HF_HUB_OFFLINE or _answers(constants.ENDPOINT):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(address: str) -> bool:
    """Whether anything is heard from there, be it a refusal."""
    try:
        with urlopen(Request(address, method="HEAD"), timeout=PATIENCE):
            return True
    except HTTPError:
        return True
    except (URLError, OSError, ValueError) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)  # of certificates others know more
