"""Bad tables and feature files, each with every command that reads one."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.hardening.commands import (
    FEATURES,
    GROUPS,
    LABELS,
    NUMBERS,
    SIGNS,
    TRAINING,
    VALUES,
    Expected,
    Ground,
    Ran,
    attempt,
    good_arrays,
    good_frame,
)
from tests.hardening.verdicts import Tally, share

Spoilt = tuple[bytes, str]
"""Content of a file, and a sign each for commands that read labels, features and both: + accept, - reject, ? either."""

TURN = np.arange(60)
LONG_VALUES = json.dumps({"bird": ["a" * 10_000, "b" * 10_000], "place": ["x, y", "x"]})


def csv(**columns: Any) -> bytes:
    """The good table with other columns; None removes one."""
    frame = good_frame().assign(**{name: value for name, value in columns.items() if value is not None})
    text = frame.drop(columns=[name for name, value in columns.items() if value is None]).to_csv(index=False)
    return bytes(text.encode("utf-8", "surrogatepass"))


def two(first: str, second: str) -> Spoilt:
    """A table of birds with two values in turn."""
    return csv(bird=np.where(TURN % 2, first, second)), "+++"


def cell(value: object) -> bytes:
    """A table with one other cell in x0."""
    return csv(x0=[value if row == 5 else number for row, number in enumerate(good_frame()["x0"])])


def tables() -> dict[str, Spoilt]:
    """Damaged tables, labels that are hard to tell apart or print, and numbers that are none."""
    good, x = csv(), good_frame()["x0"].to_numpy()
    head, *rows = good.splitlines(keepends=True)
    return {
        "good": (good, "+++"),
        "nothing": (b"", "---"),
        "one newline": (b"\n", "---"),
        "header only": (head, "---"),
        "header without newline": (head.strip(), "---"),
        "one row": (head + rows[0], "++-"),
        "a column name twice": (head.replace(b"note", b"bird") + b"".join(rows), "-?-"),
        "a feature name twice": (head.replace(b"note", b"x0") + b"".join(rows), "+--"),
        "rows of several lengths": (good + b"duck,sea\n", "---"),
        "an open quote": (good + b'"duck,sea', "---"),
        "zero bytes": (b"\0" * 100, "---"),
        "zero bytes within": (good.replace(b"duck", b"du\0ck"), "???"),
        "random bytes": (np.random.default_rng(0).bytes(2000), "---"),
        "Latin-1": (good.replace(b"duck", b"d\xfcck"), "-?-"),
        "UTF-16": (good.decode().encode("utf-16"), "---"),
        "byte order mark": (b"\xef\xbb\xbf" + good, "+++"),
        "Windows line ends": (good.replace(b"\n", b"\r\n"), "+++"),
        "semicolons": (good.replace(b",", b";"), "---"),
        "a missing column": (csv(bird=None), "-?-"),
        "a missing feature": (csv(x1=None), "+--"),
        "blank lines": (good.replace(b"\n", b"\n\n"), "???"),
        "one class": (csv(bird="duck"), "++-"),
        "one group": (csv(bird="duck", place="sea"), "++-"),
        "missing values": (csv(bird=""), "-+-"),
        "some missing values": (csv(bird=np.where(TURN % 5, "duck", "")), "++?"),
        "the word nan": (csv(bird=np.where(TURN % 5, "duck", "nan")), "++?"),
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
        "numbers and text": two("1", "duck"),
        "01 and 1": two("01", "1"),
        "1.0 and 1": two("1.0", "1"),
        "true and false": two("true", "False"),
        "huge whole numbers": two("9" * 30, "1"),
        "every row its own value": (csv(bird=TURN.astype(str)), "++?"),
        "very long column name": (csv(**{"y" * 10_000: 1}), "+++"),
        "odd column names": (csv(**{"": 1, "אב": 2, "a\nb": 3, "[red]": 4}), "+++"),
        **{f"cell {value!r}": (cell(value), "+--") for value in ("nan", "inf", "-inf", "", "many", "1e400", "0x10")},
        **{f"cell {value!r}": (cell(value), "+??") for value in (1e300, 1.7e308, 5e-324, 1e-300)},
        "a constant feature": (csv(x0=1.5), "+++"),
        "all features constant": (csv(x0=1, x1=1, x2=1), "++?"),
        "text features": (csv(x0="a", x1="b"), "+--"),
        "boolean features": (csv(x0=np.where(TURN % 2, "true", "false")), "+++"),
        "dates as features": (csv(x0="2024-01-01"), "+--"),
        "decimal commas": (csv(x0='"1,5"'), "+--"),
        "features at 1e-150": (csv(x0=x * 1e-150), "+++"),
        "features at 1e150": (csv(x0=x * 1e150), "++?"),
        "denormal features": (csv(x0=TURN * 5e-324), "++?"),
    }


def npz(**changed: Any) -> bytes:
    """The good feature file with other arrays; None removes one."""
    arrays = {name: value for name, value in {**good_arrays(), **changed}.items() if value is not None}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def replaced(array: Any, value: Any) -> Any:
    """The array with one entry replaced."""
    changed = array.copy()
    changed[4, 0] = value
    return changed


def archives() -> dict[str, Spoilt]:
    """Feature files whose arrays do not fit together, or hold no numbers."""
    good = good_arrays()
    X, Z = good["X"], good["Z"]
    dates = np.arange(180).reshape(60, 3).astype("datetime64[D]")
    bad_X: dict[str, Any] = {
        "NaN": replaced(X, np.nan), "inf": replaced(X, -np.inf), "one dimension": X[:, 0], "dates": dates,
        "three dimensions": X[:, :, None], "no dimension": np.float64(1), "no columns": X[:, :0], "no rows": X[:0],
        "text": X.astype(str), "complex": X.astype(complex), "objects": np.array([{}] * 60, dtype=object),
    }  # fmt: skip
    bad_Z: dict[str, Any] = {
        "out of range": replaced(Z, 9), "negative": replaced(Z, -1), "2**63": Z.astype("u8") + np.uint64(2**63),
        "fractions": Z + 0.5, "one dimension": Z[:, 0], "too few columns": Z[:, :1], "too many columns": np.c_[Z, Z],
        "text": Z.astype(str),
    }  # fmt: skip
    bad_names = (
        '{bird', "[1, 2]", '{"fish": ["a"]}', '{"bird": ["a", "a"], "place": ["b", "c"]}', '{"bird": [], "place": []}',
        '{"bird": ["a", 1], "place": ["b", "c"]}', '{"bird": [["a"], ["b"]], "place": ["b", "c"]}',
        '{"bird": [null, "b"], "place": ["b", "c"]}', '{"bird":' + "[" * 5000 + "]" * 5000 + "}",
        '{"bird": [NaN, 1], "place": ["b", "c"]}',
    )  # fmt: skip
    return {
        "good": (npz(), "+++"),
        "nothing": (b"", "---"),
        "a CSV file": (b"a,b\n1,2\n", "---"),
        "half an archive": (npz()[:900], "---"),
        "no arrays": (npz(**dict.fromkeys(good)), "---"),
        **{f"X with {name}": (npz(X=value), "?--") for name, value in bad_X.items()},
        **{f"codes with {name}": (npz(Z=value), "-+-") for name, value in bad_Z.items()},
        **{f"value names {text:.40}": (npz(value_names=np.array(text)), "-+-") for text in bad_names},
        "more codes than rows": (npz(Z=np.r_[Z, Z]), "?+-"),
        "no codes": (npz(Z=None), "-+-"),
        "no X": (npz(X=None), "+--"),
        "one class": (npz(Z=Z * [0, 1]), "++-"),
        "one row": (npz(X=X[:1], Z=Z[:1], split=None), "++-"),
        "whole numbers": (npz(X=(X * 10).astype(np.int8)), "+++"),
        "booleans": (npz(X=X > 0), "+++"),
        "half precision": (npz(X=X.astype(np.float16)), "+++"),
        "long double": (npz(X=X.astype(np.longdouble)), "+++"),
        "big endian": (npz(X=X.astype(">f8"), Z=Z.astype(">i4")), "+++"),
        "Fortran order": (npz(X=np.asfortranarray(X)), "+++"),
        "features at 1e300": (npz(X=X * 1e300), "++?"),
        "features at 1e-300": (npz(X=X * 1e-300), "++?"),
        "too many features": (npz(X=np.c_[X, X]), "+-+"),
        "a split out of range": (npz(split=np.full(60, 7)), "+--"),
        "a split too short": (npz(split=np.zeros(3, dtype=int)), "+--"),
        "a split of text": (npz(split=np.array(["a"] * 60)), "+--"),
        "a split of NaN": (npz(split=np.full(60, np.nan)), "+--"),
        "a split without train": (npz(split=np.full(60, 2)), "++?"),
        "very long values": (npz(value_names=np.array(LONG_VALUES)), "+++"),
        "no value names": (npz(value_names=None), "+++"),
        "attribute names twice": (npz(attribute_names=np.array(["bird", "bird"])), "-+-"),
        "attribute names of numbers": (npz(attribute_names=np.array([1, 2])), "-+-"),
    }


def parquet(**changed: Any) -> bytes:
    """The good features as Parquet with other columns; None removes one."""
    frame = good_frame()[["bird", "place"]].assign(features=list(good_arrays()["X"]))
    frame = frame.assign(**{name: value for name, value in changed.items() if value is not None})
    stream = io.BytesIO()
    frame.drop(columns=[name for name in frame if name in changed and changed[name] is None]).to_parquet(stream)
    return stream.getvalue()


def parquets() -> dict[str, Spoilt]:
    """Parquet files whose features or labels have other types."""
    X = good_arrays()["X"]
    f = {f"f{column}": X[:, column] for column in range(3)}
    spoilt: dict[str, Any] = {
        "lists of several lengths": [list(row[: 1 + position % 3]) for position, row in enumerate(X)],
        "missing lists": [None if position == 3 else list(row) for position, row in enumerate(X)],
        "lists with gaps": [[None, 1.0, 2.0]] * 60, "lists of text": [["a", "b", "c"]] * 60, "empty lists": [[]] * 60,
        "lists of lists": [[[1.0], [2.0], [3.0]]] * 60, "text": "many", "numbers": 1.5, "NaN": [[np.nan, 1, 2]] * 60,
    }  # fmt: skip
    return {
        "good": (parquet(), "+++"),
        "nothing": (b"", "---"),
        "half a file": (parquet()[:700], "---"),
        **{f"features of {name}": (parquet(features=value), "+--") for name, value in spoilt.items()},
        "no features": (parquet(features=None), "+--"),
        "numbered columns": (parquet(features=None, **f), "+++"),
        "numbered columns with a gap": (parquet(features=None, f0=X[:, 0], f2=X[:, 2], f3=X[:, 1]), "+--"),
        "text in numbered columns": (parquet(features=None, **{**f, "f1": "a"}), "+--"),
        "missing numbers": (parquet(features=None, **{**f, "f1": None, "f01": 1.0}), "+--"),
        "missing labels": (parquet(bird=np.where(TURN % 4, "duck", None)), "++?"),
        "labels of lists": (parquet(bird=[["a"]] * 60), "-+-"),
        "labels of dates": (parquet(bird=pd.Timestamp("2024-01-01")), "?+?"),
        "labels of bytes": (parquet(bird=[b"\xff\xfe"] * 60), "?+?"),
        "labels of fractions": (parquet(bird=TURN % 2 + 0.5), "++?"),
        "labels NaN": (parquet(bird=np.nan), "-+-"),
        "split of fractions": (parquet(split=0.5), "+--"),
    }


@pytest.mark.parametrize("name", share(tables()))
def test_tables(name: str, ground: Ground, tally: Tally) -> None:
    content, signs = tables()[name]
    path = "spoilt table.csv"
    Path(path).write_bytes(content)
    labels, features, both = (SIGNS[sign] for sign in signs)
    scored: Expected = "reject" if "-" in signs[:2] else "either"
    training = [*NUMBERS, *LABELS, *TRAINING, "--shares", "0.5,0.2,0.3"]
    text = ["--text", "note", *LABELS, "--backbone", "none/such"]
    attempt(tally, name, ["audit", path, *GROUPS, "--json", "--explain"], labels)
    attempt(tally, name, ["audit", path, *GROUPS], labels)
    attempt(tally, name, ["report", path, *GROUPS, "-o", "{out}/page.html"], labels)
    attempt(tally, name, ["fit", path, *NUMBERS, *LABELS, "-o", "{out}/m.safetensors", "--json"], both)
    attempt(tally, name, ["train", path, *training, "-o", "{out}/run", "--json"], both)
    attempt(tally, name, ["predict", ground.table_model, path, "-o", "{out}/p.csv", "--groups", "--explain"], features)
    attempt(tally, name, ["evaluate", ground.table_model, path, "--json"], scored)
    attempt(tally, name, ["features", path, *text, "-o", "{out}/f"], "reject")


KINDS = {".npz": archives, ".parquet": parquets}


@pytest.mark.parametrize(("kind", "name"), share([(kind, name) for kind in KINDS for name in KINDS[kind]()]))
def test_feature_files(kind: str, name: str, ground: Ground, tally: Tally) -> None:
    content, signs = KINDS[kind]()[name]
    path = f"spoilt features{kind}"
    Path(path).write_bytes(content)
    labels, features, both = (SIGNS[sign] for sign in signs)
    scored: Expected = both if name in ("good", "half precision") else "either"
    attempt(tally, name, ["audit", path, *GROUPS, "--json"], labels)
    attempt(tally, name, ["fit", path, *LABELS, "-o", "{out}/m.safetensors", "--json"], both)
    attempt(tally, name, ["train", path, *LABELS, *TRAINING, "-o", "{out}/run", "--json"], both)
    attempt(tally, name, ["predict", ground.model, path, "-o", "{out}/p.parquet", "--groups"], features)
    attempt(tally, name, ["evaluate", ground.model, path, "--json"], scored)
    attempt(tally, name, ["report", ground.model, path, "-o", "{out}/p.html"])
    attempt(tally, name, ["bench", path, "--dry-run", "--json", "-o", "{out}/b"])
    if kind == ".parquet":
        options = ["--memory", "10M", "-o", "{out}/m.safetensors", "--json"]
        attempt(tally, name, ["fit", path, *LABELS, *options], "reject" if both == "reject" else "either")


def seen_groups(expected: int) -> Callable[[Ran], str | None]:
    """Return a check that an audit counts this many groups with samples."""

    def check(ran: Ran) -> str | None:
        found = len(json.loads(ran.out)["seen"])
        return None if found == expected else f"{found} groups seen, not {expected}"

    return check


def test_counts(ground: Ground, tally: Tally) -> None:
    values: dict[str, tuple[Any, str, int | None]] = {
        "zeros for a group": (np.where(TURN % 3, 2, 0), "+", 2),
        "fractions": (0.5, "+", 3),
        **{f"one {value}": (np.where(TURN == 3, value, "1"), "-", None) for value in ("-4", "-1", "nan", "inf", "")},
        **{f"all {value}": (value, "-", None) for value in (0, "many", "true", "2024-01-01", 1.7e308)},
        **{f"all {value}": (value, "?", None) for value in (10**18, 5e-324)},
    }
    for name, (column, sign, seen) in share(values.items()):
        Path("counts.csv").write_bytes(csv(rows=column))
        options = ["counts.csv", *GROUPS, "--count", "rows"]
        attempt(tally, name, ["audit", *options, "--json"], SIGNS[sign], seen_groups(seen) if seen else None)
        attempt(tally, name, ["audit", *options], SIGNS[sign])
        attempt(tally, name, ["report", *options, "-o", "{out}/page.html"], SIGNS[sign])
    for name in ("bird", "x0", "nothing", "", "rows "):
        attempt(tally, "--count", ["audit", ground.table, *GROUPS, "--count", name, "--json"], "reject")


def test_large_tables(tally: Tally) -> None:
    rng, rows = np.random.default_rng(0), np.arange(100_000)
    pd.DataFrame({"bird": rows % 400, "place": rng.integers(0, 400, size=100_000)}).to_csv("groups.csv", index=False)
    pd.DataFrame({"bird": rows, "place": 0}).to_csv("identifiers.csv", index=False)
    columns = {f"f{number}": np.zeros(6, dtype=int) for number in range(10_000)}
    frame = good_frame(6)[[*VALUES, *FEATURES]]
    pd.DataFrame({**frame.to_dict("list"), **columns}).to_csv("wide.csv", index=False)
    every, raised = ",".join(columns), ["--max-values", "1000000"]
    for path, sign in (("groups.csv", "+"), ("identifiers.csv", "-"), ("wide.csv", "+")):
        attempt(tally, "large", ["audit", path, *GROUPS, "--json"], SIGNS[sign])
        attempt(tally, "large", ["audit", path, *GROUPS], SIGNS[sign])
        attempt(tally, "large", ["report", path, *GROUPS, "-o", "{out}/p.html"], SIGNS[sign])
    attempt(tally, "10 000 columns", ["fit", "wide.csv", *NUMBERS, *LABELS, "-o", "{out}/m.safetensors"], "accept")
    attempt(tally, "10 000 features", ["fit", "wide.csv", "--features", every, *LABELS, "-o", "{out}/m"])
    attempt(tally, "10 000 attributes", ["audit", "wide.csv", "--attributes", every, "--json"])
    attempt(tally, "10 000 attributes", ["report", "wide.csv", "--attributes", every, "-o", "{out}/p.html"])
    attempt(tally, "a misspelt column", ["audit", "wide.csv", "--attributes", "brid,place"], "reject")
    attempt(tally, "100 000 values", ["audit", "identifiers.csv", *GROUPS, *raised, "--json"])
    attempt(tally, "100 000 values", ["audit", "identifiers.csv", *GROUPS, *raised])
