"""The HTTP service of a model: endpoints, limits, and one plain sentence for every error.

A request passes ``Gate``, which limits how many are in progress, reads the body within the limits, and computes the
answer in a pool of threads. While a thread computes, NumPy releases Python's lock; BLAS and LightGBM have one thread for
each of them, so that many requests do not compete for the cores. Networks use all cores, for one request at a time.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from threadpoolctl import threadpool_limits

from compshift import __version__
from compshift._errors import InputError, one_line, reason
from compshift.serve.description import POLICY, answer_schema, page, request_schema
from compshift.serve.metrics import ServiceMetrics
from compshift.serve.model import KEYS, Query, ServedModel, TooLargeError, service_sentence

PREDICTING = {
    "/predict": "Predict the targets of rows, with the probability of every value.",
    "/predict_set": "Return the classes that cannot be excluded for each row, at a coverage.",
    "/explain": "Return the most probable group of each row, and how reliable the prediction is.",
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

MAX_DRAINED_BYTES = 64 << 20
"""Maximum size of a rejected body that is read to its end, because many clients read the answer only after sending."""

DRAIN_SECONDS = 2.0
"""Maximum time for which a rejected body is read."""


@dataclass(frozen=True)
class Limits:
    """Limits on requests."""

    max_rows: int = 1000
    max_bytes: int = 8 << 20
    timeout: float = 30.0  # seconds for reading a request and computing its answer
    max_concurrency: int = 128  # requests in progress, read, waiting or computed
    workers: int = 2  # threads that compute answers


class Gate:
    """Admits requests up to the limits, and computes their answers in threads."""

    def __init__(self, limits: Limits, metrics: ServiceMetrics, *, one_thread: bool) -> None:
        self.limits = limits
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(limits.workers, "predict", _limit_openmp if one_thread else None)
        self._active, self._lock = 0, Lock()

    async def answer(self, request: Request, compute: Callable[[bytes], bytes]) -> Response:
        """Read the body of a request and return what ``compute`` makes of it in another thread."""
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
            future = self._pool.submit(compute, body)
            future.add_done_callback(self._leave)
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


class Observed:
    """ASGI middleware that counts answers and their latencies, and reads what is left of a rejected body."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, complete = time.perf_counter(), 500, False

        async def observed_receive() -> Message:
            nonlocal complete
            message = await receive()
            complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400 and not complete and scope["method"] == "POST":
                    if status != 408:
                        await _drain(observed_receive, lambda: complete)
                    if not complete:  # the rest of the body cannot be told from another request
                        message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            await self._app(scope, observed_receive, observed_send)
        finally:
            path = scope["path"]
            endpoint = path if path in PREDICTING or path in READING else "other"
            self._metrics.answered(endpoint, status, time.perf_counter() - start)


async def _drain(receive: Receive, is_complete: Callable[[], bool]) -> None:
    """Read and forget the rest of a body, within limits."""
    size = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while not is_complete() and size <= MAX_DRAINED_BYTES:
                size += len((await receive()).get("body", b""))
    except TimeoutError:
        pass


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
        app.post(
            path,
            summary=summary,
            responses={
                200: {"description": "The answer", "content": {"application/json": {"schema": answer_schema(path)}}},
                **{
                    status: {"description": reason, "content": {"application/json": {"schema": answer_schema("error")}}}
                    for status, reason in ERRORS.items()
                },
            },
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema, "example": model.example()}},
                }
            },
        )(_endpoint(gate, _computation(model, metrics, limits, path, answers[path], keys)))

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
    app.add_middleware(Observed, metrics=metrics)
    return app


ERRORS = {
    413: "More rows or bytes than are accepted",
    422: "Content that the model cannot read",
    503: "More requests in progress than are accepted",
    504: "No answer within the time limit",
}
"""What the status of an error means."""


def _computation(
    model: ServedModel,
    metrics: ServiceMetrics,
    limits: Limits,
    path: str,
    answer: Callable[[Query], dict[str, Any]],
    keys: tuple[str, ...],
) -> Callable[[bytes], bytes]:
    """Return the function that makes an answer of a body; threads call it."""

    def compute(body: bytes) -> bytes:
        try:
            content = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise InputError(f"the body is not JSON ({error}): send an object with 'rows'") from None
        query = model.read(content, limits.max_rows, keys)
        found = to_json(answer(query), inf_nan_mode="null")
        metrics.predicted(path, query)
        return found

    return compute


def _endpoint(gate: Gate, compute: Callable[[bytes], bytes]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def endpoint(request: Request) -> Response:
        return await gate.answer(request, compute)

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
