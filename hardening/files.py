"""Untrusted files: thousands of damaged ones, and attacks made by hand. Nothing runs, nothing is read elsewhere."""

import random
import warnings
from collections.abc import Iterable, Iterator

from formats import (
    Format,
    benchmark_formats,
    cache_formats,
    feature_formats,
    image_formats,
    table_formats,
)
from model_formats import model_formats, result_formats, trained_formats
from outcome import Tally
from sandbox import Sandbox, sandbox

MAKERS = (feature_formats, table_formats, image_formats, benchmark_formats, cache_formats, model_formats, trained_formats, result_formats)


def run() -> Iterable[Tally]:
    """The counts: one line for every kind of file, and one for attacks."""
    warnings.simplefilter("ignore")
    with sandbox() as box:
        yield from damaged(box)


def damaged(box: Sandbox) -> Iterator[Tally]:
    """Read a file whole, then in many damaged versions."""
    for make in MAKERS:
        tally = Tally(f"files, {make.__name__.removesuffix('_formats')}", "files")
        folder = box.inside / make.__name__
        folder.mkdir()
        for form in make(folder):
            fuzz(box, form, tally)
        yield tally


def fuzz(box: Sandbox, form: Format, tally: Tally) -> None:
    """Every version ends in something valid, or in one sentence."""
    content = form.file.read_bytes()
    before = tally.answered
    box.attempt(tally, f"{form.name}, unchanged", form.read, form.check)
    if tally.answered == before:
        tally.fail("wrong result", f"{form.name}: the unchanged file is refused")
    rng = random.Random(form.name)
    for number in range(form.rounds):
        mutation = form.mutations[number % len(form.mutations)]
        form.file.write_bytes(mutation(content, rng))
        box.attempt(tally, f"{form.name}, {mutation.__name__} {number}", form.read, form.check)
    form.file.write_bytes(content)
