"""Bad tables and feature files, and damaged or hostile files of all formats, each with every command that reads one."""

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from compshift.nn.huggingface import quiet
from tests.data import trees
from tests.hardening import commands as c
from tests.hardening import mutations as m
from tests.hardening.commands import GROUPS, LABELS, NUMBERS, SIGNS, Expected, Ground, Ran, attempt
from tests.hardening.formats import BYTES, JSON, TABLE
from tests.hardening.test_files import Payload
from tests.hardening.verdicts import SHARE, Sandbox, Tally, generator, share
from tests.nn.models import resnet

Spoilt = dict[str, dict[str, bytes]]
"""Contents of files by name, under a sign each for commands that read labels, features and both: + accept, - reject,
? either."""
LABEL_PAIRS = {
    "with commas": ("a, b", "a"), "with quotes": ('a"b', "a'b"), "with newlines": ("a\nb", "a b"),
    "with tabs": ("a\tb", "a b"), "that end in blanks": ("a ", "a"), "from right to left": ("אבג", "\u202eabc\u202c"),
    "with control characters": ("a\x1b[31mred\x07", "a\x08b"), "with combining signs": ("e\u0301", "é"),
    "of emoji": ("👩‍👩‍👧‍👦", "🦆"), "of markup": ("[bold]a[/bold]", "<script>alert(1)</script>"),
    "of LaTeX": ("a_b$", "\\input{x}%"), "like formulas": ("=1+1", "@SUM(A1)"), "of numbers and text": ("1", "duck"),
    "very long": ("a" * 10_000, "a" * 9_999 + "b"), "01 and 1": ("01", "1"), "1.0 and 1": ("1.0", "1"),
    "true and false": ("true", "False"), "huge whole numbers": ("9" * 30, "1"),
}  # fmt: skip
TURN = np.arange(60)
LONG_VALUES = json.dumps({"bird": ["a" * 10_000, "b" * 10_000], "place": ["x, y", "x"]})


def csv(**columns: Any) -> bytes:
    """The good table with other columns; None removes one."""
    frame = c.good_frame().assign(**{name: value for name, value in columns.items() if value is not None})
    text = frame.drop(columns=[name for name, value in columns.items() if value is None]).to_csv(index=False)
    return bytes(text.encode("utf-8", "surrogatepass"))


def cell(value: object) -> bytes:
    """A table with one other cell in x0."""
    return csv(x0=[value if row == 5 else number for row, number in enumerate(c.good_frame()["x0"])])


def tables() -> Spoilt:
    """Damaged tables, labels that are hard to tell apart or print, and numbers that are none."""
    good, x = csv(), c.good_frame()["x0"].to_numpy()
    head, *rows = good.splitlines(keepends=True)
    return {
        "+++": {
            "good": good, "byte order mark": b"\xef\xbb\xbf" + good, "Windows line ends": good.replace(b"\n", b"\r\n"),
            **{f"labels {label}": csv(bird=np.where(TURN % 2, *pair)) for label, pair in LABEL_PAIRS.items()},
            "very long column name": csv(**{"y" * 10_000: 1}), "a constant feature": csv(x0=1.5),
            "odd column names": csv(**{"": 1, "אב": 2, "a\nb": 3, "[red]": 4}), "tiny features": csv(x0=x * 1e-150),
            "boolean features": csv(x0=np.where(TURN % 2, "true", "false")),
        },
        "---": {
            "nothing": b"", "one newline": b"\n", "header only": head, "header without newline": head.strip(),
            "rows of several lengths": good + b"duck,sea\n", "an open quote": good + b'"duck,sea',
            "zero bytes": b"\0" * 100, "random bytes": np.random.default_rng(0).bytes(2000),
            "UTF-16": good.decode().encode("utf-16"), "semicolons": good.replace(b",", b";"),
        },
        "???": {"zero bytes within": good.replace(b"duck", b"du\0ck"), "blank lines": good.replace(b"\n", b"\n\n")},
        "-?-": {
            "a column name twice": head.replace(b"note", b"bird") + b"".join(rows), "a missing column": csv(bird=None),
            "Latin-1": good.replace(b"duck", b"d\xfcck"),
        },
        "-+-": {"missing values": csv(bird="")},
        "++-": {"one row": head + rows[0], "one class": csv(bird="duck"), "one group": csv(bird="duck", place="sea")},
        "++?": {
            "some missing values": csv(bird=np.where(TURN % 5, "duck", "")), "huge features": csv(x0=x * 1e150),
            "the word nan": csv(bird=np.where(TURN % 5, "duck", "nan")), "denormal features": csv(x0=TURN * 5e-324),
            "every row its own value": csv(bird=TURN.astype(str)), "all features constant": csv(x0=1, x1=1, x2=1),
        },
        "+??": {f"cell {value!r}": cell(value) for value in (1e300, 1.7e308, 5e-324, 1e-300)},
        "+--": {
            **{f"cell {value!r}": cell(value) for value in ("nan", "inf", "-inf", "", "many", "1e400", "0x10")},
            "a feature name twice": head.replace(b"note", b"x0") + b"".join(rows), "decimal commas": csv(x0='"1,5"'),
            "a missing feature": csv(x1=None), "text features": csv(x0="a", x1="b"), "dates": csv(x0="2024-01-01"),
        },
    }  # fmt: skip


