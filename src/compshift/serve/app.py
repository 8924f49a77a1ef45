"""The HTTP service of a model: endpoints, limits, and one plain sentence for every error.

A request passes ``Gate``, which limits how many are in progress, reads the body within the limits, and computes the
answer in a pool of threads. While a thread computes, NumPy releases Python's lock; BLAS and LightGBM have one thread
for each of them, so that many requests do not compete for the cores. Networks use all cores, for one request at a time.
A thread that becomes free takes all small requests for predictions that wait, and predicts their rows together.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic_core import from_json, to_json
from starlette.requests import ClientDisconnect
from threadpoolctl import threadpool_limits

from compshift import __version__
from compshift._errors import InputError, one_line, reason
from compshift.serve.description import POLICY, answer_schema, page, request_schema
from compshift.serve.metrics import Observed, ServiceMetrics
from compshift.serve.model import KEYS, Query, ServedModel, TooLargeError, service_sentence, split_answer

PREDICTING = {
    "/predict": "Predict the targets of rows, with the probability of every value.",
    "/predict_set": "Return the classes that cannot be excluded for each row, at a coverage.",
    "/explain": "Return the most probable group of each row, how reliable that is, and what speaks for it.",
}
"""Endpoints that take rows, with a summary of each."""

READING = {
    "/health": "Say which model is served, and that it answers.",
    "/metrics": "Return metrics in Prometheus' format.",
    "/example": "Return the body of a request with one row.",
    "/docs": "Describe the service on one page.",
    "/openapi.json": "Describe the service as OpenAPI.",
}
"""Endpoints without a body, with a summary of each."""

MAX_TOGETHER = 64
"""Maximum number of requests whose rows are predicted together."""

MAX_TOGETHER_BYTES = 1 << 16
"""Maximum size of the bodies of requests that are predicted together; a larger one gains nothing by it."""


@dataclass(frozen=True)
class Limits:
    """Limits on requests."""

    max_rows: int = 1000
    max_bytes: int = 8 << 20
    timeout: float = 30.0  # seconds for reading a request and computing its answer
    max_concurrency: int = 128  # requests in progress, read, waiting or computed
    workers: int = 2  # threads that compute answers


class Waiting:
    """Requests to one endpoint that wait for a thread, and the function that computes the answers of several."""

    def __init__(self, compute: Callable[[list[bytes]], list[bytes | Exception]], *, together: bool) -> None:
        self._compute = compute
        self._most = MAX_TOGETHER if together else 1
        self._requests: deque[tuple[bytes, Future[bytes]]] = deque()
        self._lock = Lock()

    def add(self, body: bytes) -> Future[bytes]:
        """Add a request, and return the future of its answer."""
        future: Future[bytes] = Future()
        with self._lock:
            self._requests.append((body, future))
        return future

    def work(self) -> None:
        """Answer the first request that waits, and others with it; another thread may have done so already."""
        taken = [one for one in self._take() if one[1].set_running_or_notify_cancel()]
        if not taken:
            return
        try:
            answers = self._compute([body for body, _ in taken])
        except Exception as error:
            answers = [error] * len(taken)
        for (_, future), answer in zip(taken, answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _take(self) -> list[tuple[bytes, Future[bytes]]]:
        """Remove the first requests from the queue, up to the limits."""
        taken: list[tuple[bytes, Future[bytes]]] = []
        size = 0
        with self._lock:
            while self._requests and len(taken) < self._most:
                size += len(self._requests[0][0])
                if taken and size > MAX_TOGETHER_BYTES:
                    break
                taken.append(self._requests.popleft())
        return taken


class Gate:
    """Admits requests up to the limits, and computes their answers in threads."""

    def __init__(self, limits: Limits, metrics: ServiceMetrics, *, one_thread: bool) -> None:
        self.limits = limits
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(limits.workers, "predict", _limit_openmp if one_thread else None)
        self._active, self._lock = 0, Lock()

    async def answer(self, request: Request, waiting: Waiting) -> Response:
        """Read the body of a request and return its answer, which another thread computes."""
        with self._lock:
            if self._active >= self.limits.max_concurrency:
                raise HTTPException(
                    503,
                    f"{self._active} requests are in progress, which is the limit: try again in a second",
                    {"Retry-After": "1"},
                )
            self._active += 1
            self._metrics.active.set(self._active)
        future: Future[bytes] | None = None
        start = time.monotonic()
        try:
            body = await self._body(request)
            future = waiting.add(body)
            future.add_done_callback(self._leave)
            self._pool.submit(waiting.work)
            left = self.limits.timeout - (time.monotonic() - start)
            content = await asyncio.wait_for(asyncio.wrap_future(future), max(left, 0.001))
        except TimeoutError:
            raise HTTPException(
                504,
                f"the answer took longer than {self.limits.timeout:g} s: send fewer rows, or try again when the "
                "service is less busy",
            ) from None
        finally:
            if future is None:
                self._leave(None)
        return Response(content, media_type="application/json")

    def close(self) -> None:
        """Drop what waits; a thread that computes ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: Future[bytes] | None) -> None:
        """Count a request as finished. One whose time was over counts until its thread is free again."""
        with self._lock:
            self._active -= 1
            self._metrics.active.set(self._active)

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request, which must be JSON within the limits."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, f"the content type is {kind!r}: send JSON, with Content-Type: application/json")
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise HTTPException(415, f"the content encoding is {encoding!r}: send the body without one")
        limit = self.limits.max_bytes
        too_large = HTTPException(413, f"the body has more than {limit} bytes: send fewer rows per request")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limit:
                        raise too_large
                    chunks.append(chunk)
        except TimeoutError:
            raise HTTPException(
                408, f"the body did not arrive within {self.limits.timeout:g} s: send it faster, or in parts"
            ) from None
        except ClientDisconnect:
            raise HTTPException(400, "the connection was closed before the body was complete") from None
        return b"".join(chunks)


