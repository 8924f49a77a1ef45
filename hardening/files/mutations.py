"""Damaged versions of a file: of its bytes, of its text, and of the structure of JSON, TOML or CSV."""

import copy
import csv
import io
import json
import random
from collections.abc import Callable
from typing import Any

EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
SIZES = (0, 1, 127, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**64 - 1)
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1,
        3,
        2**31,
        2**63,
        10**30,
        1.5,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "1",
        "\0",
        "é\ud800",
    ),
    *(
        "../../outside/secret",
        "/etc/passwd",
        "x" * 5000,
        [],
        {},
        [[]],
        [None],
        [1, 2],
        ["a", "a"],
        {"a": 1},
        [[0] * 50] * 50,
    ),
)
WORDS = ("", "-1", "2", "99999999999999999999", "nan", "inf", "1e400", "NULL", '"', "'", "a,b", "\0", "\ufeff", "é")
PLACES = ("../../outside/secret", "/etc/passwd", "C:\\x", "a\nb", "x" * 10_000, "=1+1", "<script>", "0x1", "1_0", "٣")


def of_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, swap, overwrite or splice some bytes, often more than once."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        rng.choice(BYTE_CHANGES)(data, rng)
    return bytes(data)


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def _edge(data: bytearray, rng: random.Random) -> None:
    if data:
        data[_place(data, rng)] = rng.choice(EDGES)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _cut(data: bytearray, rng: random.Random) -> None:
    start = _place(data, rng)
    del data[start : start + rng.choice((1, 2, 8, 100, 1000))]


def _repeat(data: bytearray, rng: random.Random) -> None:
    start = _place(data, rng)
    block = data[start : start + rng.choice((1, 4, 64, 512))]
    data[start:start] = block * rng.choice((1, 2, 50))


def _swap(data: bytearray, rng: random.Random) -> None:
    size = rng.choice((1, 4, 16, 64))
    first, second = sorted((_place(data, rng), _place(data, rng)))
    if first + size <= second and second + size <= len(data):
        data[first : first + size], data[second : second + size] = (
            data[second : second + size],
            data[first : first + size],
        )


def _declare(data: bytearray, rng: random.Random) -> None:
    """Write a number where a size may stand."""
    size = rng.choice((1, 2, 4, 8))
    start = _place(data, rng)
    value = rng.choice(SIZES) & (2 ** (8 * size) - 1)
    data[start : start + size] = value.to_bytes(size, rng.choice(("little", "big")))


def _noise(data: bytearray, rng: random.Random) -> None:
    start = _place(data, rng)
    data[start : start + 8] = rng.randbytes(8)


BYTE_CHANGES = (_flip, _flip, _edge, _truncate, _cut, _repeat, _swap, _declare, _declare, _noise)


def _place(data: bytearray, rng: random.Random) -> int:
    """Anywhere, but often near the beginning or the end, where formats keep their headers."""
    near = min(len(data), 200)
    where = rng.random()
    if where < 0.3:
        return rng.randrange(near or 1)
    if where < 0.5:
        return max(0, len(data) - 1 - rng.randrange(near or 1))
    return rng.randrange(len(data) or 1)


def of_tree(content: Any, rng: random.Random) -> Any:
    """Replace, remove, add or exchange parts of nested lists and mappings."""
    tree = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holders = list(_holders(tree))
        if not holders:
            return _odd(rng)
        holder = rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        what = rng.random()
        if what < 0.6:
            holder[key] = _odd(rng)
        elif what < 0.75:
            del holder[key]
        elif what < 0.85:
            holder[key] = [holder[key]]
        elif isinstance(holder, list):
            holder.insert(key, rng.choice((holder[key], _odd(rng))))
        else:
            holder[rng.choice(("", "x", "extra", "é"))] = _odd(rng)
    return tree


def _odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(ODD))


def _holders(tree: Any) -> Any:
    """The mappings and lists in a tree that hold something."""
    if isinstance(tree, dict | list) and tree:
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree[:20]:
            yield from _holders(value)


def of_json(content: bytes, rng: random.Random) -> bytes:
    """JSON with changes of its structure."""
    return json.dumps(of_tree(json.loads(content), rng)).encode()


def of_lines(content: bytes, rng: random.Random) -> bytes:
    """JSON lines, one of them changed."""
    lines = content.splitlines()
    number = rng.randrange(len(lines))
    lines[number] = rng.choice((of_json(lines[number], rng), b"", b"[" * 50_000, of_bytes(lines[number], rng)))
    return b"\n".join(lines) + b"\n"


def of_table(content: bytes, rng: random.Random, delimiter: str = ",") -> bytes:
    """A CSV file with changed cells, rows or columns, or in another encoding."""
    rows = list(csv.reader(io.StringIO(content.decode()), delimiter=delimiter))
    for _ in range(rng.choice((1, 1, 2, 5))):
        row = rng.choice(rows[:1] * 5 + rows) if rng.random() < 0.2 else rng.choice(rows)
        what = rng.random()
        if what < 0.7 and row:
            row[rng.randrange(len(row))] = rng.choice(WORDS + PLACES)
        elif what < 0.8 and row:
            del row[rng.randrange(len(row))]
        elif what < 0.9:
            row.append(rng.choice(WORDS))
        else:
            rows.insert(rng.randrange(len(rows) + 1), rng.choice(([], list(row), ["x"] * 300)))
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))).writerows(rows)
    encoding = rng.choice(("utf-8",) * 8 + ("utf-8-sig", "utf-16", "latin-1"))
    return stream.getvalue().encode(encoding, errors="replace")


Mutation = Callable[[bytes, random.Random], bytes]
