"""Load on `compshift serve` from a second process, beside ``predict_proba`` in one process on the same rows.

    python benchmarks/serving.py [--seconds 3] [--workers 2]

The service and the client run on the same machine and share its cores. Every connection sends its next request when it
has the answer to the last one. "features" is a linear model of 64 features, "table" a boosted one of 8 columns of all
kinds. "HTTP alone" asks for /health, which predicts nothing.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import compshift as cs

CONNECTIONS = (1, 8, 64)
ROWS = (1, 100)
FEATURES = 64
DIFFERENT = 16
"""Different requests that take turns."""


class Load(NamedTuple):
    """What a load test saw."""

    per_second: float
    median: float  # milliseconds
    p99: float
    errors: int


def models(folder: Path) -> Iterator[tuple[str, Path, list[Any], Any, Callable[[Any], Any]]]:
    """Fit two models; yield a name, the file, rows for requests, the same rows in memory, and how to predict them."""
    rng = np.random.default_rng(0)
    codes = np.array([(a, b) for a in range(4) for b in range(5) if (a + b) % 3 or a == 0])
    codes = codes[rng.integers(len(codes), size=3000)]
    X = rng.normal(size=(3000, FEATURES)) + rng.normal(size=(4, FEATURES))[codes[:, 0]]
    X += rng.normal(size=(5, FEATURES))[codes[:, 1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf = cs.CRMClassifier(alpha=0.01).fit(X, codes[:, 0], attributes=codes[:, 1])
        clf.save(folder / "features.safetensors")
        yield "features", folder / "features.safetensors", X.tolist(), X, clf.predict_proba
        table = pd.DataFrame(X[:, :5].round(3), columns=[f"x{i}" for i in range(5)])
        table["job"] = np.array(["cook", "vet", "clerk"])[rng.integers(0, 3, 3000)]
        table["member"] = rng.random(3000) < 0.5
        table["since"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 3000), unit="D")
        attributes = pd.DataFrame({"place": codes[:, 1]})
        pipe = cs.table_classifier("boosted", max_iter=20, early_stopping=False)
        pipe.fit(table, codes[:, 0], classifier__attributes=attributes)
        cs.save(pipe, folder / "table.safetensors")
    rows = json.loads(table.to_json(orient="records", date_format="iso"))
    yield "table", folder / "table.safetensors", rows, table, pipe.predict_proba


@contextmanager
def service(model: Path, workers: int) -> Iterator[int]:
    """Serve a model in a process of its own; yield the port."""
    command = [sys.executable, "-m", "compshift", "serve", str(model), "--port", "0", "--workers", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield int(line.rpartition(":")[2].partition("/")[0])
        finally:
            process.terminate()


async def load(port: int, requests: list[bytes], connections: int, seconds: float) -> Load:
    """Send requests over some connections at once."""
    times: list[float] = []
    errors = 0
    start = time.perf_counter()

    async def one(number: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - start < seconds:
            sent = time.perf_counter()
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - sent)
            errors += not head.startswith(b"HTTP/1.1 200")
            number += 1
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    elapsed = time.perf_counter() - start
    median, p99 = 1000 * np.quantile(times, (0.5, 0.99))
    return Load(len(times) / elapsed, median, p99, errors)


def posted(rows: list[Any]) -> bytes:
    """Return the bytes of a request for predictions."""
    body = json.dumps({"rows": rows}).encode()
    head = "POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length:"
    return f"{head} {len(body)}\r\n\r\n".encode() + body


def calls_per_second(predict: Callable[[Any], Any], data: Any, size: int, seconds: float) -> float:
    """Return how often a model predicts some rows in this process, on one thread."""
    blocks = [data[start * size : (start + 1) * size] for start in range(DIFFERENT)]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict(blocks[0])
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            predict(blocks[count % DIFFERENT])
            count += 1
        return count / (time.perf_counter() - start)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--workers", type=int, default=2, help="threads of the service that predict")
    options = parser.parse_args()
    table = Table(box=SIMPLE)
    headings = ("connections", "requests/s", "rows/s", "p50 ms", "p99 ms", "errors", "calls/s in process")
    for number, heading in enumerate(("model", "rows per request", *headings)):
        table.add_column(heading, justify="right" if number else "left")
    with tempfile.TemporaryDirectory() as name:
        for title, path, rows, data, predict in models(Path(name)):
            with service(path, options.workers) as port:
                kinds = [(size, [posted(rows[i * size : (i + 1) * size]) for i in range(DIFFERENT)]) for size in ROWS]
                for size, requests in [(0, [b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"]), *kinds]:
                    alone = calls_per_second(predict, data, size, options.seconds / 2) if size else 0.0
                    for connections in CONNECTIONS:
                        seen = asyncio.run(load(port, requests, connections, options.seconds))
                        table.add_row(
                            title if size else "HTTP alone",
                            str(size or ""),
                            str(connections),
                            f"{seen.per_second:.0f}",
                            f"{size * seen.per_second:.0f}" if size else "",
                            f"{seen.median:.1f}",
                            f"{seen.p99:.1f}",
                            str(seen.errors),
                            f"{alone:.0f}" if alone and connections == 1 else "",
                        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
