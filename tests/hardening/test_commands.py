"""Every command with bad options, bad paths, odd file names and odd surroundings."""

import os
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import typer.main

from compshift.cli.main import app
from tests.hardening import commands as c
from tests.hardening.commands import GROUPS, LABELS, NUMBERS, TRAINING, Expected, Ground, Ran, attempt
from tests.hardening.verdicts import Tally, share

COMMANDS = (
    *("audit", "features", "fit", "train", "methods", "predict", "evaluate", "export", "bench", "tables", "report"),
    *("compare", "monitor", "figure", "datasets get", "datasets list", "datasets check", "datasets export"),
)
ODD_NUMBERS = ("0", "-1", "nan", "inf", "-inf", "1e400", "many", "", "1000000000000000000", "1.5", "0x10", "٣")
ODD_TEXTS = ("unifrom", "a" * 10_000, "é\u202e\x1b[31m", "a\nb", ",", "1,nan", "0.5,0.5,0.5", "9" * 400)
AMOUNTS = {"--steps", "--workers", "--trials", "--samples", "--jobs", "--threads"}  # 10^18 of them would be tried
UNCHECKED = {"--scheduler", "--address", "--root", "--output", "--title"}  # any text is fine in these commands
ODD_NAMES = {
    "blanks": b"a b ", "a newline": b"a\nb", "a leading dash": b"-a", "quotes": b"a'b\"c", "markup": b"[bold]a",
    "bytes that are not UTF-8": b"caf\xe9", "right to left": "אבג\u202ex".encode(), "240 letters": b"n" * 240,
    "a control character": b"a\x1b[31mb", "a percent sign": b"100%s{x}",
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_option_values(name: str, ground: Ground, tally: Tally) -> None:
    good = ground.good_commands()[name]
    cases: list[tuple[list[str], Expected]] = []
    command: Any = reduce(lambda found, word: found.commands[word], name.split(), typer.main.get_command(app))
    for parameter in [parameter for parameter in command.params if parameter.opts[0].startswith("-")]:
        option, kind = parameter.opts[0], parameter.type_descriptor.annotation
        if kind in (int, float):
            values = [value for value in ODD_NUMBERS if not (len(value) > 10 and option in AMOUNTS)]
            bad = ("many", "", "-inf", "nan")
            cases += [([*good, f"{option}={value}"], "reject" if value in bad else "either") for value in values]
        elif kind is not bool and option not in UNCHECKED:
            cases += [([*good, f"{option}={value}"], "either") for value in (*ODD_TEXTS, *ODD_NUMBERS)]
    for arguments, expected in share(cases):
        attempt(tally, name, arguments, expected)


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_words(name: str, ground: Ground, tally: Tally) -> None:
    good = ground.good_commands()[name]
    attempt(tally, "good input", good, "either" if name == "features" else "accept")
    for more in (["--nothing"], ["--jsn"], ["a", "b", "c"], ["--output"]):
        attempt(tally, "unknown option or argument", [*good, *more], "reject")
    for command in share(("", "adit", "audit\n", "-", "--", "אבג", "a" * 10_000, "../audit")):
        attempt(tally, "unknown command", [command, *good[1:]], "reject")
    no_json = name in ("features", "predict", "report", "tables", "datasets export")
    attempt(tally, "--json", [*good, "--json"], "reject" if no_json else "accept")


@pytest.mark.parametrize("name", [*COMMANDS, "train --config", "fit --prior", "bench --plugin", "datasets --root"])
def test_bad_inputs(name: str, ground: Ground, tally: Tally) -> None:
    Path("empty folder").mkdir()
    Path("empty file").touch()
    bad = ("missing.csv", "no", "empty folder", "empty file", "/dev/null", "", ".", "n" * 10_000, f"{ground.table}/x")
    command, _, option = name.partition(" --")
    for path in share(bad):
        if option:
            good = ["datasets", "check", "waterbirds"] if option == "root" else ground.good_commands()[command]
            empty_is_fine = option in ("config", "plugin") and path in ("empty file", "/dev/null")
            attempt(tally, name, [*good, f"--{option}", path], "either" if empty_is_fine else "reject")
            continue
        arguments = ground.good_commands()[name]
        inputs = {ground.table, ground.features, ground.model, ground.results, ground.pictures}
        for position, argument in enumerate(arguments):
            if argument in inputs:
                attempt(tally, name, [*arguments[:position], path, *arguments[position + 1 :]], "reject")


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in ("methods", "evaluate", "compare", *COMMANDS[-4:-1])]
)
def test_bad_outputs(name: str, ground: Ground, tally: Tally) -> None:
    arguments = ground.good_commands()[name]
    arguments += {"tables": ["-o", "{out}/t.md"], "audit": ["-o", "{out}/g.png"]}.get(name, [])
    place = arguments.index("-o") + 1
    suffix = Path(arguments[place]).suffix
    Path(f"taken{suffix}").mkdir()
    source = next((a for a in arguments if a in (ground.table, ground.features, ground.model)), ground.table)
    paths = {"the input": source, "a device": "/dev/full" if suffix else "/dev/null", "a long name": "n" * 300 + suffix}
    paths |= {"not creatable": f"/proc/x{suffix}"}
    if suffix:  # the others write folders, and create them where they are missing
        paths |= {"a folder": f"taken{suffix}", "in no folder": f"no/x{suffix}", "a suffix": "{out}/x.exe", "empty": ""}
    if name == "tables":
        del paths["the input"]  # which is a folder
    before = Path(source).read_bytes()
    unchanged: c.RanCheck = lambda _: None if Path(source).read_bytes() == before else "overwritten"  # noqa: E731
    for label, path in paths.items():
        free = name == "bench" or (label == "a suffix" and name in ("fit", "tables"))  # a dry run writes nothing
        changed = [*arguments[:place], path, *arguments[place + 1 :]]
        attempt(tally, f"{label} as output", changed, "either" if free else "reject", unchanged)


