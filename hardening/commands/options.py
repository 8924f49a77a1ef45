"""Values of options: every number out of its range, names that are not known, and options that contradict."""

from collections.abc import Iterator
from typing import Any

import typer.main

from compshift.cli.main import app
from hardening.commands.call import Command
from hardening.commands.ground import LABELS, NUMBERS, TRAINING, Ground

NUMBERS_TRIED = ("0", "-1", "nan", "inf", "-inf", "1e400", "many", "", "1000000000000000000", "1.5", "0x10", "٣")
SLOW = {"--steps", "--workers", "--trials", "--samples", "--jobs", "--threads"}
"""Numbers that ask for work: as many as 10^18 would be done."""


def option_commands(ground: Ground) -> Iterator[Command]:
    """All of them."""
    yield from _numbers(ground)
    yield from _texts(ground)
    yield from _contradictions(ground)


def good_commands(ground: Ground) -> dict[str, list[str]]:
    """Each command on good input, cheap, and without ``--json``."""
    return {
        "audit": ["audit", ground.table, "--attributes", "bird,place"],
        "features": [
            "features",
            ground.pictures,
            "--text",
            "words",
            *LABELS,
            "--backbone",
            "none/such",
            "-o",
            "{out}/f",
        ],
        "fit": ["fit", ground.features, *LABELS, "-o", "{out}/m.safetensors"],
        "train": ["train", ground.features, *LABELS, *TRAINING, "-o", "{out}/run"],
        "methods": ["methods"],
        "predict": ["predict", ground.model, ground.features, "-o", "{out}/p.csv"],
        "evaluate": ["evaluate", ground.model, ground.features],
        "export": ["export", ground.model, "-o", "{out}/m.onnx"],
        "bench": ["bench", ground.features, "--dry-run", "-o", "{out}/b"],
        "tables": ["tables", ground.results],
        "report": ["report", ground.table, "--attributes", "bird,place", "-o", "{out}/p.html"],
        "figure": ["figure", "hull", "-o", "{out}/f.png"],
        "datasets list": ["datasets", "list"],
        "datasets check": ["datasets", "check", "penguins"],
        "datasets export": ["datasets", "export", "penguins", "-o", "{out}/p.npz"],
    }


def _parameters() -> Iterator[tuple[str, Any]]:
    """Every option of every command."""
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        children = {name: command} if not hasattr(command, "commands") else command.commands
        for child, found in children.items():
            for parameter in found.params:
                if parameter.opts[0].startswith("-"):
                    yield (name if child == name else f"{name} {child}"), parameter


def _numbers(ground: Ground) -> Iterator[Command]:
    """Every option that takes a number, with numbers out of range and with what is none."""
    good = good_commands(ground)
    for name, parameter in _parameters():
        if parameter.type_descriptor.annotation not in (int, float):
            continue
        option = parameter.opts[0]
        for value in NUMBERS_TRIED:
            if len(value) > 10 and option in SLOW:
                continue
            ending = "refuse" if value in ("many", "", "-inf", "nan") else "either"
            arguments = [*good[name], f"{option}={value}"]
            yield Command(f"{option} {value!r}", arguments, ending)  # type: ignore[arg-type]
    for option in ("--alpha", "--unseen-offset", "--memory", "--shares"):
        for value in ("", "many", "nan", "inf", "1e400", "-1", "1,nan", ",", "0.5,0.5,0.5", "1e-400", "9" * 400):
            source = ground.shards if option == "--memory" else ground.features
            table = [ground.table, *NUMBERS] if option == "--shares" else [source]
            arguments = ["fit", *table, *LABELS, "-o", "{out}/m.safetensors", f"{option}={value}"]
            either = (option in ("--alpha", "--unseen-offset") and value == "1e-400") or option == "--unseen-offset"
            yield Command(f"{option} {value[:9]!r}", arguments, "either" if either else "refuse")


def _texts(ground: Ground) -> Iterator[Command]:
    """Names that are not known, for every option that takes a text."""
    good = good_commands(ground)
    named = {"--target", "--attributes", "--count", "--split", "--prior", "--bias", "--anchor", "--support", "--select"}
    named |= {"--backbone", "--device", "--dtype", "--pooling", "--method", "--methods", "--drop", "--backend"}
    named |= {"--format", "--table", "--metric", "--optimiser", "--schedule", "--precision", "--balance", "--set"}
    named |= {"--features", "--path", "--text", "--split-column", "--config", "--plugin", "--root", "--scheduler"}
    named |= {"--address"}
    for name, parameter in _parameters():
        option = parameter.opts[0]
        descriptor = parameter.type_descriptor
        if descriptor.annotation in (int, float, bool) or option not in named:
            continue
        if option in ("--scheduler", "--address", "--root"):
            continue  # a dry run looks for no cluster, and good input needs no root
        for value in ("", "unifrom", "a" * 10_000, "é\u202e\x1b[31m", "a\nb"):
            yield Command(f"{option} {value[:12]!r}", [*good[name], option, value])
    for name, arguments in good.items():
        yield Command("good input", arguments, "either" if name == "features" else "answer")
        yield Command("an unknown option", [*arguments, "--nothing"], "refuse")
        yield Command("a misspelt option", [*arguments, "--jsn"], "refuse")
        yield Command("one argument too many", [*arguments, "a", "b", "c"], "refuse")
        yield Command("an option without its value", [*arguments, "--output"], "refuse")
        json = [*arguments, "--json"]
        refuses = name in ("features", "predict", "report", "tables", "datasets export")
        yield Command("--json", json, "refuse" if refuses else "answer")
    for command in ("", "adit", "audit\n", "-", "--", "אבג", "a" * 10_000, "../audit"):
        yield Command("an unknown command", [command, ground.table], "refuse")


