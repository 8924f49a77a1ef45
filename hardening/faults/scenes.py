"""Commands small enough to be run hundreds of times, with all that they need and all that counts of what they write."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardening.faults.forked import Ended, run_forked

Found = dict[str, Any]
OLD = b"what was here before\n"
VOLATILE = ("seconds", "finished", "versions")


@dataclass(frozen=True)
class Scene:
    """A command line, the file or folder that it writes, and what is compared of it."""

    name: str
    arguments: tuple[str, ...]
    output: str
    found: Callable[[Path], Found]
    resumes: bool = False  # whether finished parts of the output are kept by the next run
    beside: tuple[str, ...] = ()  # further files

    def run(self, cwd: Path, inject: Any = None, **options: Any) -> Ended:
        """The command in a folder."""
        return run_forked(self.arguments, cwd, inject, **options)


def make_scenes(home: Path) -> list[Scene]:
    """Write the inputs to ``home``; the commands in an order in which each finds what it needs from those before."""
    _write_inputs(home)
    birds, made = str(home / "birds.npz"), home / "made"
    made.mkdir()
    model, bench = str(made / "model.safetensors"), str(made / "bench")
    fit = ("fit", birds, "--target", "bird", "--attributes", "place")
    images = (str(home / "photos.csv"), "--path", "path", "--target", "bird", "--attributes", "place")
    network = ("--backbone", str(home / "resnet"), "--root", str(home / "photos"), "--workers", "0")
    scenes = [
        Scene("fit", (*fit, "-o", "model.safetensors"), "model.safetensors", whole_files("model.safetensors")),
        Scene(
            "bench",
            *(("bench", birds, "--methods", "erm,mixup", "--drop", "water,sea", "--draws", "2", "--seeds", "2"),),
            *("bench", benchmark_records),
            resumes=True,
        ),
        Scene(
            "train",
            ("train", birds, "--target", "bird", "--attributes", "place", "--steps", "12", "--eval-every", "4"),
            *("run", run_files),
            resumes=True,
        ),
        Scene("features", ("features", *images, *network, "--shard-rows", "4"), "shards", shard_files, resumes=True),
        Scene("predict", ("predict", model, birds, "-o", "p.csv"), "p.csv", whole_files("p.csv")),
        Scene(
            "predict to Parquet", ("predict", model, birds, "-o", "p.parquet"), "p.parquet", whole_files("p.parquet")
        ),
        Scene("tables", ("tables", bench, "-o", "t.md"), "t.md", whole_files("t.md")),
        Scene(
            "report",
            ("report", str(home / "photos.csv"), "--attributes", "bird,place", "-o", "r.html"),
            "r.html",
            whole_files("r.html"),
        ),
        Scene("export", ("export", model, "-o", "m.onnx"), "m.onnx", whole_files("m.onnx")),
        Scene("datasets export", ("datasets", "export", "penguins", "-o", "d.npz"), "d.npz", whole_files("d.npz")),
        Scene("figure", ("figure", "hull", "-o", "f.png"), "f.png", whole_files("f.png", "f.csv"), beside=("f.csv",)),
    ]
    return [_complete(scene) for scene in scenes]


def _complete(scene: Scene) -> Scene:
    """With the options that folders take."""
    if not scene.resumes:
        return scene
    extra = {"bench": ("--steps", "4", "--features"), "train": ("--batch-size", "16", "--method", "crm")}
    arguments = (*scene.arguments, *extra.get(scene.name, ()), "--json", "-o", scene.output)
    return Scene(scene.name, arguments, scene.output, scene.found, scene.resumes)


def _write_inputs(home: Path) -> None:
    from tests.bench.small import write_birds
    from tests.nn.models import photographs, resnet

    from compshift.nn.huggingface import quiet

    write_birds(home / "birds.npz")
    names = photographs(home / "photos", 12)
    rows = [f"{name},{'water' if n % 2 else 'land'},{('sea', 'sand')[n // 2 % 2]}" for n, name in enumerate(names)]
    (home / "photos.csv").write_text("\n".join(["path,bird,place", *rows]) + "\n")
    with quiet():
        resnet(home / "resnet", side=8)


def digest(path: Path) -> str | None:
    """Of a file's content; None if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None


def whole_files(*names: str) -> Callable[[Path], Found]:
    """Compare files byte for byte, but for the minute at which a page was made."""

    def found(cwd: Path) -> Found:
        contents = {name: (cwd / name).read_bytes() for name in names if (cwd / name).is_file()}
        return {
            name: hashlib.sha256(re.sub(rb"20\d\d-\d\d-\d\d \d\d:\d\d UTC", b"", content)).hexdigest()[:16]
            for name, content in contents.items()
        }

    return found


def benchmark_records(cwd: Path) -> Found:
    """Records but for their times, and the other files by their names."""
    folder = cwd / "bench"
    found: Found = {}
    for path in _visible(folder):
        name = str(path.relative_to(folder))
        if name.startswith(("jobs", "failures")) or name == "bench.json":
            found[name] = without_times(json.loads(path.read_text())) if path.suffix == ".json" else None
        elif name == "results.parquet":
            content = path.read_bytes()
            found[name] = content[:4] == content[-4:] == b"PAR1"
        elif not name.startswith(("locks", "runs")):
            found[name] = digest(path)
    return found


def run_files(cwd: Path) -> Found:
    """The files of a run, byte for byte but for the seconds."""
    folder = cwd / "run"
    found: Found = {}
    for path in _visible(folder):
        name = str(path.relative_to(folder))
        found[name] = without_times(json.loads(path.read_text())) if name == "result.json" else digest(path)
    return found


def shard_files(cwd: Path) -> Found:
    """Shards and their manifest."""
    return {path.name: digest(path) for path in _visible(cwd / "shards") if path.name != "_lock"}


def without_times(content: Found) -> Found:
    """A record without what no two runs share."""
    kept = {name: value for name, value in content.items() if name not in VOLATILE}
    if isinstance(kept.get("detail"), dict):
        kept["detail"] = {name: value for name, value in kept["detail"].items() if name not in VOLATILE}
    return kept


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


@dataclass(frozen=True)
class Reference:
    """A scene, and what it leaves when nothing disturbs it."""

    scene: Scene
    found: Found
    out: str
    events: int  # changes of files that it makes
    largest: int  # bytes of the largest file
    seconds: float  # that it takes


def numbers(values: int, most: int) -> list[int]:
    """Up to ``most`` of 1…``values``, evenly, with both ends."""
    if values <= most:
        return list(range(1, values + 1))
    return sorted({round(value) for value in np.linspace(1, values, most)})
