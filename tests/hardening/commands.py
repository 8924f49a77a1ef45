"""Command lines run in this process, verdicts on how they end, and good input files to spoil."""

import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from compshift.bench import sources
from compshift.cli.main import main
from tests.data import trees
from tests.hardening.verdicts import Tally, TimeoutReached, time_limit, unclear

Expected = Literal["accept", "reject", "either"]
SIGNS: dict[str, Expected] = {"+": "accept", "-": "reject", "?": "either"}
TIMEOUT = 60  # seconds that a command on small input may take

VALUES = {"bird": ["duck", "gull"], "place": ["lake", "sea"]}
CODES = np.array([[0, 0], [0, 1], [1, 1]])[np.arange(60) % 3]  # three of the four groups, in turn
FEATURES = ["x0", "x1", "x2"]
LABELS = ["--target", "bird", "--attributes", "place"]
GROUPS = ["--attributes", "bird,place"]
NUMBERS = ["--columns", ",".join(FEATURES)]
BENCH = ["bench", *["--drop=none", "--drop=duck,sea", "--methods=erm,crm", "--draws=1", "--seeds=1", "--jobs=1"]]
TRAINING = ["--steps", "1", "--eval-every", "1", "--batch-size", "4", "--backbone", "linear", "--device", "cpu"]

MONITOR_CODES = (3, 4)
"""Exit codes of ``compshift monitor`` for something new, and for groups that were not tested."""


class Ran(NamedTuple):
    """Exit code and output of a command, and the folder that it could write to."""

    code: Any
    out: str
    err: str
    folder: Path


RanCheck = Callable[[Ran], str | None]


class Ground:
    """Good files, written by the commands themselves."""

    def __init__(self, folder: Path) -> None:
        from PIL import Image

        names = ("birds.csv", "birds.npz", "m.safetensors", "t.safetensors", "pictures.csv", "shards", "run", "results")
        self.table, self.features, self.model, self.table_model, self.pictures, self.shards, self.run, self.results = (
            str(folder / name) for name in names
        )
        self.published = str(folder / "published")
        trees.civilcomments(Path(self.published), "authors")
        good_frame().to_csv(self.table, index=False)
        arrays = good_arrays()
        np.savez(self.features, **arrays)
        os.mkdir(self.shards)
        frame = good_frame()[list(VALUES)].assign(features=list(arrays["X"]), split=arrays["split"])
        frame.to_parquet(f"{self.shards}/part-0.parquet")
        for number in range(12):
            Image.new("RGB", (12, 12), (20 * number, 99, 7)).save(folder / f"{number}.png")
        frame = good_frame(12)[list(VALUES)].assign(file=[f"{n}.png" for n in range(12)], words="one two")
        frame.to_csv(self.pictures, index=False)
        for arguments in (
            ["fit", self.features, *LABELS, "-o", self.model],
            ["fit", self.table, *NUMBERS, *LABELS, "-o", self.table_model],
            ["train", self.features, *LABELS, *TRAINING, "-o", self.run],
            [*BENCH, self.features, "-o", self.results],
        ):
            ran = run_command(arguments, folder, 300)
            assert not ran.code, f"good input was rejected: {arguments}: {ran.err}"

    def good_commands(self) -> dict[str, list[str]]:
        """Each command on good input, cheap; ``{out}`` is an empty folder."""
        text = ["--text", "words", *LABELS, "--backbone", "none/such"]
        return {
            "audit": ["audit", self.table, *GROUPS],
            "features": ["features", self.pictures, *text, "-o", "{out}/f"],  # there is no such backbone
            "fit": ["fit", self.features, *LABELS, "-o", "{out}/m.safetensors"],
            "train": ["train", self.features, *LABELS, *TRAINING, "-o", "{out}/run"],
            "methods": ["methods"],
            "predict": ["predict", self.model, self.features, "-o", "{out}/p.csv"],
            "compare": ["compare", self.features, *LABELS, "--methods", "logistic"],
            "evaluate": ["evaluate", self.model, self.features],
            "monitor": ["monitor", self.model, self.features, "-o", "{out}/m.json"],
            "export": ["export", self.model, "-o", "{out}/m.onnx"],
            "bench": ["bench", self.features, "--dry-run", "-o", "{out}/b"],
            "tables": ["tables", self.results],
            "report": ["report", self.table, *GROUPS, "-o", "{out}/p.html"],
            "figure": ["figure", "hull", "-o", "{out}/f.png"],
            "datasets get": ["datasets", "get", "civilcomments", "--root", self.published],  # it is there already
            "datasets list": ["datasets", "list"],
            "datasets check": ["datasets", "check", "penguins"],
            "datasets export": ["datasets", "export", "penguins", "-o", "{out}/p.npz"],
        }