def _contradictions(ground: Ground) -> Iterator[Command]:
    """Options that cannot be meant together."""
    fit = ["fit", ground.features, *LABELS, "-o", "{out}/m.safetensors"]
    table = ["fit", ground.table, *LABELS, "-o", "{out}/m.safetensors"]
    train = ["train", ground.features, *LABELS, *TRAINING, "-o", "{out}/run"]
    bench = ["bench", ground.features, "--dry-run", "-o", "{out}/b"]
    report = ["report", ground.table, "--attributes", "bird,place", "-o", "{out}/p.html"]
    for arguments in (
        [*fit, "--path", "x", "--text", "y"],
        [*fit, "--memory", "1G"],
        [*fit, "--root", "."],
        [*fit, "--shares", "0.5,0.5"],
        [*fit, "--skip-broken"],
        ["fit", ground.features, "--target", "bird", "--attributes", "bird", "-o", "{out}/m"],
        ["fit", ground.features, "--target", "bird,bird", "-o", "{out}/m"],
        ["fit", ground.shards, *LABELS, "--memory", "1G", "--alpha", "auto", "-o", "{out}/m"],
        ["fit", ground.shards, *LABELS, "--memory", "1G", "--cross-fit", "-o", "{out}/m"],
        [*table],
        [*table, *NUMBERS, "--split-column", "note", "--shares", "0.5,0.5"],
        [*table, *NUMBERS, "--backbone", "minilm"],
        [*table, "--features", "bird,x0"],
        [*table, "--features", "x0,x0"],
        [*table, *NUMBERS, "--memory", "1G"],
        [*table, *NUMBERS, "--split", "train"],
        ["audit", ground.table, "--attributes", "bird,bird"],
        ["audit", ground.table, "--attributes", "bird", "--count", "bird"],
        ["audit", ground.features, "--attributes", "bird,place", "--count", "rows"],
        ["audit", ground.table, "--attributes", "bird,place", "--split", "train"],
        [*train, "--method", "erm", "--set", "nothing=1"],
        [*train, "--set", "noequals"],
        [*train, "--drop", "duck"],
        [*train, "--drop", "duck,nowhere"],
        [*train, "--drop", "duck,lake", "--drop", "duck,sea", "--drop", "gull,sea"],
        [*train, "--target", "place,bird"],
        [*train, "--path", "x"],
        ["train", "-o", "{out}/run"],
        ["train", ground.features, *LABELS],
        [*bench, "--methods", "erm,erm,nothing"],
        [*bench, "--drop", "random:2"],
        [*bench, "--drop", "random:nan"],
        [*bench, "--drop", "duck,sea;duck"],
        [*bench, "--features", "--backbone", "minilm"],
        [*bench, "--shares", "0.5,0.5"],
        [*bench, "--select", "best"],
        ["predict", ground.model, ground.features, "-o", "{out}/p.csv", "--split", "none"],
        ["predict", ground.run, ground.features, "-o", "{out}/p.csv", "--backbone", "x", "--prior", "nothing"],
        ["predict", ground.model, ground.table, "-o", "{out}/p.csv"],
        ["predict", ground.table_model, ground.table, "-o", "{out}/p.csv", "--split", "test"],
        ["evaluate", ground.model, "penguins"],
        ["evaluate", ground.model, "waterbirds"],
        ["evaluate", ground.features, ground.model],
        ["tables"],
        ["tables", ground.results, "--paper"],
        ["tables", ground.results, "--table", "standart"],
        ["tables", ground.table],
        [*report, "--prior", "train"],
        [*report, "--backbone", "minilm"],
        ["report", ground.table, "-o", "{out}/p.html"],
        ["report", ground.model, "-o", "{out}/p.html", "--attributes", "bird"],
        ["report", ground.model, "-o", "{out}/p.html", "--split", "test"],
        ["report", ground.results, "-o", "{out}/p.html", "--split", "test"],
        ["report", ground.results, ground.features, "-o", "{out}/p.html"],
        ["figure", "hul", "-o", "{out}/f.png"],
        ["features", "penguins", "-o", "{out}/f"],
        ["features", "waterbrids", "-o", "{out}/f"],
        ["features", ground.pictures, "-o", "{out}/f", "--path", "file", "--text", "words", *LABELS],
        ["features", ground.pictures, "-o", "{out}/f", "--path", "file"],
        ["datasets", "check", "penguin"],
        ["datasets", "check", "waterbirds"],
        ["datasets", "export", "waterbirds", "-o", "{out}/f.npz"],
    ):
        yield Command("options that contradict", arguments, "refuse")
