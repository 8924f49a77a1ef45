"""A site on this machine that answers like the Hugging Face hub, as far as uploads and downloads of models need it."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_of_me"


class Hub:
    """Repositories of one account, ``me``: files by revision, and what was asked of them."""

    def __init__(self):
        self.repositories = {}  # name → {"private": …, "commits": [(message, {path: bytes})]}
        self.requests = []
        self.url = ""

    def files(self, name):
        return self.repositories[name]["commits"][-1][1]

    def answer(self, path, content, token):
        """Status, JSON or bytes, and headers of the answer."""
        path = path.partition("?")[0]
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if path == "/api/repos/create":
            if token != TOKEN:
                return 401, {"error": "Invalid username or password."}, {}
            name = f"{content.get('organization') or 'me'}/{content['name']}"
            exists = name in self.repositories
            private = bool(content.get("private") or content.get("visibility") == "private")
            self.repositories.setdefault(name, {"private": private, "commits": [("initial", {})]})
            return 409 if exists else 200, {"url": f"{self.url}/{name}"}, {}
        found = re.match(r"/api/models/([^/]+/[^/]+)(?:/(\w+)/([^/]+))?$", path)
        if found:
            return self.api(*found.groups(), content)
        found = re.match(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$", path)
        if not found:
            return 404, {"error": "Not found"}, {}
        name, revision, file = found.groups()
        content = self.files(name)[file]
        return 200, content, {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": revision}

    def api(self, name, action, revision, content):
        if name not in self.repositories:
            return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        commits = self.repositories[name]["commits"]
        sha = f"{len(commits):040x}"
        if revision not in (None, "main", sha):
            return 404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"}
        files = commits[-1][1]
        if action == "preupload":
            return 200, {"files": [{**_plain(file), "uploadMode": "regular"} for file in content["files"]]}, {}
        if action == "commit":
            head, *operations = content
            new = dict(files)
            for operation in operations:
                value = operation["value"]
                if operation["key"] == "file":
                    new[value["path"]] = base64.b64decode(value["content"])
                else:
                    del new[value["path"]]
            commits.append((head["value"]["summary"], new))
            sha = f"{len(commits):040x}"
            return 200, {"success": True, "commitOid": sha, "commitUrl": f"{self.url}/{name}/commit/{sha}"}, {}
        entries = [
            {"type": "file", "path": path, "size": len(part), "oid": _digest(part)} for path, part in files.items()
        ]
        if action == "tree":
            return 200, entries, {}
        siblings = [{"rfilename": path} for path in files]
        return 200, {"id": name, "modelId": name, "sha": sha, "siblings": siblings, "private": False, "tags": []}, {}


def _plain(file):
    return {"path": file["path"], "shouldIgnore": False}


def _digest(content):
    return hashlib.sha1(content).hexdigest()


@contextmanager
def running_hub():
    """Serve a hub until the end of the block."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            lines = [json.loads(line) for line in body.splitlines()] if body else []
            content = lines if self.headers.get("Content-Type") == "application/x-ndjson" else (lines or [None])[0]
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            hub.requests.append((self.command, self.path))
            status, answer, headers = hub.answer(self.path, content, token)
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = handle_any  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)