def good_frame(n_rows: int = 60) -> pd.DataFrame:
    """A table of labels, features, counts and texts."""
    codes = CODES[:n_rows]
    columns = {name: np.array(VALUES[name])[codes[:, column]] for column, name in enumerate(VALUES)}
    X = np.random.default_rng(0).normal(size=(n_rows, 3)) + codes[:, :1] * [1, 2, 0] + codes[:, 1:2] * [0, 1, 2]
    numbers = dict(zip(FEATURES, X.T, strict=True))
    return pd.DataFrame({**columns, **numbers, "rows": np.arange(n_rows) % 7 + 1, "note": codes[:, 0]})


def good_arrays() -> dict[str, Any]:
    """The arrays of a feature file."""
    names, values = np.array(list(VALUES)), np.array(json.dumps(VALUES))
    split = np.arange(60) // 3 % 3
    X = good_frame()[FEATURES].to_numpy()
    return {"X": X, "Z": CODES, "split": split, "attribute_names": names, "value_names": values}


def attempt(
    tally: Tally, label: str, arguments: Sequence[str], expected: Expected = "either", check: RanCheck = lambda _: None
) -> None:
    """Run a command and count how it ended; ``{out}`` in an argument is a new folder, all that it may write to."""
    out = Path("out").resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    arguments = [argument.replace("{out}", str(out)) for argument in arguments]
    label = f"{label}: compshift {' '.join(f'{os.path.basename(argument)[:40]!r}' for argument in arguments)}"
    try:
        ran = run_command(arguments, out)
    except TimeoutReached:
        tally.fail("internal error", f"{label}: no end after {TIMEOUT} s")
    except BaseException as error:
        tally.fail("internal error", f"{label}: {type(error).__name__} left main: {str(error)[:200]}")
    else:
        judge(tally, label, ran, expected, "--json" in arguments, check)


def judge(
    tally: Tally, label: str, ran: Ran, expected: Expected = "either", as_json: bool = False,
    check: RanCheck = lambda _: None,
) -> None:  # fmt: skip
    """Count a right result, one clear sentence with exit code 2, or a failure."""
    left = sorted(str(path.relative_to(ran.folder)) for path in ran.folder.rglob("*") if path.is_file())
    if "Traceback (most recent call last)" in ran.out + ran.err:
        tally.fail("internal error", f"{label}: traceback: {ran.err.strip().splitlines()[-1][:200]}")
    elif ran.code == 2:
        lines = [line for line in ran.err.splitlines() if not line.startswith("warning: ")]
        problem = unclear(lines[-1].removeprefix("error: ")) if lines else "empty message"
        if problem or len(lines) > 1 or not lines[0].startswith("error: "):
            tally.fail("unclear sentence", f"{label}: {problem or 'not one line'}: {ran.err[:300]!r}")
        elif ran.out or left:
            tally.fail("wrong result", f"{label}: rejected, but wrote {ran.out[:100]!r}, {left[:3]}")
        elif expected == "accept":
            tally.fail("wrong result", f"{label}: good input was rejected: {lines[0][:300]}")
        else:
            tally.rejected += 1
    elif ran.code not in (0, None, *MONITOR_CODES):
        tally.fail("internal error", f"{label}: exit code {ran.code}: {ran.err.strip()[-300:]}")
    else:
        problem = _problem(ran, left, expected, as_json) or check(ran)
        if problem:
            tally.fail("wrong result", f"{label}: {problem}")
        else:
            tally.accepted += 1


def _problem(ran: Ran, left: Sequence[str], expected: Expected, as_json: bool) -> str | None:
    """Complain about the result of a command that ended with exit code 0."""
    if expected == "reject":
        return f"bad input was accepted: {ran.out[-200:]!r}"
    if any(".tmp" in name for name in left):
        return f"temporary files are left: {left}"
    if "error: " in ran.err:
        return f"an error is printed, but the exit code is 0: {ran.err[-200:]!r}"
    if as_json:
        try:
            json.loads(ran.out, parse_constant=lambda name: json.loads("no JSON: " + name))
        except ValueError as error:
            return f"standard output is not JSON ({error}): {ran.out[:100]!r}"
    return None


def run_command(arguments: Sequence[str], folder: Path, timeout: int = TIMEOUT) -> Ran:
    """Run the command line in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before = sys.argv, sys.stdout, sys.stderr, warnings.showwarning
    sys.argv, sys.stdout, sys.stderr = ["compshift", *arguments], out, err
    code: Any = None
    sources._load_once.cache_clear()  # a command starts without the data of earlier ones
    sources._digest_once.cache_clear()
    try:
        with warnings.catch_warnings(action="default"), time_limit(timeout):
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv, sys.stdout, sys.stderr, warnings.showwarning = before
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    return Ran(code, *texts, folder)
