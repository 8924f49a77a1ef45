"""A web site on this machine whose answers a test chooses."""

import gzip
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_SECONDS = 20  # after which a request that is still being answered is given up
LAST_MODIFIED = "Wed, 01 Jan 2020 00:00:00 GMT"


class Site:
    """Answer the n-th request for a path by the n-th of its answers, and further ones by the last."""

    def __init__(self):
        self.answers = {}  # path → list of functions of the handler
        self.requests = []  # (path, headers) of all requests
        self.sent = 0  # bytes of bodies
        self.port = 0

    def url(self, path="/file"):
        return f"http://127.0.0.1:{self.port}{path}"

    def set(self, *answers, path="/file"):
        """Replace the answers for a path."""
        self.answers[path] = list(answers)


@contextmanager
def running_site():
    """Serve a site until the end of the block."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = MAX_SECONDS

        def do_GET(self):
            self.site, self.close_connection = site, True
            site.requests.append((self.path, dict(self.headers)))
            answers = site.answers.get(self.path, [refuse(404)])
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            with suppress(ConnectionError):
                answer(self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(MAX_SECONDS)


def write(handler, content):
    handler.wfile.write(content)
    handler.site.sent += len(content)


def send(
    content, *, cut=None, etag='"one"', modified=LAST_MODIFIED, ranges=True, heed=True, shift=0, length=None,
    content_range=None, headers=None,
):  # fmt: skip
    """Send a file, or the part that was asked for.

    ``cut`` is the number of bytes after which the connection ends, ``heed`` whether If-Range is looked at, ``shift``
    how far the part is from the one asked for, ``length`` and ``content_range`` what headers say instead of the truth.
    """

    def answer(handler):
        wanted = handler.headers.get("Range", "")
        same = not heed or handler.headers.get("If-Range") in (etag, modified)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and ranges and same else 0
        if start >= len(content) > 0:
            return refuse(416)(handler)
        start += shift if start else 0
        body = content[start:]
        handler.send_response(206 if start else 200)
        if start:
            told = f"bytes {start}-{len(content) - 1}/{len(content)}"
            handler.send_header("Content-Range", told if content_range is None else content_range)
        said = {"ETag": etag, "Last-Modified": modified, "Content-Type": "application/octet-stream"}
        said |= {"Content-Length": len(body) if length is None else length, **(headers or {})}
        for name, value in said.items():
            if value is not None:
                handler.send_header(name, str(value))
        handler.end_headers()
        return write(handler, body if cut is None else body[:cut])

    return answer


def refuse(code, **headers):
    """Answer with an error, or any other code, and no content."""

    def answer(handler):
        handler.send_response(code)
        for name, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


def redirect(target, code=302):
    """Send the client to another address; ``{port}`` is that of the site."""
    return lambda handler: refuse(code, Location=target.replace("{port}", str(handler.site.port)))(handler)


def page(kind="text/html", text=b"<!DOCTYPE html><html><body>Please sign in</body></html>"):
    """Answer with a web page."""
    return send(text, etag=None, modified=None, headers={"Content-Type": kind})


def drip(content, pause=0.05):
    """Send a byte now and then."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        end = time.monotonic() + MAX_SECONDS
        for byte in content:
            if time.monotonic() > end:
                return
            write(handler, bytes([byte]))
            time.sleep(pause)

    return answer


def silent(seconds=3.0):
    """Say nothing, then end the connection."""
    return lambda _: time.sleep(seconds)


def garbage(text=b"\x00\xffnonsense\r\n\r\n"):
    """Send what is not HTTP."""
    return lambda handler: write(handler, text)


def chunked(content, cut=None, size=30_000):
    """Send a file in chunks, without its length."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        whole = content if cut is None else content[:cut]
        for start in range(0, len(whole), size):
            part = whole[start : start + size]
            write(handler, b"%x\r\n%s\r\n" % (len(part), part))
        if cut is None:
            write(handler, b"0\r\n\r\n")

    return answer


def unmeasured(content):
    """Send a file without its length, which ends with the connection."""
    return send(content, etag=None, modified=None, headers={"Content-Length": None})


def compressed(content, cut=None):
    """Send a file compressed for the way."""
    return send(gzip.compress(content, mtime=0), headers={"Content-Encoding": "gzip"}, cut=cut)


def held(content, size, seconds=15):
    """Send the first bytes, then wait."""

    def answer(handler):
        send(content, cut=size)(handler)
        silent(seconds)(handler)

    return answer