def _limit_openmp() -> None:
    """Let the loops of LightGBM that this thread starts use no other threads."""
    threadpool_limits(1, user_api="openmp")


def create_app(model: ServedModel, limits: Limits) -> FastAPI:
    """Return the service of a model as an ASGI application; raise an InputError if the model cannot predict."""
    model.predict(model.read(model.example(), 1))  # also imports what predictions need
    metrics = ServiceMetrics(model)
    gate = Gate(limits, metrics, one_thread=not model.has_network)
    started = time.time()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with threadpool_limits(1, user_api="blas"):
            yield
        gate.close()

    app = FastAPI(
        title=f"compshift: {model.name}",
        version=__version__,
        description="Predictions that keep working on combinations of attributes that are absent from training.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    answers = {"/predict": model.predict, "/predict_set": model.predict_set, "/explain": model.explain}
    for path, summary in PREDICTING.items():
        keys = (*KEYS, "coverage") if path == "/predict_set" else KEYS
        schema = request_schema(model, coverage="coverage" in keys)
        compute = _computation(model, metrics, limits, path, answers[path], keys)
        app.post(
            path,
            summary=summary,
            responses={
                200: _json_content("The answer", answer_schema(path)),
                **{status: _json_content(reason, answer_schema("error")) for status, reason in ERRORS.items()},
            },
            openapi_extra={"requestBody": _json_content("Rows", schema, example=model.example())},
        )(_endpoint(gate, Waiting(compute, together=path == "/predict")))

    @app.get("/health", summary=READING["/health"])
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "model": model.name,
            "targets": list(model.clf.targets_.names),
            "attributes": [name for name in model.clf.space_.names if name not in model.clf.targets_.names],
            "version": __version__,
            "seconds_up": round(time.time() - started, 3),
        }

    @app.get("/metrics", summary=READING["/metrics"], response_class=Response)
    async def prometheus() -> Response:
        content = await asyncio.to_thread(generate_latest, metrics.registry)
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/example", summary=READING["/example"])
    async def example() -> dict[str, Any]:
        return model.example()

    async def docs(request: Request) -> HTMLResponse:
        text = page(model, limits, str(request.base_url).rstrip("/"), {"POST": PREDICTING, "GET": READING})
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    app.get("/docs", include_in_schema=False)(docs)
    app.get("/", include_in_schema=False)(docs)

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _error(error.status_code, str(error.detail), dict(error.headers or {}))

    async def not_found(request: Request, _: Exception) -> Response:
        known = ", ".join([*PREDICTING, *READING])
        return _error(404, f"there is no endpoint {request.url.path[:80]!r}: the endpoints are {known}")

    async def wrong_method(request: Request, _: Exception) -> Response:
        allowed = "POST" if request.url.path in PREDICTING else "GET"
        return _error(405, f"{request.url.path!r} does not take {request.method}: use {allowed}", {"Allow": allowed})

    async def bad_input(_: Request, error: Exception) -> Response:
        assert isinstance(error, InputError)
        return _error(413 if isinstance(error, TooLargeError) else 422, service_sentence(error))

    async def unexpected(_: Request, error: Exception) -> Response:
        return _error(500, f"an unexpected error occurred ({type(error).__name__}): its cause is in the service's log")

    app.add_exception_handler(404, not_found)
    app.add_exception_handler(405, wrong_method)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(InputError, bad_input)
    app.add_exception_handler(Exception, unexpected)
    app.add_middleware(Observed, metrics=metrics, endpoints=(*PREDICTING, *READING))
    return app


