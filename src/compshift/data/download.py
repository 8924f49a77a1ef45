"""Download a file over HTTP: resume after a broken connection, retry after temporary errors, verify the result.

The bytes go to ``NAME.part``, which is renamed to ``NAME`` once its length and checksum are right. ``NAME.part.json``
records the address and the version (ETag or date) of the file that the bytes belong to, so that a later process can
resume the download, or start over if the file on the server has changed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from compshift import __version__
from compshift._errors import InputError, reason
from compshift._files import check_space, read_json_object, replacing, write_error
from compshift.data.archives import Progress
from compshift.data.untrusted import check_unpacked

CHUNK_BYTES = 1 << 18
"""Maximum number of bytes that are read from the network at once."""

MAX_DOWNLOAD_BYTES = 100 * 10**9
"""Maximum size of a download whose length the server does not announce."""

MAX_REDIRECTS = 8
"""Maximum number of redirections from one address."""

FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
"""Pause in seconds before the second attempt, and its maximum; every further attempt doubles it."""

MIN_BYTES_PER_SECOND = 1024
"""Mean speed over ``Patience.timeout`` seconds below which a connection counts as stalled."""

PROGRESS_BYTES = 1 << 16
"""Number of new bytes that an attempt must receive for the count of failed attempts to start again."""

TEMPORARY_CODES = (408, 425, 429)
"""HTTP status codes below 500 after which a request is retried; it is retried after all codes from 500 on too."""

WEB_PAGE = re.compile(rb"\s*(?:<!doctype\s+html|<html)", re.IGNORECASE)
"""Matches the beginning of a web page."""

GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, and how often to try again."""

    timeout: float = 60.0  # seconds without data, or below MIN_BYTES_PER_SECOND, after which an attempt fails
    attempts: int = 6  # failed attempts in a row, without PROGRESS_BYTES of new data, after which to give up


@dataclass(frozen=True)
class Expected:
    """Properties of a file that are known before its download."""

    archive: bool = True  # whether the file is an archive; unpacking then detects a truncated file
    size: int | None = None  # in bytes
    digests: Mapping[str, str] = field(default_factory=dict)  # algorithm → hexadecimal digest


class TransientError(Exception):
    """An error after which to try again; ``wait`` is the pause in seconds that the server asks for, if it does."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class _Partial:
    """Partial download on disk: the bytes received, and the address, version and length of the file on the server."""

    def __init__(self, target: Path, address: str) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self.address = address
        self._state = target.with_name(f"{target.name}.part.json")
        try:
            content = read_json_object(self._state)
        except (OSError, ValueError):
            content = {}
        if content.get("address") != address:
            content = {}
        self.validator, self.encoding = (str(content.get(name, "")) for name in ("validator", "encoding"))
        self.total = content["total"] if type(content.get("total")) is int else None

    @property
    def length(self) -> int:
        """Number of bytes received."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def whole(self) -> bool:
        """Whether the length of the file is known and all its bytes have been received."""
        return self.total is not None and self.length == self.total

    def restart(self, validator: str = "", total: int | None = None, encoding: str = "") -> None:
        """Delete the bytes received, and record the version, length and encoding of the file that will follow."""
        self.path.write_bytes(b"")
        self.validator, self.total, self.encoding = validator, total, encoding
        state = {"address": self.address, "validator": validator, "total": total, "encoding": encoding}
        with replacing(self._state) as temporary:
            temporary.write_text(json.dumps(state))

    def remove(self) -> None:
        """Delete the bytes received and their record."""
        self._state.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        self.validator, self.total, self.encoding = "", None, ""


def download(
    address: str,
    target: Path,
    expected: Expected,
    patience: Patience,
    progress: Progress = lambda _done, _total: None,
    notify: Callable[[str], None] = lambda _: None,
) -> str:
    """Download an address to the file ``target`` and return the host that sent it, after all redirections.

    After a temporary error, ``notify`` is called with a message, and the download is tried again. Other errors raise an
    InputError; its message has no remedy, which the caller adds.
    """
    partial = _Partial(target, check_address(address))
    host = urlsplit(address).netloc
    most = failures = 0
    while True:
        try:
            if partial.whole:
                resumed = True
            else:
                host, resumed = _receive(partial, expected, patience.timeout, progress)
            _finish(partial, target, expected, resumed=resumed)
            return host
        except TransientError as error:
            failures = 1 if partial.length > most + PROGRESS_BYTES else failures + 1
            most = max(most, partial.length)
            if failures >= patience.attempts:
                times = f", {failures} times in a row" if failures > 1 else ""
                raise InputError(f"{host}: {error}{times}") from None
            pause = min(MAX_PAUSE, FIRST_PAUSE * 2 ** (failures - 1) if error.wait is None else error.wait)
            notify(f"{host}: {error}; trying again in {pause:.0f} s")
            time.sleep(pause)


