"""Malformed requests to a service: each is answered with a 4xx status and one sentence, and good ones stay right."""

import copy
import json
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from compshift.serve.app import Limits, create_app
from tests.hardening.verdicts import Tally, generator, share, unclear
from tests.serve.service import JSON, Client, fitted, served, serving

LIMITS = Limits(max_rows=20, max_bytes=50_000, timeout=2.0, max_concurrency=8, workers=2)
REQUESTS = 1000  # per model
PATHS = ("/predict", "/predict_set", "/explain")
DEEP = 400
ODD = (
    "text", "", "\x00", "é\u202e\x1b[31m", "1.0", "NaN", [], [1.0], {}, {"a": 1}, 10**400, -(10**400), "9" * 3000,
    "<script>", "__class__", "../../etc/passwd",
)  # fmt: skip
Request = tuple[str, str, bytes, dict[str, str]]


def _nested(depth: int) -> bytes:
    return b'{"rows": ' + b"[" * depth + b"]" * depth + b"}"


def _cell(rng: random.Random, body: Any) -> Any:
    """Put an odd value into one cell: nothing that the column accepts."""
    row = rng.choice(body["rows"])
    numbers = [key for key in (row if isinstance(row, dict) else range(len(row))) if type(_at(row, key)) is float]
    row[rng.choice(numbers)] = rng.choice(ODD)
    return body


def _at(row: Any, key: Any) -> Any:
    return row[key]


def _shape(rng: random.Random, body: Any) -> Any:
    """Give one row another width, other columns or another type."""
    position = rng.randrange(len(body["rows"]))
    row = body["rows"][position]
    if isinstance(row, dict):
        changes = [{**row, rng.choice(("more", "lenght", "", "X")): 1.0}, {}, dict(list(row.items())[1:]), list(row)]
    else:
        changes = [row[:-1], [*row, 0.0], [], {"x": 1.0}, [row]]
    body["rows"][position] = rng.choice([*changes, None, 3, "row", True])
    return body


def _keys(rng: random.Random, body: Any) -> Any:
    """Spoil a key of the request."""
    n = len(body["rows"])
    changes: list[dict[str, Any]] = [
        {"rows": rng.choice((None, [], {}, "rows", 7, False))},
        {rng.choice(("row", "Rows", "code", "pickle", "")): 1},
        {"attributes": rng.choice(([{}] * (n + 1), "sea", {"place": "sea"}, [None] * n, [[]] * n, 0))},
        {"attributes": [{rng.choice(("plcae", "bird", "", "x" * 500)): "sea"}] * n},
        {"attributes": [{"place": rng.choice(("moon", 3, [], {}, "", "sea "))}] * n},
        {"prior": rng.choice(("flat", "", 3, [], {}, [1], [{}], [{"prior": 1}], [[]], True))},
        {"prior": [{"bird": "duck", "prior": rng.choice((-1, 2, "a", [], None, 1e999, 10**400))}]},
        {"prior": [{"bird": rng.choice(("swan", 1, None, "")), "prior": 1.0}]},
    ]
    return {**body, **rng.choice(changes)}


def _drop(rng: random.Random, body: Any) -> Any:
    """Replace the whole content."""
    return rng.choice((None, [], 1, "rows", True, {}, [body], {"data": body}, body["rows"]))


def _many(rng: random.Random, body: Any) -> Any:
    return {"rows": body["rows"][:1] * rng.randint(21, 60)}


def _content(change: Callable[[random.Random, Any], Any]) -> Callable[[random.Random, Any], Request]:
    def make(rng: random.Random, body: Any) -> Request:
        changed = change(rng, copy.deepcopy(body))
        return "POST", rng.choice(PATHS), json.dumps(changed).encode(), JSON

    return make


def _bytes(rng: random.Random, body: Any) -> Request:
    """Make bytes that are not JSON."""
    text = json.dumps(body).encode()
    changes = [
        text[: rng.randrange(len(text))],
        text.replace(b".", rng.choice((b"..", b"NaN", b"Infinity", b",", b"\x00", b"\xff")), 1),
        text + rng.choice((b"}", b"[", b"\x00", text)),
        rng.randbytes(rng.randint(1, 300)),
        _nested(rng.choice((DEEP, 20_000))),
        b"{" + b'"a":{' * DEEP,
        text.replace(b'"rows"', rng.choice((b"rows", b"'rows'", b'"rows', b'"\\ud800"'))),
        b"",
        text.decode().encode("utf-16"),
    ]
    return "POST", rng.choice(PATHS), rng.choice(changes), JSON