ERRORS = {
    413: "More rows or bytes than are accepted",
    422: "Content that the model cannot read",
    503: "More requests in progress than are accepted",
    504: "No answer within the time limit",
}
"""Meaning of each status code of an error."""


def _computation(
    model: ServedModel,
    metrics: ServiceMetrics,
    limits: Limits,
    path: str,
    answer: Callable[[Query], dict[str, Any]],
    keys: tuple[str, ...],
) -> Callable[[list[bytes]], list[bytes | Exception]]:
    """Return the function that makes answers, or errors, of bodies; threads call it."""

    def one(content: Any) -> bytes | Exception:
        try:
            query = model.read(content, limits.max_rows, keys)
            found = to_json(answer(query), inf_nan_mode="null")
        except Exception as error:
            return error
        metrics.predicted(path, query)
        return found

    def joined(blocks: list[list[Any]]) -> list[bytes | Exception]:
        """Predict the rows of several requests together; return nothing if one of them has an error."""
        rows = [row for block in blocks for row in block]
        if len(blocks) == 1 or len(rows) > limits.max_rows:
            return []
        try:
            query = model.read({"rows": rows}, len(rows), keys)
            found = split_answer(answer(query), list(map(len, blocks)))
        except Exception:  # each request is then computed by itself, and gets its own error
            return []
        metrics.predicted(path, query)
        return [to_json(part, inf_nan_mode="null") for part in found]

    def together(bodies: list[bytes]) -> list[bytes | Exception]:
        contents = [_parsed(body) for body in bodies]
        plain = [number for number, content in enumerate(contents) if _has_only_rows(content)]
        found = dict(zip(plain, joined([contents[number]["rows"] for number in plain]), strict=False))
        return [
            content if isinstance(content, InputError) else found[number] if number in found else one(content)
            for number, content in enumerate(contents)
        ]

    return together


def _parsed(body: bytes) -> Any:
    """Return the content of a body, or the error if it is not JSON."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        return InputError(f"the body is not JSON ({error}): send an object with 'rows'")


def _has_only_rows(content: Any) -> bool:
    """Return whether a request has rows and nothing that would make it differ from others."""
    return (
        isinstance(content, dict)
        and list(content) == ["rows"]
        and isinstance(content["rows"], list)
        and bool(content["rows"])
    )


def _json_content(description: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the description of a body in JSON, as OpenAPI has it."""
    return {"description": description, "content": {"application/json": {"schema": schema, **more}}}


def _endpoint(gate: Gate, waiting: Waiting) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def endpoint(request: Request) -> Response:
        return await gate.answer(request, waiting)

    return endpoint


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; ``port`` 0 is any free one.

    It has the protocol of its address, because asyncio sends without delay only on sockets that say they are TCP.
    """
    listening = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        if os.name == "posix":  # elsewhere the option would allow a port that is in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
        return listening
    except (OSError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        sentence = (str(error.strerror) if isinstance(error, socket.gaierror) else reason(error)).lower()
        raise InputError(
            f"cannot listen on port {port} of {host!r} ({sentence}): pass another --port, or another --host"
        ) from None


def run(app: FastAPI, listening: socket.socket, timeout: float) -> None:
    """Serve an application until a signal stops it; requests in progress have ``timeout`` seconds to end."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=math.ceil(timeout)
    )
    uvicorn.Server(config).run([listening])


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error as JSON with one sentence."""
    return Response(to_json({"error": one_line(sentence)}), status, headers, media_type="application/json")