@pytest.mark.parametrize("label", ODD_NAMES)
def test_odd_file_names(label: str, ground: Ground, tally: Tally) -> None:
    stem = os.fsdecode(ODD_NAMES[label])
    table, features, run, results = f"{stem}.csv", f"{stem}.npz", f"r{stem}", f"b{stem}"
    shutil.copy(ground.table, table)
    shutil.copy(ground.features, features)
    shutil.copytree(ground.run, run)
    shutil.copytree(ground.results, results)
    expected: Expected = "either" if "UTF-8" in label else "accept"  # Arrow and safetensors need text
    out, page = f"{{out}}/{stem}", ["-o", "{out}/p.html"]
    lines = [
        ["audit", *GROUPS, "-o", f"{out}.svg", "--json", "--", table],
        ["report", *GROUPS, "-o", f"{out}.html", "--", table], ["report", *GROUPS, "--title", stem, *page, "--", table],
        ["fit", *LABELS, "-o", f"{out}.safetensors", "--json", "--", features],
        ["fit", *NUMBERS, *LABELS, "-o", f"{out}.safetensors", "--", table],
        ["train", *LABELS, *TRAINING, "-o", out, "--json", "--", features],
        ["predict", "-o", f"{out}.csv", "--", ground.model, features], ["report", *page, "--", ground.model, features],
        ["predict", "-o", f"{out}.parquet", "--", run, features], ["report", *page, "--", run, features],
        ["evaluate", "--json", "--", ground.model, features], ["report", *page, "--", results],
        ["export", "-o", f"{out}.onnx", "--json", "--", run], ["tables", "-o", f"{out}.md", "--", results],
        ["bench", "--dry-run", "-o", out, "--json", "--", features], ["figure", "hull", "-o", f"{out}.png"],
        ["datasets", "export", "penguins", "-o", f"{out}.npz"],
    ]  # fmt: skip
    for arguments in share(lines):
        attempt(tally, label, arguments, expected)
    attempt(tally, label, ["audit", *GROUPS, "--", f"no{table}"], "reject")


PLAIN = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
NARROW = {"COLUMNS": "20", "LINES": "5", "TERM": "dumb", "NO_COLOR": "1"}


@pytest.mark.parametrize("environment", [PLAIN, NARROW, {**PLAIN, **NARROW}], ids=["locale", "terminal", "both"])
def test_surroundings(environment: dict[str, str], ground: Ground, tally: Tally) -> None:
    odd = os.fsdecode(b"caf\xe9.csv")
    for path in ("signs.csv", odd):
        c.good_frame().replace({"bird": {"duck": "канарейка · 🦆", "gull": "אבג"}}).to_csv(path, index=False)
    Path("empty").mkdir()
    lines = [
        ["audit", "signs.csv", *GROUPS, "--explain"], ["audit", "signs.csv", *GROUPS, "--json"],
        ["audit", odd, "--attributes", "bird,nothing"], ["report", odd, *GROUPS, "-o", "odd.html"],
        ["evaluate", ground.model, ground.features], ["tables", ground.results], ["fit", "--nothing"],
    ]  # fmt: skip
    for arguments in share(lines):
        command = [sys.executable, "-m", "compshift", *arguments]
        ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=120, check=False)
        texts = [stream.decode("utf-8", "replace") for stream in (ran.stdout, ran.stderr)]
        c.judge(tally, arguments[0], Ran(ran.returncode, *texts, Path("empty")))
