"""Bad tables, each with every command that reads one."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hardening.commands.call import Command, Ending, Ran
from hardening.commands.ground import FEATURES, LABELS, NUMBERS, TRAINING, VALUES, Ground, good_frame

READERS = ("audit", "report", "fit", "train", "predict", "evaluate", "features")


class Table(NamedTuple):
    """A table, and what it must come to: for readers of labels, and for readers of features."""

    content: bytes
    labels: Ending
    features: Ending
    both: Ending = "refuse"  # fit and train


def table_commands(ground: Ground) -> Iterator[Command]:
    """Every bad table with every command that reads tables."""
    for name, table in {**_broken(), **_values(), **_cells()}.items():
        path = ground.folder / f"{name.replace(' ', '_')}.csv"
        path.write_bytes(table.content)
        endings = {
            "audit": table.labels,
            "report": table.labels,
            "fit": table.both,
            "train": table.both,
            "predict": table.features,
            "evaluate": "refuse" if "refuse" in (table.labels, table.features) else "either",
            "features": "refuse",  # there is no such backbone: the table is read first
        }
        for reader in READERS:
            yield Command(f"{name} in a table", list(_reader(ground, reader, path)), endings[reader])
        yield Command(f"{name} in a table, printed", ["audit", str(path), "--attributes", "bird,place"], table.labels)


def _reader(ground: Ground, reader: str, path: Path) -> Iterator[str]:
    """The arguments with which a command reads a table."""
    groups = ["--attributes", "bird,place"]
    training = [*TRAINING, "--shares", "0.5,0.2,0.3"]
    yield from {
        "audit": ["audit", str(path), *groups, "--json", "--explain"],
        "report": ["report", str(path), *groups, "-o", "{out}/page.html"],
        "fit": ["fit", str(path), *NUMBERS, *LABELS, "-o", "{out}/model.safetensors", "--json"],
        "train": ["train", str(path), *NUMBERS, *LABELS, *training, "-o", "{out}/run", "--json"],
        "predict": ["predict", ground.table_model, str(path), "-o", "{out}/p.csv", "--groups", "--explain"],
        "evaluate": ["evaluate", ground.table_model, str(path), "--json"],
        "features": ["features", str(path), "--text", "note", *LABELS, "--backbone", "none/such", "-o", "{out}/f"],
    }[reader]


def _csv(**columns: Any) -> bytes:
    """The good table with other columns; None leaves one out."""
    frame = good_frame().assign(**{name: value for name, value in columns.items() if value is not None})
    text = frame.drop(columns=[name for name, value in columns.items() if value is None]).to_csv(index=False)
    return bytes(text.encode("utf-8", "surrogatepass"))


def _broken() -> dict[str, Table]:
    """Files that are no whole table."""
    good = _csv()
    head, *rows = good.splitlines(keepends=True)
    twice = head.replace(b"note", b"bird") + b"".join(rows)
    return {
        "good": Table(good, "answer", "answer", "answer"),
        "nothing": Table(b"", "refuse", "refuse"),
        "one newline": Table(b"\n", "refuse", "refuse"),
        "header only": Table(head, "refuse", "refuse"),
        "header without newline": Table(head.strip(), "refuse", "refuse"),
        "one row": Table(head + rows[0], "answer", "answer"),
        "a column name twice": Table(twice, "refuse", "either"),
        "a feature name twice": Table(head.replace(b"note", b"x0") + b"".join(rows), "answer", "refuse"),
        "rows of several lengths": Table(good + b"duck,sea\n", "refuse", "refuse"),
        "an open quote": Table(good + b'"duck,sea', "refuse", "refuse"),
        "zero bytes": Table(b"\0" * 100, "refuse", "refuse"),
        "zero bytes within": Table(good.replace(b"duck", b"du\0ck"), "either", "either", "either"),
        "random bytes": Table(np.random.default_rng(0).bytes(2000), "refuse", "refuse"),
        "Latin-1": Table(good.replace(b"duck", b"d\xfcck"), "refuse", "either"),
        "UTF-16": Table(good.decode().encode("utf-16"), "refuse", "refuse"),
        "byte order mark": Table(b"\xef\xbb\xbf" + good, "answer", "answer", "answer"),
        "Windows line ends": Table(good.replace(b"\n", b"\r\n"), "answer", "answer", "answer"),
        "semicolons": Table(good.replace(b",", b";"), "refuse", "refuse"),
        "a missing column": Table(_csv(bird=None), "refuse", "either"),
        "a missing feature": Table(_csv(x1=None), "answer", "refuse"),
        "blank lines": Table(good.replace(b"\n", b"\n\n"), "either", "either", "either"),
    }


def _values() -> dict[str, Table]:
    """Attribute values that are hard to tell apart, to print or to count."""
    n = len(good_frame())
    turn = np.arange(n)

    def two(first: str, second: str) -> Table:
        return Table(_csv(bird=np.where(turn % 2, first, second)), "answer", "answer", "answer")

    return {
        "one class": Table(_csv(bird="duck"), "answer", "answer"),
        "one group": Table(_csv(bird="duck", place="sea"), "answer", "answer"),
        "missing values": Table(_csv(bird=""), "refuse", "answer"),
        "some missing values": Table(_csv(bird=np.where(turn % 5, "duck", "")), "answer", "answer", "either"),
        "the word nan": Table(_csv(bird=np.where(turn % 5, "duck", "nan")), "answer", "answer", "either"),
        "labels with commas": two("a, b", "a"),
        "labels with quotes": two('a"b', "a'b"),
        "labels with newlines": two("a\nb", "a b"),
        "labels with tabs": two("a\tb", "a b"),
        "labels that end in blanks": two("a ", "a"),
        "labels with control characters": two("a\x1b[31mred\x07", "a\x08b"),
        "labels from right to left": two("אבג", "\u202eabc\u202c"),
        "labels with combining signs": two("e\u0301", "é"),
        "labels of emoji": two("👩‍👩‍👧‍👦", "🦆"),
        "labels of markup": two("[bold]a[/bold]", "<script>alert(1)</script>"),
        "labels of LaTeX": two("a_b$", "\\input{x}%"),
        "labels like formulas": two("=1+1", "@SUM(A1)"),
        "very long labels": two("a" * 10_000, "a" * 9_999 + "b"),
        "numbers and text": Table(_csv(bird=np.where(turn % 2, "1", "duck")), "answer", "answer", "answer"),
        "01 and 1": two("01", "1"),
        "1.0 and 1": two("1.0", "1"),
        "true and false": two("true", "False"),
        "huge whole numbers": two("9" * 30, "1"),
        "every row its own value": Table(_csv(bird=[f"b{i}" for i in range(n)]), "answer", "answer", "either"),
        "very long column name": Table(_csv(**{"y" * 10_000: 1}), "answer", "answer", "answer"),
        "odd column names": Table(_csv(**{"": 1, "אב": 2, "a\nb": 3, "[red]": 4}), "answer", "answer", "answer"),
    }


def _cells() -> dict[str, Table]:
    """Numbers that are none, or hardly any."""
    x = good_frame()["x0"].to_numpy()
    n = len(x)
    turn = np.arange(n)

    def cell(value: object) -> Any:
        return [value if row == 5 else number for row, number in enumerate(x)]

    bad = {"NaN": "nan", "inf": "inf", "-inf": "-inf", "empty": "", "text": "many", "1e400": "1e400", "hex": "0x10"}
    good = {"huge": 1e300, "largest": 1.7e308, "denormal": 5e-324, "small": 1e-300}
    return {
        **{f"{name} in a feature": Table(_csv(x0=cell(value)), "answer", "refuse") for name, value in bad.items()},
        **{
            f"{name} cell in a feature": Table(_csv(x0=cell(value)), "answer", "either", "either")
            for name, value in good.items()
        },
        "a constant feature": Table(_csv(x0=1.5), "answer", "answer", "answer"),
        "all features constant": Table(_csv(x0=1, x1=1, x2=1), "answer", "answer", "either"),
        "text features": Table(_csv(x0="a", x1="b"), "answer", "refuse"),
        "boolean features": Table(_csv(x0=np.where(turn % 2, "true", "false")), "answer", "answer", "answer"),
        "dates as features": Table(_csv(x0="2024-01-01"), "answer", "refuse"),
        "decimal commas": Table(_csv(x0='"1,5"'), "answer", "refuse"),
        "features at 1e-150": Table(_csv(x0=x * 1e-150), "answer", "answer", "answer"),
        "features at 1e150": Table(_csv(x0=x * 1e150), "answer", "answer", "either"),
        "denormal features": Table(_csv(x0=turn * 5e-324), "answer", "answer", "either"),
    }


def count_commands(ground: Ground) -> Iterator[Command]:
    """``--count`` with counts of every kind, for the two commands that have it."""
    n = len(good_frame())
    turn = np.arange(n)
    seen = _seen_groups
    counts: dict[str, tuple[Any, Ending, Callable[[Ran], str | None] | None]] = {
        "zeros for a group": (np.where(turn % 3, 2, 0), "answer", seen(2)),
        "nothing but zeros": (0, "refuse", None),
        "negative counts": (np.where(turn == 3, -4, 1), "refuse", None),
        "negative counts that even out": (np.where(turn == 3, -1, 1), "refuse", None),
        "fractions": (0.5, "answer", seen(3)),
        "NaN": (np.where(turn == 3, "nan", "1"), "refuse", None),
        "inf": (np.where(turn == 3, "inf", "1"), "refuse", None),
        "missing": (np.where(turn == 3, "", "1"), "refuse", None),
        "text": ("many", "refuse", None),
        "booleans": ("true", "refuse", None),
        "dates": ("2024-01-01", "refuse", None),
        "huge": (10**18, "either", None),
        "overflowing": (1.7e308, "refuse", None),
        "denormal": (5e-324, "either", None),
    }
    for name, (values, ending, check) in counts.items():
        path = ground.folder / f"count_{name.replace(' ', '_')}.csv"
        path.write_bytes(_csv(rows=values))
        options = [str(path), "--attributes", "bird,place", "--count", "rows"]
        yield Command(f"--count with {name}", ["audit", *options, "--json"], ending, check)
        yield Command(f"--count with {name}", ["audit", *options], ending)
        yield Command(f"--count with {name}", ["report", *options, "-o", "{out}/page.html"], ending)
    for column in ("bird", "x0", "nothing", "", "rows "):
        options = [ground.table, "--attributes", "bird,place", "--count", column, "--json"]
        yield Command(f"--count {column!r}", ["audit", *options], "refuse")


def _seen_groups(expected: int) -> Callable[[Ran], str | None]:
    """Whether a table has so many groups with rows."""

    def check(ran: Ran) -> str | None:
        found = len(json.loads(ran.out)["seen"])
        return None if found == expected else f"{found} groups seen, not {expected}"

    return check


def large_commands(ground: Ground) -> Iterator[Command]:
    """Tables of 100 000 groups and of 10 000 columns."""
    rng = np.random.default_rng(0)
    many = ground.folder / "many_groups.csv"
    pd.DataFrame({"bird": np.arange(100_000) % 400, "place": rng.integers(0, 400, size=100_000)}).to_csv(
        many, index=False
    )
    names = ground.folder / "identifiers.csv"
    pd.DataFrame({"bird": np.arange(100_000), "place": 0}).to_csv(names, index=False)
    wide = ground.folder / "wide.csv"
    columns = {f"f{number}": np.zeros(6, dtype=int) for number in range(10_000)}
    pd.DataFrame({**good_frame(6)[[*VALUES, *FEATURES]].to_dict("list"), **columns}).to_csv(wide, index=False)
    groups = ["--attributes", "bird,place"]
    for path, label, ending in (
        (many, "100 000 groups", "answer"),
        (names, "identifiers", "refuse"),
        (wide, "10 000 columns", "answer"),
    ):
        yield Command(label, ["audit", str(path), *groups, "--json"], ending)  # type: ignore[arg-type]
        yield Command(label, ["audit", str(path), *groups], ending)  # type: ignore[arg-type]
        yield Command(label, ["report", str(path), *groups, "-o", "{out}/p.html"], ending)  # type: ignore[arg-type]
    yield Command("10 000 columns", ["fit", str(wide), *NUMBERS, *LABELS, "-o", "{out}/m.safetensors"], "answer")
    every = ",".join(columns)
    yield Command("10 000 features", ["fit", str(wide), "--features", every, *LABELS, "-o", "{out}/m"], "either")
    yield Command("10 000 attributes", ["audit", str(wide), "--attributes", every, "--json"], "either")
    yield Command("10 000 attributes", ["report", str(wide), "--attributes", every, "-o", "{out}/p.html"], "either")
    yield Command("a misspelt column of 10 000", ["audit", str(wide), "--attributes", "brid,place"], "refuse")
    raised = ["--max-values", "1000000"]
    yield Command("100 000 values", ["audit", str(names), *groups, *raised, "--json"], "either")
    yield Command("100 000 values", ["audit", str(names), *groups, *raised], "either")
