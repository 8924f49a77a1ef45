"""Untrusted files: thousands of damaged ones, and attacks made by hand. Nothing runs, nothing is read elsewhere."""

import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator

from hardening.chance import chance
from hardening.files import hostile, outside, pipes
from hardening.files.backbone_formats import backbone_formats
from hardening.files.formats import (
    Format,
    benchmark_formats,
    cache_formats,
    feature_formats,
    image_formats,
    table_formats,
)
from hardening.files.hostile import Attack
from hardening.files.model_formats import model_formats, result_formats, trained_formats
from hardening.files.sandbox import Sandbox, sandbox
from hardening.tally import Tally, unclear_text

COMMANDS = {
    "bomb.npz": ("audit", "FILE", "--attributes", "bird,place"),
    "objects.npz": ("fit", "FILE", "--target", "bird", "--attributes", "place", "-o", "m.safetensors"),
    "bomb.parquet": ("audit", "FILE", "--attributes", "bird,place"),
    "lists.parquet": ("bench", "FILE", "-o", "results"),
    "renamed0.safetensors": ("predict", "FILE", "FEATURES", "-o", "p.csv"),
    "model 13 *.safetensors": ("evaluate", "FILE", "FEATURES"),
    "run torch": ("evaluate", "FILE", "FEATURES"),
    "shards": ("report", "FILE", "-o", "page.html"),
    "config 5.toml": ("train", "--config", "FILE", "-o", "new"),
    "table 3 *.csv": ("audit", "FILE", "--attributes", "bird,place"),
}
"""Files of ``hostile``, and a command that reads each."""

MAKERS = (
    feature_formats,
    table_formats,
    image_formats,
    benchmark_formats,
    cache_formats,
    model_formats,
    trained_formats,
    backbone_formats,
    result_formats,
)


def run() -> Iterable[Tally]:
    """The counts: one line for every kind of file, and one for attacks."""
    warnings.simplefilter("ignore")
    with sandbox() as box:
        yield attacked(box, "made to do harm", hostile.attacks(box))
        yield attacked(box, "leading elsewhere", outside.attacks(box))
        yield attacked(box, "without an end", pipes.attacks(box))
        yield from damaged(box)
        yield commanded(box)


def attacked(box: Sandbox, name: str, attacks: Iterable[Attack]) -> Tally:
    """Attacks, each of which must be refused."""
    tally = Tally(f"files, {name}", "files")
    for attack in attacks:
        box.forget()
        box.attempt(tally, attack.name, attack.read, attack.check)
    return tally


def commanded(box: Sandbox) -> Tally:
    """Some of the files that were made to do harm, through the command line: one line, and exit code 2."""
    tally = Tally("files, by command", "files")
    folder = box.inside / "hostile"
    features = str(box.inside / "feature_formats" / "features.npz")
    for file, arguments in COMMANDS.items():
        path = str(next(folder.glob(file)))
        command = [sys.executable, "-m", "compshift", *(path if word == "FILE" else word for word in arguments)]
        command = [features if word == "FEATURES" else word for word in command]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("warning:")]
        label = f"{' '.join(arguments)} with {file}"
        if box.marker.exists():
            box.marker.unlink()
            tally.fail("execution", label)
        elif "Traceback" in done.stderr or done.returncode != 2:
            tally.fail("internal error", f"{label}: exit code {done.returncode}: {done.stderr[-300:]}")
        elif len(lines) != 1 or not lines[0].startswith("error: ") or unclear_text(lines[0]):
            tally.fail("unclear sentence", f"{label}: {done.stderr[:300]}")
        else:
            tally.refused += 1
    return tally


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
    rng = chance(form.name)
    for number in range(form.rounds):
        mutation = form.mutations[number % len(form.mutations)]
        form.file.write_bytes(mutation(content, rng))
        box.attempt(tally, f"{form.name}, {mutation.__name__} {number}", form.read, form.check)
    form.file.write_bytes(content)
