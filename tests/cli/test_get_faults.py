"""``compshift datasets get`` after faults of the machine: what was received is used, no part passes for the whole."""

import json
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.cli.commands import COMMAND, environment
from tests.cli.fetching import MARKER, NAME, get, judge, tar
from tests.data.http_site import held, send

OLD = np.random.default_rng(1).bytes(300_000)


@pytest.mark.parametrize(
    "left", ["an older version", "another address", "no state", "damaged state", "too long", "whole"]
)
def test_parts_that_were_left(call, site, tmp_path, files, archive, left):
    work = tmp_path / "root" / ".fetch-civilcomments"
    work.mkdir(parents=True)
    part = work / "civilcomments_v1.0.tar.gz.part"
    content = {"too long": archive + OLD, "whole": archive}.get(left, OLD)
    part.write_bytes(content)
    address = site.url("/gone" if left == "another address" else "/file")
    etag = '"old"' if left == "an older version" else '"one"'
    total = len(archive) if left == "whole" else len(archive) + len(OLD) + 1
    state = json.dumps({"address": address, "validator": etag, "total": total, "encoding": ""})
    if left != "no state":
        part.with_name(f"{part.name}.json").write_text(state[: 20 if left == "damaged state" else None])
    site.set(send(archive))
    judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)
    assert len(site.requests) == {"too long": 2, "whole": 0}.get(left, 1)


def start(site, root, *, limit=None, program=COMMAND):
    """Start the command in a process of its own; ``limit`` is the largest file in bytes that it can write."""
    command = [*program, "datasets", "get", NAME, "--root", str(root), "--address", site.url()]

    def prepare():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would their children
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        command, env={**environment(), "NO_PROXY": "127.0.0.1"}, preexec_fn=prepare, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_until(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_two_processes_then_a_kill(call, site, tmp_path, files, archive):
    """A second process is turned away; when the first is killed, the next continues its download."""
    root = tmp_path / "root"
    part = root / ".fetch-civilcomments" / "civilcomments_v1.0.tar.gz.part"
    site.set(held(archive, 300_000), send(archive))
    first = start(site, root)
    try:
        wait_until(lambda: part.exists() and part.stat().st_size > 0)
        result = get(call, tmp_path, "--address", site.url())
        judge(result, tmp_path, "another process is fetching civilcomments into", files)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    received = part.stat().st_size
    assert 0 < received <= 300_000
    judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)
    assert site.requests[-1][1]["Range"] == f"bytes={received}-"


KILLED = """
import os, signal, sys
from compshift.data import archives
from compshift.cli.main import main

check = archives._check_entry
archives._check_entry = lambda *a: os.kill(os.getpid(), signal.SIGKILL) if a[2] else check(*a)
main()
"""


def test_killed_while_unpacking(call, site, tmp_path, files, archive):
    """What was unpacked before is not taken for the data set, and the archive is not fetched again."""
    root = tmp_path / "root"
    site.set(send(archive))
    ended = start(site, root, program=[sys.executable, "-c", KILLED])
    ended.communicate(timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert not (root / NAME).exists()
    left = root / ".fetch-civilcomments/tree" / NAME
    assert (left / MARKER).read_bytes() == files[MARKER]
    (left / "of another archive").touch()
    result = get(call, tmp_path, "--address", site.url())
    judge(result, tmp_path, None, files)
    assert "fetched from an earlier download" in result.out
    assert len(site.requests) == 1
    assert sorted(path.name for path in (root / NAME).iterdir()) == [MARKER, "notes"]


@pytest.mark.parametrize("limit", [100_000, 405_000])
def test_full_disk(call, site, tmp_path, files, archive, limit):
    """The limit is reached while downloading, or while unpacking a file that is larger than its archive."""
    files = {**files, "zeros": bytes(1 << 20)}
    archive = tar(files)
    site.set(send(archive))
    ended = start(site, tmp_path / "root", limit=limit)
    ended.out, ended.err = ended.communicate(timeout=60)
    judge(ended, tmp_path, "cannot be written (File too large): free some space, and run the same command again", files)
    judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)
    assert [headers.get("Range") for _, headers in site.requests] == (
        [None, "bytes=100000-"] if limit == 100_000 else [None]
    )


def test_too_little_space(call, site, tmp_path, files, archive, monkeypatch):
    from shutil import _ntuple_diskusage

    site.set(send(archive))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: _ntuple_diskusage(10**6, 10**6, 1000))
        result = get(call, tmp_path, "--address", site.url())
    judge(result, tmp_path, "0.00 GB are needed for the rest of civilcomments_v1.0.tar.gz", files)
    judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)


def test_interrupted(call, site, tmp_path, files, archive):
    site.set(held(archive, 300_000), send(archive))
    first = start(site, tmp_path / "root")
    part = tmp_path / "root/.fetch-civilcomments/civilcomments_v1.0.tar.gz.part"
    wait_until(lambda: part.exists() and part.stat().st_size > 0)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert (first.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: run the same command again to continue"
    judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)