def _outside(rng: random.Random, body: Any) -> Request:
    """Use another method, path, content type, or size."""
    content = json.dumps(body).encode()
    kind = rng.choice(("text/plain", "application/x-www-form-urlencoded", "", "application/xml", "multipart/form-data"))
    return rng.choice(
        [
            (rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW")), rng.choice(PATHS), content, JSON),
            ("POST", rng.choice(("/health", "/metrics", "/openapi.json", "/docs", "/")), content, JSON),
            ("POST", rng.choice(("/predict/", "/Predict", "/x", "/predict/../x", "/%00", "//predict")), content, JSON),
            ("POST", rng.choice(PATHS), content, {"Content-Type": kind}),
            ("POST", rng.choice(PATHS), content, {**JSON, "Content-Encoding": rng.choice(("gzip", "br", "x"))}),
            ("POST", rng.choice(PATHS), content.ljust(rng.choice((50_001, 300_000))), JSON),
        ]
    )


KINDS = {
    "a cell": _content(_cell), "a row": _content(_shape), "a key": _content(_keys), "all of it": _content(_drop),
    "too many rows": _content(_many), "bytes": _bytes, "outside of the body": _outside,
}  # fmt: skip


@contextmanager
def _service(kind: str, folder: Path) -> Iterator[tuple[Client, dict[str, Any], Any]]:
    """A service of a kind of model, a good request and its answer."""
    path, rows = fitted(kind, folder)
    body = {"rows": rows[:3]}
    with serving(create_app(served(path), LIMITS)) as client:
        answer = client.post(**body)
        assert answer.status == 200
        yield client, body, answer.content


def _judge(tally: Tally, label: str, status: int, content: Any) -> None:
    """Count an answer: a 4xx status and one sentence are right."""
    sentence = content.get("error") if isinstance(content, dict) and list(content) == ["error"] else None
    if not 400 <= status < 500:
        tally.fail("internal error" if status >= 500 else "wrong result", f"{label}: {status} {str(content)[:200]}")
    elif not isinstance(sentence, str) or unclear(sentence):
        tally.fail("unclear sentence", f"{label}: {status} {str(content)[:200]}")
    else:
        tally.rejected += 1


@pytest.mark.parametrize("kind", ["unnamed", "named", "table"])
def test_malformed_requests(kind: str, tally: Tally, tmp_path: Path) -> None:
    rng = generator(f"service {kind}")
    with _service(kind, tmp_path) as (client, good, wanted):
        for number in share(range(REQUESTS)):
            label = rng.choice(list(KINDS))
            method, path, content, headers = KINDS[label](rng, good)
            answer = client.send(method, path, content, headers)
            _judge(tally, f"{label}: {method} {path} {content[:120]!r}", answer.status, answer.content)
            if number % 50 == 0 and client.post(**good).content != wanted:
                tally.fail("wrong result", f"a good request after {label}")
        tally.attempt(
            "a good request", lambda: client.post(**good).content, lambda a: None if a == wanted else "changed"
        )
        assert client.metric("compshift_active_requests") == 0
        assert 'status="500"' not in client.get("/metrics").content


RAW = {
    "no HTTP": b"hello\r\n\r\n",
    "bytes": bytes(range(256)) * 4,
    "a long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    "two lengths": b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}{}",
    "a negative length": b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "a broken chunk": b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "no host": b"POST /predict HTTP/1.1\r\n\r\n",
    "half a body": b"POST /explain HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("label", RAW)
def test_malformed_connections(label: str, tally: Tally, tmp_path: Path) -> None:
    with _service("unnamed", tmp_path) as (client, good, wanted):
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
            connection.sendall(RAW[label])
            try:
                answer = connection.makefile("rb").read()
            except ConnectionResetError:
                answer = b""  # closed while the client was still sending
        status = int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 400
        if status // 100 != 4 or b"Traceback" in answer:
            tally.fail("wrong result", f"{label}: {answer[:200]!r}")
        tally.attempt(label, lambda: client.post(**good).content, lambda a: None if a == wanted else "changed")