def npz(**changed: Any) -> bytes:
    """The good feature file with other arrays; None removes one."""
    arrays = {name: value for name, value in {**c.good_arrays(), **changed}.items() if value is not None}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def replaced(array: Any, value: Any) -> Any:
    """The array with one entry replaced."""
    changed = array.copy()
    changed[4, 0] = value
    return changed


def archives() -> Spoilt:
    """Feature files whose arrays do not fit together, or hold no numbers."""
    good = c.good_arrays()
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
        "+++": {
            "good": npz(), "whole numbers": npz(X=(X * 10).astype(np.int8)), "booleans": npz(X=X > 0),
            "half precision": npz(X=X.astype(np.float16)), "long double": npz(X=X.astype(np.longdouble)),
            "big endian": npz(X=X.astype(">f8"), Z=Z.astype(">i4")), "Fortran order": npz(X=np.asfortranarray(X)),
            "very long values": npz(value_names=np.array(LONG_VALUES)), "no value names": npz(value_names=None),
        },
        "---": {
            "nothing": b"", "a CSV file": b"a,b\n1,2\n", "half an archive": npz()[:900],
            "no arrays": npz(**dict.fromkeys(good)),
        },
        "?--": {f"X with {name}": npz(X=value) for name, value in bad_X.items()},
        "-+-": {
            **{f"codes with {name}": npz(Z=value) for name, value in bad_Z.items()},
            **{f"value names {text:.40}": npz(value_names=np.array(text)) for text in bad_names},
            "no codes": npz(Z=None), "attribute names twice": npz(attribute_names=np.array(["bird", "bird"])),
            "attribute names of numbers": npz(attribute_names=np.array([1, 2])),
        },
        "?+-": {"more codes than rows": npz(Z=np.r_[Z, Z])},
        "++-": {"one class": npz(Z=Z * [0, 1]), "one row": npz(X=X[:1], Z=Z[:1], split=None)},
        "++?": {
            "huge features": npz(X=X * 1e300), "tiny features": npz(X=X * 1e-300),
            "a split without train": npz(split=np.full(60, 2)),
        },
        "+-+": {"too many features": npz(X=np.c_[X, X])},
        "+--": {
            "no X": npz(X=None), "a split out of range": npz(split=np.full(60, 7)),
            "a split too short": npz(split=np.zeros(3, dtype=int)), "a split of NaN": npz(split=np.full(60, np.nan)),
            "a split of text": npz(split=np.array(["a"] * 60)),
        },
    }  # fmt: skip


def parquet(**changed: Any) -> bytes:
    """The good features as Parquet with other columns; None removes one."""
    frame = c.good_frame()[["bird", "place"]].assign(features=list(c.good_arrays()["X"]))
    frame = frame.assign(**{name: value for name, value in changed.items() if value is not None})
    stream = io.BytesIO()
    frame.drop(columns=[name for name in frame if name in changed and changed[name] is None]).to_parquet(stream)
    return stream.getvalue()


