"""Damaged versions of a file: of its bytes, and of the structure of JSON, JSON lines, TOML, CSV and safetensors."""

import copy
import csv
import io
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from compshift.crm.io import _checksum

Mutation = Callable[[bytes, random.Random], bytes]
EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
SIZES = (0, 1, 127, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**64 - 1)
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3, 2**31, 2**63, 10**30, 1.5, 1e308, float("nan"), float("inf"), "", "x", "1", "\0"),
    *("é\ud800", "../../outside/secret", "/etc/passwd", "x" * 5000, [], {}, [[]], [None], [1, 2], ["a", "a"]),
    *({"a": 1}, [[0] * 50] * 50),
)
WORDS = (
    *("", "-1", "2", "99999999999999999999", "nan", "inf", "1e400", "NULL", '"', "'", "a,b", "\0", "\ufeff", "é"),
    *("../../outside/secret", "/etc/passwd", "C:\\x", "a\nb", "x" * 10_000, "=1+1", "<script>", "0x1", "1_0", "٣"),
)


def of_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, swap, overwrite or insert some bytes, often more than once."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        change, start, size = rng.randrange(10), _position(data, rng), rng.choice((1, 2, 4, 8, 64, 512))
        if change <= 2 and data:
            data[start] = rng.choice((*EDGES, *(data[start] ^ 1 << bit for bit in range(8))))
        elif change == 3:
            del data[rng.randrange(len(data) + 1) :]
        elif change == 4:
            del data[start : start + size]
        elif change == 5:
            data[start:start] = data[start : start + size] * rng.choice((1, 2, 50))
        elif change == 6:
            first, second = sorted((start, _position(data, rng)))
            if first + size <= second and second + size <= len(data):
                one, other = slice(first, first + size), slice(second, second + size)
                data[one], data[other] = data[other], data[one]
        elif change <= 8:  # a number where a size may be declared
            size = min(size, 8)
            value = rng.choice(SIZES) & (2 ** (8 * size) - 1)
            data[start : start + size] = value.to_bytes(size, rng.choice(("little", "big")))
        else:
            data[start : start + 8] = rng.randbytes(8)
    return bytes(data)


def _position(data: bytearray, rng: random.Random) -> int:
    """Return any position, but often one near the ends, where formats keep their headers."""
    near = rng.randrange(min(len(data), 200) or 1)
    return rng.choice((near, max(0, len(data) - 1 - near), *(rng.randrange(len(data) or 1),) * 2))


def of_tree(content: Any, rng: random.Random) -> Any:
    """Replace, remove, wrap or insert parts of nested lists and mappings."""
    tree = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holders = list(_holders(tree))
        value = copy.deepcopy(rng.choice(ODD))
        if not holders:
            return value
        holder = rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        change = rng.random()
        if change < 0.6:
            holder[key] = value
        elif change < 0.75:
            del holder[key]
        elif change < 0.85:
            holder[key] = [holder[key]]
        elif isinstance(holder, list):
            holder.insert(key, value)
        else:
            holder[rng.choice(("", "x", "extra", "é"))] = value
    return tree


def _holders(tree: Any) -> Iterator[Any]:
    """Yield the mappings and lists in a tree that are not empty."""
    if isinstance(tree, dict | list) and tree:
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree[:20]:
            yield from _holders(value)


def of_json(content: bytes, rng: random.Random) -> bytes:
    """Change the structure of JSON."""
    return json.dumps(of_tree(json.loads(content), rng)).encode()


def of_lines(content: bytes, rng: random.Random) -> bytes:
    """Change one line of JSON lines."""
    lines = content.splitlines()
    number = rng.randrange(len(lines))
    lines[number] = rng.choice((of_json(lines[number], rng), b"", b"[" * 50_000, of_bytes(lines[number], rng)))
    return b"\n".join(lines) + b"\n"


def of_toml(content: bytes, rng: random.Random) -> bytes:
    """Change the structure of TOML."""
    import tomli_w

    try:
        return tomli_w.dumps(of_tree(tomllib.loads(content.decode()), rng)).encode("utf-8", "replace")
    except (TypeError, AttributeError):  # TOML has no null, and its root is a mapping
        return of_bytes(content, rng)


def of_table(content: bytes, rng: random.Random) -> bytes:
    """Change cells, rows, columns or the encoding of a CSV file."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(rng.choice((1, 1, 2, 5))):
        row = rng.choice(rows[:1] * 5 + rows) if rng.random() < 0.2 else rng.choice(rows)
        change = rng.random()
        if change < 0.7 and row:
            row[rng.randrange(len(row))] = rng.choice(WORDS)
        elif change < 0.8 and row:
            del row[rng.randrange(len(row))]
        elif change < 0.9:
            row.append(rng.choice(WORDS))
        else:
            rows.insert(rng.randrange(len(rows) + 1), rng.choice(([], list(row), ["x"] * 300)))
    stream = io.StringIO()
    csv.writer(stream, quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))).writerows(rows)
    encoding = rng.choice(("utf-8",) * 8 + ("utf-8-sig", "utf-16", "latin-1"))
    return stream.getvalue().encode(encoding, errors="replace")


def of_signed_model(content: bytes, rng: random.Random) -> bytes:
    """Change a model file and give it the checksum that fits, as an attacker would."""
    from safetensors.numpy import load, save

    arrays = load(content)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["compshift"])
    if rng.random() < 0.6:
        header = of_tree(header, rng)
    else:
        name = rng.choice(list(arrays))
        array, floats, integers = arrays[name], (np.nan, np.inf, -np.inf, 1e308, 1e150, 1e20, -1.0), (-1, 99, 2**62)
        changed = array.copy()
        changed.reshape(-1)[rng.randrange(changed.size)] = rng.choice(floats if array.dtype.kind == "f" else integers)
        cast = array.astype(rng.choice(("float32", "int64", "uint8", "bool", "float16")))
        wider = np.repeat(array[..., None], rng.choice((1, 3)), axis=-1)
        shapes = [array[:-1].copy(), array.reshape(-1).copy(), array[:0].copy(), wider]
        arrays[name] = rng.choice([*shapes, cast, changed, changed, changed])
    text = json.dumps(header).encode("utf-8", "replace").decode()
    return save(arrays, metadata={"compshift": text, "sha256": _checksum(text, arrays)})
