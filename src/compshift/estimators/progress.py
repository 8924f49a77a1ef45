"""Progress of a fit, by way of the logger ``compshift``."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "compshift"


@contextmanager
def visible_log(verbose: bool | int) -> Iterator[None]:
    """Let informational messages through while a fit runs; to standard error if logging is not set up."""
    if not verbose:
        yield
        return
    logger = logging.getLogger(LOGGER)
    level, handler = logger.level, None
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            logger.removeHandler(handler)