def parquets() -> Spoilt:
    """Parquet files whose features or labels have other types."""
    X = c.good_arrays()["X"]
    f = {f"f{column}": X[:, column] for column in range(3)}
    spoilt: dict[str, Any] = {
        "lists of several lengths": [list(row[: 1 + position % 3]) for position, row in enumerate(X)],
        "missing lists": [None if position == 3 else list(row) for position, row in enumerate(X)],
        "lists with gaps": [[None, 1.0, 2.0]] * 60, "lists of text": [["a", "b", "c"]] * 60, "empty lists": [[]] * 60,
        "lists of lists": [[[1.0], [2.0], [3.0]]] * 60, "text": "many", "numbers": 1.5, "NaN": [[np.nan, 1, 2]] * 60,
    }  # fmt: skip
    return {
        "+++": {"good": parquet(), "numbered columns": parquet(features=None, **f)},
        "---": {"nothing": b"", "half a file": parquet()[:700]},
        "+--": {
            **{f"features of {name}": parquet(features=value) for name, value in spoilt.items()},
            "no features": parquet(features=None), "split of fractions": parquet(split=0.5),
            "numbered columns with a gap": parquet(features=None, f0=X[:, 0], f2=X[:, 2], f3=X[:, 1]),
            "text in numbered columns": parquet(features=None, **{**f, "f1": "a"}),
            "missing numbers": parquet(features=None, **{**f, "f1": None, "f01": 1.0}),
        },
        "++?": {
            "missing labels": parquet(bird=np.where(TURN % 4, "duck", None)),
            "labels of fractions": parquet(bird=TURN % 2 + 0.5),
        },
        "-+-": {"labels of lists": parquet(bird=[["a"]] * 60), "labels NaN": parquet(bird=np.nan)},
        "?+?": {
            "labels of dates": parquet(bird=pd.Timestamp("2024-01-01")),
            "labels of bytes": parquet(bird=[b"\xff\xfe"] * 60),
        },
    }  # fmt: skip


KINDS = {".csv": tables, ".npz": archives, ".parquet": parquets}
FILES = {
    (kind, sign, name): file for kind in KINDS for sign, files in KINDS[kind]().items() for name, file in files.items()
}


def spoil(kind: str, signs: str, name: str) -> tuple[str, Expected, Expected, Expected]:
    """Write a spoilt file; return its name and what labels, features and both are expected to give."""
    Path(f"spoilt file{kind}").write_bytes(FILES[kind, signs, name])
    labels, features, both = (SIGNS[sign] for sign in signs)
    return f"spoilt file{kind}", labels, features, both


@pytest.mark.parametrize(("kind", "signs", "name"), share(case for case in FILES if case[0] == ".csv"))
def test_tables(kind: str, signs: str, name: str, ground: Ground, tally: Tally) -> None:
    path, labels, features, both = spoil(kind, signs, name)
    scored: Expected = "reject" if "-" in signs[:2] else "either"
    training = [*NUMBERS, *LABELS, *c.TRAINING, "--shares", "0.5,0.2,0.3"]
    text = ["--text", "note", *LABELS, "--backbone", "none/such"]
    attempt(tally, name, ["audit", path, *GROUPS, "--json", "--explain"], labels)
    attempt(tally, name, ["audit", path, *GROUPS], labels)
    attempt(tally, name, ["report", path, *GROUPS, "-o", "{out}/page.html"], labels)
    attempt(tally, name, ["fit", path, *NUMBERS, *LABELS, "-o", "{out}/m.safetensors", "--json"], both)
    attempt(tally, name, ["train", path, *training, "-o", "{out}/run", "--json"], both)
    attempt(tally, name, ["predict", ground.table_model, path, "-o", "{out}/p.csv", "--groups", "--explain"], features)
    attempt(tally, name, ["evaluate", ground.table_model, path, "--json"], scored)
    attempt(tally, name, ["features", path, *text, "-o", "{out}/f"], "reject")


@pytest.mark.parametrize(("kind", "signs", "name"), share(case for case in FILES if case[0] != ".csv"))
def test_feature_files(kind: str, signs: str, name: str, ground: Ground, tally: Tally) -> None:
    path, labels, features, both = spoil(kind, signs, name)
    scored: Expected = both if name in ("good", "half precision") else "either"
    attempt(tally, name, ["audit", path, *GROUPS, "--json"], labels)
    attempt(tally, name, ["fit", path, *LABELS, "-o", "{out}/m.safetensors", "--json"], both)
    attempt(tally, name, ["train", path, *LABELS, *c.TRAINING, "-o", "{out}/run", "--json"], both)
    attempt(tally, name, ["predict", ground.model, path, "-o", "{out}/p.parquet", "--groups"], features)
    attempt(tally, name, ["evaluate", ground.model, path, "--json"], scored)
    attempt(tally, name, ["report", ground.model, path, "-o", "{out}/p.html"])
    attempt(tally, name, ["bench", path, "--dry-run", "--json", "-o", "{out}/b"])
    if kind == ".parquet":
        options = ["--memory", "10M", "-o", "{out}/m.safetensors", "--json"]
        attempt(tally, name, ["fit", path, *LABELS, *options], "reject" if both == "reject" else "either")