def check_address(address: str) -> str:
    """Return an address after checking that it is a complete http or https address."""
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if valid and parts.username is not None:
        raise InputError(f"the address {address!r} has a user name, which is not supported: pass one without")
    if not valid or not address.isascii() or re.search(r"[\s\x00-\x1f\x7f]", address):
        raise InputError(
            f"the address {address!r} is not an http or https address: pass one like https://host/file.zip"
        )
    return address


def _receive(partial: _Partial, expected: Expected, timeout: float, progress: Progress) -> tuple[str, bool]:
    """Receive the missing bytes; return the host, and whether the server resumed an earlier partial download."""
    start = partial.length if partial.validator else 0
    headers = {"User-Agent": f"compshift/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": partial.validator}
    with _open(partial, headers, timeout) as response:
        host = urlsplit(response.url).netloc
        if response.status == 206 and start:
            _check_range(response, partial, start)
        elif response.status == 200:
            start = 0
            _begin(response, partial, expected, host)
        else:
            raise InputError(f"{host}: it answers with the HTTP code {response.status} instead of the file")
        missing = 0 if partial.total is None else partial.total - partial.length
        check_space(partial.path.parent, missing, f"for the rest of {partial.path.stem}")
        _copy(response, partial, timeout, progress, host)
        ends_visibly = partial.total is not None or response.chunked
    if partial.total is not None and partial.length != partial.total:
        raise TransientError(f"the connection was cut after {partial.length:,} of {partial.total:,} bytes")
    if not partial.length and not ends_visibly:  # the headers may be truncated too
        raise TransientError("the connection was cut before the first byte")
    if not (ends_visibly or expected.archive or expected.size is not None or expected.digests):
        partial.remove()
        raise InputError(f"{host}: it does not state the file's length, so a truncated download could not be detected")
    return host, start > 0


def _open(partial: _Partial, headers: Mapping[str, str], timeout: float) -> HTTPResponse:
    """Send a request and return the response; raise a TransientError for temporary errors, an InputError for others."""
    host = urlsplit(partial.address).netloc
    try:
        response: HTTPResponse = _opener().open(
            request.Request(partial.address, headers=dict(headers)), timeout=timeout
        )
        return response
    except HTTPError as error:
        error.close()
        code = error.code
        if code == 416 and "Range" in headers:
            partial.remove()
            raise TransientError("it has no bytes after those received, so the download starts over") from None
        if code in TEMPORARY_CODES or code >= 500:
            wait = error.headers.get("Retry-After", "") if error.headers else ""
            seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 6 else None
            raise TransientError(f"it answers with the error {code}", seconds) from None
        if 300 <= code < 400:
            raise InputError(f"{host}: it redirects in circles, or to an address that is not http or https") from None
        meaning = {401: "a login is needed", 403: "access is denied", 404: "there is no such file", 410: "it is gone"}
        raise InputError(
            f"{host}: it answers with the error {code} ({meaning.get(code, 'request rejected')})"
        ) from None
    except URLError as error:
        cause = error.reason
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise InputError(f"{host}: its certificate is not valid ({cause.verify_message})") from None
        if isinstance(cause, socket.gaierror) and not partial.length:
            raise InputError(f"{host}: no host of that name is found; is this machine connected?") from None
        text = reason(cause) if isinstance(cause, Exception) else str(cause)
        raise TransientError(f"there is no connection ({text})") from None
    except (OSError, HTTPException, ValueError) as error:
        raise TransientError(f"there is no answer ({reason(error) or type(error).__name__})") from None


