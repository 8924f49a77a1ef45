"""Paths: missing, folders for files and the reverse, outputs that cannot be written, and odd names."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hardening.commands.call import Command, Ending, Ran
from hardening.commands.ground import LABELS, NUMBERS, TRAINING, Ground
from hardening.commands.options import good_commands

WRITERS = (
    "features",
    "fit",
    "train",
    "predict",
    "export",
    "bench",
    "report",
    "figure",
    "datasets export",
    "tables",
    "audit",
)
FOLDERS = ("features", "train", "bench")
ODD_NAMES = {
    "blanks": b"a b ",
    "a newline": b"a\nb",
    "a leading dash": b"-a",
    "quotes": b"a'b\"c",
    "bytes that are not UTF-8": b"caf\xe9",
    "right to left": "אבג\u202ex".encode(),
    "a control character": b"a\x1b[31mb",
    "markup": b"[bold]a",
    "a percent sign": b"100%s{x}",
    "240 letters": b"n" * 240,
}


def path_commands(ground: Ground) -> Iterator[Command]:
    """All of them."""
    yield from _inputs(ground)
    yield from _outputs(ground)
    yield from _parts_of_inputs(ground)
    yield from _odd_names(ground)


def _inputs(ground: Ground) -> Iterator[Command]:
    """Each input of each command: nothing there, a folder, a file of another kind, a name that is too long."""
    empty = ground.folder / "empty_folder"
    empty.mkdir(exist_ok=True)
    nothing = ground.folder / "nothing"
    nothing.write_bytes(b"")
    bad = [
        str(ground.folder / "missing.csv"),
        str(ground.folder / "missing"),
        str(empty),
        str(nothing),
        "/dev/null",
        "",
    ]
    bad += ["n" * 10_000, str(ground.folder / "birds.csv" / "x.npz"), "."]
    good_inputs = {ground.table, ground.features, ground.model, ground.results, ground.pictures}
    for name, arguments in good_commands(ground).items():
        for position, argument in enumerate(arguments):
            if argument not in good_inputs:
                continue
            for path in bad:
                yield Command(
                    f"a bad path for {name}", [*arguments[:position], path, *arguments[position + 1 :]], "refuse"
                )
    for path in bad:
        train = ["train", ground.features, *LABELS, *TRAINING, "-o", "{out}/run"]
        yield Command("a bad path for --config", [*train, "--config", path], "either" if path in bad[3:5] else "refuse")
        fit = ["fit", ground.features, *LABELS, "-o", "{out}/m", "--prior", path]
        yield Command("a bad path for --prior", fit, "refuse")
        plugin = ["bench", ground.features, "--dry-run", "-o", "{out}/b", "--plugin", path]
        yield Command("a bad path for --plugin", plugin, "either" if path in bad[3:5] else "refuse")
        yield Command("a bad path for train", [*train[:1], path, *train[2:]], "refuse")
        yield Command("a bad path for --root", ["datasets", "check", "waterbirds", "--root", path], "refuse")


def _outputs(ground: Ground) -> Iterator[Command]:
    """Each output: a folder, a missing folder, the input itself, a wrong suffix, a file where a folder goes."""
    good = good_commands(ground)
    good["tables"] = [*good["tables"], "-o", "{out}/t.md"]
    good["audit"] = [*good["audit"], "-o", "{out}/g.png"]
    for name in WRITERS:
        arguments = good[name]
        place = arguments.index("-o") + 1
        suffix = Path(arguments[place]).suffix
        folder = ground.folder / f"taken{suffix}"
        folder.mkdir(exist_ok=True)
        source = next((a for a in arguments if a in (ground.table, ground.features, ground.model)), ground.table)
        for path, label in {
            str(folder): "a folder as output",
            str(ground.folder / "no" / "such" / f"x{suffix}"): "an output in a missing folder",
            source: "the input as output",
            "{out}/x.exe": "another suffix",
            "": "an empty output",
            "/dev/full" if suffix else "/dev/null": "a device as output",
            "/proc/x" + suffix: "an output that cannot be made",
            "n" * 300 + suffix: "an output with a name that is too long",
        }.items():
            if name in FOLDERS and label in ("a folder as output", "another suffix", "an output in a missing folder"):
                continue  # these are folders themselves, made where they are missing
            if name == "tables" and label == "the input as output":
                continue  # its input is a folder
            if name in FOLDERS and label == "an empty output":
                continue  # the folder where the command runs
            free = label == "another suffix" and name in ("fit", "tables")
            dry = name == "bench"  # nothing is written
            yield Command(
                label,
                [*arguments[:place], path, *arguments[place + 1 :]],
                "either" if free or dry else "refuse",
                _input_is_whole(source),
            )


def _parts_of_inputs(ground: Ground) -> Iterator[Command]:
    """Outputs in a folder that is read: a part of it, and what would be one from then on."""
    shard = f"{ground.shards}/part-0.parquet"
    weights, about = f"{ground.run}/model.safetensors", f"{ground.results}/bench.json"
    label = "a part of the input as output"
    for path in (shard, f"{ground.shards}/part-1.parquet"):
        yield Command(label, ["predict", ground.model, ground.shards, "-o", path], "refuse", _input_is_whole(shard))
    yield Command(label, ["tables", ground.results, "-o", about], "refuse", _input_is_whole(about))
    onto = ["predict", ground.run, ground.features, "-o", f"{ground.run}/run.parquet"]
    yield Command(label, onto, "refuse", _input_is_whole(weights))


def _input_is_whole(source: str) -> object:
    before = Path(source).read_bytes()

    def check(_: Ran) -> str | None:
        return None if Path(source).read_bytes() == before else "the input was written over"

    return check


def _odd_names(ground: Ground) -> Iterator[Command]:
    """Inputs and outputs whose names are hard to print."""
    for label, raw in ODD_NAMES.items():
        stem = os.fsdecode(raw)
        table, features = (f"{stem}{suffix}" for suffix in (".csv", ".npz"))
        shutil.copy(ground.table, ground.folder / table)
        shutil.copy(ground.features, ground.folder / features)
        run, results = ground.folder / f"r{stem}", ground.folder / f"b{stem}"
        shutil.copytree(ground.run, run, dirs_exist_ok=True)
        shutil.copytree(ground.results, results, dirs_exist_ok=True)
        groups = ["--attributes", "bird,place"]
        what = f"a name with {label}"
        ending: Ending = "either" if "UTF-8" in label else "answer"  # Arrow and safetensors take text alone
        model = f"{{out}}/{stem}.safetensors"
        training = [*LABELS, *TRAINING]
        yield Command(what, ["audit", *groups, "-o", f"{{out}}/{stem}.svg", "--json", "--", table], ending)
        yield Command(what, ["audit", *groups, "--", table], ending)
        yield Command(what, ["report", *groups, "-o", f"{{out}}/{stem}.html", "--", table], ending)
        yield Command(what, ["report", *groups, "--title", stem, "-o", "{out}/p.html", "--", table], ending)
        yield Command(what, ["fit", *LABELS, "-o", model, "--json", "--", features], ending)
        yield Command(what, ["fit", *NUMBERS, *LABELS, "-o", model, "--", table], ending)
        yield Command(what, ["train", *training, "-o", f"{{out}}/{stem}", "--json", "--", features], ending)
        yield Command(what, ["predict", "-o", f"{{out}}/{stem}.csv", "--", ground.model, features], ending)
        yield Command(what, ["predict", "-o", f"{{out}}/{stem}.parquet", "--", str(run), features], ending)
        yield Command(what, ["evaluate", "--json", "--", ground.model, features], ending)
        yield Command(what, ["report", "-o", "{out}/p.html", "--", ground.model, features], ending)
        yield Command(what, ["report", "-o", "{out}/p.html", "--", str(run), features], ending)
        yield Command(what, ["report", "-o", "{out}/p.html", "--", str(results)], ending)
        yield Command(what, ["export", "-o", f"{{out}}/{stem}.onnx", "--json", "--", str(run)], ending)
        yield Command(what, ["tables", "-o", f"{{out}}/{stem}.md", "--", str(results)], ending)
        yield Command(what, ["bench", "--dry-run", "-o", f"{{out}}/{stem}", "--json", "--", features], ending)
        yield Command(what, ["figure", "hull", "-o", f"{{out}}/{stem}.png"], ending)
        yield Command(what, ["datasets", "export", "penguins", "-o", f"{{out}}/{stem}.npz"], ending)
        yield Command(what, ["audit", *groups, "--", f"no{table}"], "refuse")
