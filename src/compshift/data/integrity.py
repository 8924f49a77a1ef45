"""Whether every sample of a data set can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from compshift._errors import InputError
from compshift.data.dataset import GroupedDataset
from compshift.data.images import BrokenImageError, check_image
from compshift.data.samples import ImageFiles

AHEAD = 256
"""Files that are being read at a time."""


def broken_samples(data: GroupedDataset, progress: Callable[[int], None] = lambda _: None) -> Iterator[str]:
    """A sentence for every image that is missing or cannot be decoded, in the order of the rows."""
    if not isinstance(data.samples, ImageFiles):
        return
    rows, problem = iter(range(len(data))), partial(_problem, data.samples)
    with ThreadPoolExecutor() as pool:
        while block := list(islice(rows, AHEAD)):
            yield from (sentence for sentence in pool.map(problem, block) if sentence)
            progress(len(block))


def _problem(samples: ImageFiles, row: int) -> str:
    try:
        path = samples.path(row)
    except InputError as error:  # it leads out of the data set's folder
        return str(error)
    try:
        check_image(path)
    except BrokenImageError as error:
        return str(error)
    return ""
