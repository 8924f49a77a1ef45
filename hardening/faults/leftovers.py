"""Files that a power cut left empty, cut off or full of zeros under their final names: never taken for whole."""

from functools import partial
from pathlib import Path
from shutil import rmtree

from hardening.faults.forked import run_forked
from hardening.faults.injection import kill_before
from hardening.faults.verdicts import REFERENCES, Failure, Fault, Verdict, differing, lost, one_sentence, same_end

PART = "leftovers"
DAMAGES = ("empty", "half", "zeros")
READERS = {
    "bench": ("tables", "bench"),
    "train": ("predict", "run", "{home}/birds.npz", "-o", "read.csv"),
    "features": ("fit", "shards", "--target", "bird", "--attributes", "place", "-o", "read.safetensors"),
    "fit": ("evaluate", "model.safetensors", "{home}/birds.npz"),
}
"""Commands that read what another wrote."""

HARMLESS = ("config.toml", "metrics.jsonl", "results.parquet")
"""Files for people and other programs, which no command takes for results."""


def leftover_faults() -> list[Fault]:
    """Every file of a finished and of a half-finished output, damaged in every way."""
    faults = []
    for name in ("bench", "train", "features", "fit"):
        reference = REFERENCES[name]
        base = Path(reference.scene.output) if reference.scene.resumes else Path()
        jobs = [file for file in reference.found if file.startswith("jobs/")][2:]
        for file in reference.found:
            for damage in DAMAGES if file not in jobs else ():
                label = f"{name}, {file} is {damage}"
                faults.append(Fault(PART, label, partial(damaged, name, str(base / file), damage)))
    for file in ("last.safetensors", "best.safetensors", "metrics.jsonl", "run.json", "config.toml"):
        for damage in DAMAGES:
            label = f"train, {file} is {damage} half-way"
            faults.append(Fault(PART, label, partial(half_way, file, damage)))
    return faults


def damaged(name: str, file: str, damage: str, cwd: Path) -> Verdict:
    """Readers refuse the file; the command that wrote it refuses it too, or makes it again."""
    reference = REFERENCES[name]
    if reference.scene.run(cwd).code != 0:
        return Failure("internal error", "it failed without a fault")
    spoil(cwd / file, damage)
    home = cwd.parent
    reader = [word.format(home=home) for word in READERS[name]]
    read = run_forked(reader, cwd)
    if read.code == 0 and Path(file).name not in (*HARMLESS, "result.json"):  # which says no more than that it ended
        return lost(f"`compshift {reader[0]}` took it for whole")
    failure = one_sentence(read) if read.code != 0 else None
    if failure:
        return Failure(failure.kind, f"`compshift {reader[0]}`: {failure.what}")
    for made in ("read.csv", "read.safetensors"):
        (cwd / made).unlink(missing_ok=True)
    return _mended(name, cwd, cwd / file)


def half_way(file: str, damage: str, cwd: Path) -> Verdict:
    """A run that was stopped, with one of its files spoilt."""
    reference = REFERENCES["train"]
    reference.scene.run(cwd, kill_before(2 * reference.events // 3))
    spoil(cwd / "run" / file, damage)
    return _mended("train", cwd, cwd / "run" / file)


def _mended(name: str, cwd: Path, file: Path) -> Verdict:
    """The same command makes it again, or says what to do; once that is done, it ends as it should."""
    reference = REFERENCES[name]
    ended = reference.scene.run(cwd)
    if ended.code == 0:
        left = HARMLESS if name == "train" else ()  # a finished run is not begun again for its log
        found = {key: value for key, value in reference.scene.found(cwd).items() if key not in left}
        difference = differing({key: value for key, value in reference.found.items() if key not in left}, found)
        return lost(f"the same command left {difference}") if difference else "answered"
    failure = one_sentence(ended)
    if failure:
        return failure
    if "remove it" in ended.err:
        file.unlink()
    elif "--overwrite" in ended.err:
        rmtree(cwd / reference.scene.output)
    else:
        return Failure("unclear sentence", f"no remedy is named: {ended.err.strip()}")
    verdict = same_end(reference, cwd, "damaged", recomputed=True)
    return "refused" if verdict == "answered" else verdict


def spoil(path: Path, damage: str) -> None:
    """Leave of a file what a power cut leaves."""
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "zeros": bytes(len(content))}[damage])