def test_counts(ground: Ground, tally: Tally) -> None:
    values: dict[str, tuple[Any, Expected]] = {
        "zeros for a group": (np.where(TURN % 3, 2, 0), "accept"),
        **{f"one {value}": (np.where(TURN == 3, value, "1"), "reject") for value in ("-4", "-1", "nan", "inf", "")},
        **{f"all {value}": (value, "reject") for value in (0, "many", "true", "2024-01-01", 1.7e308)},
        **{f"all {value}": (value, "either") for value in (0.5, 10**18, 5e-324)},
    }
    for name, (column, expected) in share(values.items()):
        Path("counts.csv").write_bytes(csv(rows=column))
        options = ["counts.csv", *GROUPS, "--count", "rows"]
        attempt(tally, name, ["audit", *options, "--json"], expected)
        attempt(tally, name, ["report", *options, "-o", "{out}/page.html"], expected)
    for name in ("bird", "x0", "nothing", "", "rows "):
        attempt(tally, "--count", ["audit", ground.table, *GROUPS, "--count", name, "--json"], "reject")


def test_large_tables(tally: Tally) -> None:
    rng, rows = np.random.default_rng(0), np.arange(100_000)
    pd.DataFrame({"bird": rows % 400, "place": rng.integers(0, 400, size=100_000)}).to_csv("groups.csv", index=False)
    pd.DataFrame({"bird": rows, "place": 0}).to_csv("identifiers.csv", index=False)
    columns = {f"f{number}": np.zeros(6, dtype=int) for number in range(10_000)}
    frame = c.good_frame(6)[[*c.VALUES, *c.FEATURES]]
    pd.DataFrame({**frame.to_dict("list"), **columns}).to_csv("wide.csv", index=False)
    every = ",".join(columns)
    for path, expected in (("groups.csv", "accept"), ("identifiers.csv", "reject"), ("wide.csv", "accept")):
        for line in (["audit", path, *GROUPS, "--json"], ["report", path, *GROUPS, "-o", "{out}/p.html"]):
            attempt(tally, "large", line, expected)
    attempt(tally, "large", ["fit", "wide.csv", "--columns", every, *LABELS, "-o", "{out}/m"])
    attempt(tally, "large", ["report", "wide.csv", "--attributes", every, "-o", "{out}/p.html"])
    attempt(tally, "large", ["fit", "wide.csv", *NUMBERS, *LABELS, "-o", "{out}/m.safetensors"], "accept")
    attempt(tally, "large", ["audit", "wide.csv", "--attributes", "brid,place"], "reject")
    attempt(tally, "large", ["audit", "identifiers.csv", *GROUPS, "--max-values", "1000000"])


STEP, SHARES = " ".join(c.TRAINING), "--shares 0.5,0.2,0.3"


def lines_for(path: str, model: str = "m.safetensors", more: str = "") -> list[str]:
    """Every command that reads features or a table with labels; ``more`` names the features of a table."""
    given, labels, out = f"{path} {more}".strip(), "--target bird --attributes place", "-o {out}/"
    return [
        f"audit {path} --attributes bird,place --json", f"fit {given} {labels} {out}m.safetensors --json",
        f"predict {model} {path} {out}p.csv --groups", f"evaluate {model} {path} --json",
        f"train {given} {labels} {STEP} {SHARES if more else ''} {out}run --json",
        f"report {model} {path} {out}p.html", f"report {path} --attributes bird,place {out}p.html",
    ]  # fmt: skip


def lines_with(model: str, data: str = "birds.npz") -> list[str]:
    """Every command that reads a model."""
    made = [f"predict {model} {data} -o {{out}}/p.csv", f"report {model} {data} -o {{out}}/p.html"]
    return [*made, f"evaluate {model} {data} --json", f"export {model} -o {{out}}/m.onnx --json"]