class _Redirects(request.HTTPRedirectHandler):
    """Follow redirections within http and https, and never back from https to http."""

    max_redirections = MAX_REDIRECTS
    max_repeats = 2

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after != "https" and (before, after) != ("http", "http"):
            raise HTTPError(newurl, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    """Return an opener that accepts only http and https addresses, not file, ftp or data addresses."""
    opener = request.OpenerDirector()
    for handler in (
        *(request.ProxyHandler(), request.HTTPHandler(), request.HTTPSHandler(), _Redirects()),
        *(request.HTTPDefaultErrorHandler(), request.HTTPErrorProcessor(), request.UnknownHandler()),
    ):
        opener.add_handler(handler)
    return opener


def _begin(response: HTTPResponse, partial: _Partial, expected: Expected, host: str) -> None:
    """Start the download from the first byte, and record the version and length that the response's headers state."""
    headers = response.headers
    if headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise _web_page(host)
    encoding = headers.get("Content-Encoding", "").strip().lower().removeprefix("x-")
    if encoding not in ("", "identity", "gzip"):
        raise InputError(f"{host}: it sends the file with the encoding {encoding!r}, which was not requested")
    length = headers.get("Content-Length", "")
    total = int(length) if length.isascii() and length.isdigit() and not response.chunked else None
    encoding = encoding.removeprefix("identity")
    if expected.size is not None and total is not None and not encoding and total != expected.size:
        raise InputError(f"{host}: the file has {total:,} bytes, not {expected.size:,}: it is another file")
    etag = headers.get("ETag", "")
    weak = not etag or etag.startswith("W/")  # different files may share a weak ETag
    partial.restart(headers.get("Last-Modified", "") if weak else etag, total, encoding)


def _check_range(response: HTTPResponse, partial: _Partial, start: int) -> None:
    """Check that a partial response continues the file after ``start`` bytes; otherwise start over."""
    found = re.fullmatch(
        r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", response.headers.get("Content-Range", "").strip()
    )
    etag = response.headers.get("ETag")
    same = etag is None or not partial.validator.startswith('"') or etag == partial.validator
    if found and same and int(found[1]) == start and found[3] in ("*", str(partial.total or found[3])):
        partial.total = partial.total if found[3] == "*" else int(found[3])
        return
    partial.remove()
    raise TransientError("it sends another part of the file than requested, so the download starts over")


def _copy(response: HTTPResponse, partial: _Partial, timeout: float, progress: Progress, host: str) -> None:
    """Append the body of a response to the partial file; raise a TransientError if the connection is too slow."""
    done = partial.length
    marked, at = done, time.monotonic()
    limit = MAX_DOWNLOAD_BYTES if partial.total is None else partial.total
    try:
        with partial.path.open("ab") as stream:
            progress(done, partial.total)
            while chunk := _read(response):
                if not done and WEB_PAGE.match(chunk):
                    raise _web_page(host)
                done += len(chunk)
                if done > limit:
                    raise InputError(f"{host}: it sends more than the {limit:,} bytes that the file may have")
                stream.write(chunk)
                progress(done, partial.total)
                if time.monotonic() - at > timeout:
                    if done - marked < MIN_BYTES_PER_SECOND * timeout:
                        raise TransientError(f"it sent only {done - marked:,} bytes in {timeout:g} s")
                    marked, at = done, time.monotonic()
            stream.flush()
            os.fsync(stream.fileno())
    except InputError:
        partial.remove()
        raise
    except OSError as error:  # a failed write to disk; network errors are TransientErrors
        raise write_error(error, partial.path) from error


def _read(response: HTTPResponse) -> bytes:
    """Return the bytes that have arrived, empty at the end of the body; a broken connection raises a TransientError."""
    try:
        return response.read1(CHUNK_BYTES)
    except (OSError, HTTPException, ValueError) as error:
        raise TransientError(f"the connection was cut ({reason(error) or type(error).__name__})") from None


def _finish(partial: _Partial, target: Path, expected: Expected, *, resumed: bool) -> None:
    """Check the size and checksum of a complete download and rename it to ``target``; delete it if they are wrong."""
    host = urlsplit(partial.address).netloc
    plain = partial.path.with_name(f"{partial.path.name}.plain")
    try:
        path = plain if partial.encoding and _undo_encoding(partial, plain, target.name, host) else partial.path
        wrong = mismatch(path, expected)
        if wrong:
            partial.remove()
            if resumed:  # its two parts may come from different versions of the file
                raise TransientError(f"the resumed file has {wrong}, so the download starts over")
            raise InputError(f"{host}: the file has {wrong}: it was damaged in transit or changed on the server")
        os.replace(path, target)
    finally:
        plain.unlink(missing_ok=True)
    partial.remove()


def mismatch(path: Path, expected: Expected) -> str:
    """Return which unexpected size or checksum a file has; an empty text if both are as expected."""
    size = path.stat().st_size
    if expected.size is not None and size != expected.size:
        return f"{size:,} bytes, not {expected.size:,}"
    for algorithm, digest in expected.digests.items():
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm).hexdigest()
        if found != digest:
            return f"the {algorithm} checksum {found}, not {digest}"
    return ""


def _undo_encoding(partial: _Partial, plain: Path, name: str, host: str) -> bool:
    """Decode a download that the server sent gzip-encoded to the file ``plain``; return whether it was decoded.

    Many servers declare a ``.gz`` file itself as gzip-encoded. Such a file is kept as it is, unless its decoded content
    is a gzip file again.
    """
    try:
        with gzip.open(partial.path) as source:
            if name.endswith((".gz", ".tgz")) and source.peek(2)[:2] != GZIP_MAGIC:
                return False
            with plain.open("wb") as stream:
                while chunk := source.read(CHUNK_BYTES):
                    check_unpacked(stream.tell() + len(chunk), partial.length, partial.path, "pass another address")
                    stream.write(chunk)
        return True
    except (EOFError, zlib.error, gzip.BadGzipFile):
        partial.remove()
        raise InputError(f"{host}: the file was sent gzip-encoded but cannot be decoded, so it is damaged") from None


def _web_page(host: str) -> InputError:
    """Return the error for a server that sends a web page instead of the file."""
    return InputError(f"{host}: it sends a web page, not the file: a login, a licence or a confirmation may be needed")
