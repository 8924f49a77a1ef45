"""Commands in processes of their own: closed pipes, poor terminals, other languages, and interruptions."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hardening.commands.call import Command, Ran, judge
from hardening.commands.ground import Ground, good_frame
from hardening.tally import Tally

PLAIN = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
NARROW = {"COLUMNS": "20", "LINES": "5", "TERM": "dumb", "NO_COLOR": "1"}


class Surroundings(NamedTuple):
    """A command and where it runs."""

    label: str
    arguments: list[str]
    environment: dict[str, str]


def try_surroundings(tally: Tally, ground: Ground) -> None:
    """Run the commands, and count how they ended."""
    (ground.folder / "out").mkdir(exist_ok=True)
    for case in _cases(ground):
        ran = subprocess.run(
            [sys.executable, "-m", "compshift", *case.arguments],
            env={**os.environ, **case.environment},
            cwd=ground.folder,
            capture_output=True,
            timeout=120,
            check=False,
        )
        texts = [stream.decode("utf-8", "replace") for stream in (ran.stdout, ran.stderr)]
        command = Command(case.label, case.arguments)
        empty = ground.folder / "empty"
        empty.mkdir(exist_ok=True)
        words = " ".join(Path(os.fsencode(word).decode("ascii", "replace")).name for word in case.arguments)
        judge(tally, f"{case.label}: {words}", command, Ran(ran.returncode, *texts, empty))
    for arguments in (["audit", ground.table, "--attributes", "bird,place"], ["datasets", "list"], ["--help"]):
        _closed(tally, ground.folder, arguments)


def _cases(ground: Ground) -> Iterator[Surroundings]:
    """Commands that print most, in every surroundings."""
    wide = ground.folder / "signs.csv"
    good_frame().replace({"bird": {"duck": "канарейка · 🦆", "gull": "אבג"}}).to_csv(wide, index=False)
    odd = os.fsdecode(b"caf\xe9.csv")
    (ground.folder / odd).write_bytes(wide.read_bytes())
    for name, environment in {"a plain locale": PLAIN, "20 columns": NARROW, "both": {**PLAIN, **NARROW}}.items():
        for arguments in (
            ["audit", str(wide), "--attributes", "bird,place", "--explain"],
            ["audit", str(wide), "--attributes", "bird,place", "--json"],
            ["audit", odd, "--attributes", "bird,nothing"],
            ["report", odd, "--attributes", "bird,place", "-o", "odd.html"],
            ["evaluate", ground.model, ground.features],
            ["tables", ground.results],
            ["fit", "--nothing"],
        ):
            yield Surroundings(name, arguments, environment)


def _closed(tally: Tally, folder: Path, arguments: list[str]) -> None:
    """A command whose output nobody reads ends without a word about it."""
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-m", "compshift", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=folder,
        timeout=120,
        check=False,
    )
    os.close(writer)
    said = ran.stderr.decode("utf-8", "replace")
    if said or ran.returncode:
        tally.fail("internal error", f"closed output, {arguments[0]}: {ran.returncode}, {said[-200:]!r}")
    else:
        tally.answered += 1