EMBED = (
    "features pictures.csv --path file --target bird --attributes place --backbone resnet --workers 0 --overwrite -o f"
)
RESULTS = [
    "tables results -o {out}/t.md",
    "tables results --format csv --table scenarios",
    "report results -o {out}/p.html",
]
PRIOR = [
    "fit birds.npz --target bird --attributes place -o {out}/m.safetensors",
    "evaluate m.safetensors birds.npz --json",
]
SIGNED = (m.of_bytes, m.of_signed_model, m.of_signed_model)
READERS: dict[str, tuple[tuple[m.Mutation, ...], list[str]]] = {
    "birds.npz": (BYTES, [*lines_for("birds.npz"), "bench birds.npz --dry-run --json -o {out}/b"]),
    "birds.parquet": (BYTES, [*lines_for("birds.parquet"), f"{lines_for('birds.parquet')[1]} --memory 10M"]),
    "shards/part-0.parquet": (BYTES, lines_for("shards")),
    "birds.csv": (TABLE, lines_for("birds.csv", "t.safetensors", f"--columns {NUMBERS[1]}")),
    "m.safetensors": (SIGNED, lines_with("m.safetensors")),
    "t.safetensors": (SIGNED, lines_with("t.safetensors", "birds.csv")),
    "run/run.json": (JSON, lines_with("run")),
    "run/model.safetensors": (BYTES, lines_with("run")),
    "results/bench.json": (JSON, [*RESULTS, f"{' '.join(c.BENCH)} birds.npz --dry-run -o results"]),
    "results/jobs/*.json": (JSON, [*RESULTS, f"{' '.join(c.BENCH)} birds.npz --dry-run -o results"]),
    "run/config.toml": ((m.of_toml, m.of_toml, m.of_bytes), [f"train --config run/config.toml {STEP} -o {{out}}/run"]),
    "prior.csv": (TABLE, [f"{line} --prior prior.csv" for line in PRIOR]),
    "waterbirds/metadata_waterbirds.csv": (TABLE, ["datasets check waterbirds --root . --quick --json"]),
    "resnet/config.json": (JSON, [EMBED]),
    "resnet/model.safetensors": (BYTES, [EMBED]),
    "pictures.csv": (TABLE, [EMBED, lines_for("pictures.csv")[0]]),
    "3.png": (BYTES, [EMBED]),
}
FOLDERS = (
    "shards/",
    "results/",
    "run/run",
    "run/model",
    "waterbirds/",
)  # no file of which may be a link that leads out
ROUNDS = 40  # damaged versions of each file


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, _good_files: Ground) -> Sandbox:
    """A sandbox with a good file of every format."""
    box = Sandbox(tmp_path_factory.mktemp("sandbox").resolve())
    copytree(Path(_good_files.table).parent, box.inside, dirs_exist_ok=True)
    (box.inside / "birds.parquet").write_bytes(parquet(split=np.array(["train", "val", "test"])[TURN // 3 % 3]))
    config = box.inside / "run/config.toml"
    config.write_text(config.read_text().replace(_good_files.features, "birds.npz"))
    groups = c.good_frame(3)[list(c.VALUES)].assign(prior=[0.5, 0.3, 0.2])
    groups.to_csv(box.inside / "prior.csv", index=False)
    trees.waterbirds(box.inside, "subpopbench")
    with quiet():
        resnet(box.inside / "resnet", side=8)
    return box


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, box: Sandbox, ground: Ground, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.chdir(box.inside)
    mutations, lines = READERS[name]
    path, rng = sorted(Path().glob(name))[0], generator(name)
    content = path.read_bytes()

    def give(label: str, line: str, expected: Expected = "either") -> None:
        box.forget()
        with box.watching(tally, label) as single:
            attempt(single, label, line.split(), expected, unsound)

    try:
        for line in share(lines):
            give(f"{name}, unchanged", line, "accept")
        for number in range(ROUNDS // SHARE):
            mutation = mutations[number % len(mutations)]
            path.write_bytes(mutation(content, rng))
            give(f"{name}, {mutation.__name__} {number}", lines[number % len(lines)])
        for label, put in hostile(box).items():
            if label == "a link" and not name.startswith(FOLDERS):
                continue
            path.unlink()
            put(path)
            for line in share(lines):
                unread = label == "a pipe" and "--dry-run" in line  # a folder without bench.json holds no benchmark
                give(f"{name} is {label}", line, "either" if unread else "reject")
    finally:
        path.unlink()
        path.write_bytes(content)


def hostile(box: Sandbox) -> dict[str, Callable[[Path], Any]]:
    """Ways to put something hostile in the place of a file."""
    code = [pickle.dumps(Payload(box.marker), protocol=protocol) for protocol in (0, 4)]
    archive, secret = io.BytesIO(), box.outside / "secret"
    np.savez(archive, X=np.array([[Payload(box.marker)]], dtype=object), Z=np.zeros((1, 2), int))
    secret.write_bytes(b"of somebody else")
    contents = {"a pickle": code[1], "a pickle of text": code[0], "an archive of pickles": archive.getvalue()}
    puts: dict[str, Callable[[Path], Any]] = {
        label: lambda path, content=content: path.write_bytes(content) for label, content in contents.items()
    }
    return puts | {"a pipe": os.mkfifo, "a link": lambda path: path.symlink_to(secret)}


def unsound(ran: Ran) -> str | None:
    """Complain about predictions and models that a command wrote."""
    model, table = ran.folder / "m.safetensors", ran.folder / "p.csv"
    if model.exists():
        cs.load(model)
    if not table.exists():
        return None
    numbers = pd.read_csv(table, dtype=str).filter(regex=r"^(p|prob|probability)").astype(float)
    return None if numbers.apply(lambda column: column.between(0, 1)).all(axis=None) else f"{numbers.describe()}"
