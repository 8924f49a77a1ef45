"""``compshift datasets get`` against a web site with troubles of every kind.

After each: the right files and exit code 0, or one sentence and exit code 2, without anything outside of the folder or
anything that the loader takes for the data set; then the same command on a site without troubles ends well.
"""

import hashlib
import json
import re
import socket
import stat
import tarfile
import time

import numpy as np
import pytest

from compshift.data import download
from compshift.data.benchmarks import benchmark
from tests.cli.fetching import MARKER, NAME, bomb, flipped, get, huge_header, judge, packed_zip, special, tar
from tests.data import trees
from tests.data.http_site import (
    LAST_MODIFIED,
    chunked,
    compressed,
    drip,
    garbage,
    held,
    page,
    redirect,
    refuse,
    send,
    silent,
    unmeasured,
)


def cuts(*places):
    return lambda good, _: [*(send(good, cut=place) for place in places), send(good)]


def answers(*made):
    """Answers that do not depend on the archive."""
    return lambda _good, _files: list(made)


def bad(make):
    """An archive that is sent as it should be, but is not as it should be."""
    return lambda good, files: [send(make(good, files))]


def grow(handler):
    """Send the client on and on."""
    handler.site.set(grow, path=f"{handler.path}x")  # before the client is told of it
    redirect(f"{handler.path}x")(handler)


MAX_SECONDS = 15  # of a run on a busy machine
OLD = np.random.default_rng(1).bytes(300_000)
DAMAGED = "is damaged or incomplete"
LEADS_OUT = "which may lead out of the folder"
LINK = "which is a link, a device or encrypted"
AGAIN = "3 times in a row"
ROWS = {
    "no trouble": (lambda good, _: [send(good)], None),
    "cut before the first byte": (cuts(0), None),
    "cut after a byte": (cuts(1), None),
    "cut in the middle": (cuts(200_000), None),
    "cut before the last byte": (lambda good, _: [send(good, cut=len(good) - 1), send(good)], None),
    "cut in the headers": (lambda good, _: [garbage(b"HTTP/1.1 200 OK\r\nContent-Le"), send(good)], None),
    "cut again and again": (cuts(*[50_000] * 7), None),
    "cut always at the same byte": (lambda good, _: [send(good, cut=9000, ranges=False)], f"of 4{'{rest}'}"),
    "a short body with the right length": (lambda good, _: [send(good[:-7], length=len(good), ranges=False)], AGAIN),
    "a longer body than announced": (lambda good, _: [send(good, length=300_000)], DAMAGED),
    "more after the announced body": (lambda good, _: [send(good + b"more", length=len(good))], None),
    "no ranges": (lambda good, _: [send(good, cut=300_000), send(good, ranges=False)], None),
    "no version of the file": (lambda good, _: [send(good, cut=300_000, etag=None, modified=None), send(good)], None),
    "only a date of the file": (lambda good, _: [send(good, cut=300_000, etag=None), send(good, etag=None)], None),
    "a weak version of the file": (
        lambda good, _: [send(good, cut=300_000, etag='W/"1"'), send(good, etag='W/"1"')], None),
    "another part than asked for": (
        lambda good, _: [send(good, cut=9), send(good, shift=-1), send(good)], None),
    "a part without a range": (lambda good, _: [send(good, cut=9), send(good, content_range=""), send(good)], None),
    "a part of a longer file": (
        lambda good, _: [send(good, cut=9), send(good, content_range="bytes 9-9999998/9999999"), send(good)], None),
    "changed meanwhile": (lambda good, _: [send(OLD, cut=200_000, etag='"old"'), send(good)], None),
    "changed meanwhile, If-Range ignored": (
        lambda good, _: [send((OLD * 2)[: len(good)], cut=200_000, etag='"old"'), send(good, heed=False)], None),
    "changed meanwhile, but not its date": (
        lambda good, _: [send(OLD, cut=200_000, etag=None), send(good, etag=None)], None),
    "shorter meanwhile": (lambda good, _: [send(good + OLD, cut=600_000), send(good, heed=False)], None),
    "404": (answers(refuse(404)), "error 404 (there is no such file)"),
    "403": (answers(refuse(403)), "error 403 (access is denied)"),
    "401": (answers(refuse(401, WWW_Authenticate="Basic")), "error 401 (a login is needed)"),
    "429, then fine": (lambda good, _: [refuse(429, Retry_After="0"), send(good)], None),
    "503, then fine": (lambda good, _: [refuse(503), refuse(503, Retry_After="soon"), send(good)], None),
    "503 in the middle": (lambda good, _: [send(good, cut=200_000), refuse(503), send(good)], None),
    "500 for ever": (answers(refuse(500)), f"error 500, {AGAIN}"),
    "204": (answers(refuse(204)), "the HTTP code 204 instead of the file"),
    "a part that nobody asked for": (answers(refuse(206, Content_Range="bytes 0-0/1")), "the HTTP code 206"),
    "a redirection": (answers(redirect("/other")), None),
    "a redirection in the middle": (lambda good, _: [send(good, cut=200_000), redirect("/other")], None),
    "a redirection to itself": (answers(redirect("/file")), "redirects in circles"),
    "a redirection that grows": (answers(grow), "redirects in circles"),
    "a redirection to a file": (answers(redirect("file:///etc/passwd")), "not http or https"),
    "a redirection to FTP": (answers(redirect("ftp://127.0.0.1:{port}/file")), "not http or https"),
    "a redirection to data": (answers(redirect("data:text/plain,hello")), "not http or https"),
    "a redirection to nowhere": (answers(refuse(302)), "redirects in circles"),
    "drips, then fine": (lambda good, _: [drip(good), send(good)], None),
    "drips": (lambda good, _: [drip(good)], "bytes in 0.4 s"),
    "silence, then fine": (lambda good, _: [silent(), send(good)], None),
    "silence": (answers(silent()), "there is no answer (timed out)"),
    "silence in the middle": (lambda good, _: [held(good, 100_000, 2), send(good)], None),
    "not HTTP": (answers(garbage()), AGAIN),
    "a web page": (answers(page()), "sends a web page, not the file"),
    "a web page without tags": (answers(page(text=b"Please sign in")), "sends a web page, not the file"),
    "a web page of another type": (answers(page("application/octet-stream", b"\n <HTML><body>")), "sends a web page"),
    "a text": (answers(send(b"not found")), "is not a zip, tar or tar.gz archive"),
    "an empty file": (answers(send(b"")), "is not a zip, tar or tar.gz archive"),
    "compressed for the way": (lambda good, _: [compressed(good)], None),
    "compressed for the way, cut": (
        lambda good, _: [compressed(good, cut=90_000), compressed(good)], None),
    "called compressed": (lambda good, _: [send(good, headers={"Content-Encoding": "x-gzip"})], None),
    "called compressed, but not": (answers(send(OLD, headers={"Content-Encoding": "gzip"})), "cannot be decoded"),
    "another encoding": (lambda good, _: [send(good, headers={"Content-Encoding": "br"})], "the encoding 'br'"),
    "chunks": (lambda good, _: [chunked(good)], None),
    "chunks, cut": (lambda good, _: [chunked(good, cut=200_000), send(good)], None),
    "no length": (lambda good, _: [unmeasured(good)], None),
    "no length, cut": (lambda good, _: [unmeasured(good[:200_000])], DAMAGED),
    "no compression": (bad(lambda _, files: tar(files, "w")), None),
    "zip": (bad(lambda _, files: packed_zip(files)), None),
    "../ in tar": (bad(lambda _, files: tar({**files, "../../outside": b"x"})), LEADS_OUT),
    "../ within tar": (bad(lambda _, files: tar({"a/../../../outside": b"x", **files})), LEADS_OUT),
    "an absolute path in tar": (bad(lambda _, files: tar({**files, "/proc/self/cwd/outside": b"x"})), LEADS_OUT),
    "../ in zip": (bad(lambda _, files: packed_zip({**files, "../../outside": b"x"})), LEADS_OUT),
    "an absolute path in zip": (bad(lambda _, files: packed_zip({**files, "/proc/self/cwd/outside": b"x"})), LEADS_OUT),
    "a backslash in zip": (bad(lambda _, files: packed_zip({**files, "..\\outside": b"x"})), LEADS_OUT),
    "a symbolic link out": (
        bad(lambda _, files: tar(files, extra=special("up", tarfile.SYMTYPE, "../..", "up/outside"))), LINK),
    "a hard link": (bad(lambda _, files: tar(files, extra=special("passwd", tarfile.LNKTYPE, "/etc/passwd"))), LINK),
    "a device": (bad(lambda _, files: tar(files, extra=special("null", tarfile.CHRTYPE))), LINK),
    "a pipe": (bad(lambda _, files: tar(files, extra=special("pipe", tarfile.FIFOTYPE))), LINK),
    "a symbolic link in zip": (
        bad(lambda _, files: packed_zip({**files, "up": b"../.."}, modes=[("up", stat.S_IFLNK | 0o777)])), LINK),
    "a bomb": (bad(lambda *_: bomb()), "designed to exhaust memory"),
    "a bomb in a header": (bad(lambda *_: huge_header()), "designed to exhaust memory"),
    "a bomb in zip": (bad(lambda *_: packed_zip({"zeros": bytes(32 << 20)})), "designed to exhaust memory"),
    "a truncated tar.gz": (bad(lambda good, _: good[: len(good) // 2]), DAMAGED),
    "a tar.gz without its end": (bad(lambda good, _: good[:-5]), DAMAGED),
    "a truncated tar": (bad(lambda _, files: tar(files, "w")[:200_000]), DAMAGED),
    "a tar cut between two files": (
        bad(lambda _, files: tar(files, "w")[: 512 + -(-len(files[MARKER]) // 512) * 512]), "its end is missing"),
    "a truncated zip": (bad(lambda _, files: packed_zip(files)[:-30]), DAMAGED),
    "a flipped byte in tar.gz": (bad(lambda good, _: flipped(good, 250_000)), DAMAGED),
    "a flipped byte in zip": (bad(lambda _, files: flipped(packed_zip(files), 250_000)), DAMAGED),
    "an empty archive": (bad(lambda *_: tar({})), "without files"),
    "another layout": (
        bad(lambda _, files: tar({f"in/{name}": files[name] for name in files})), "it holds 'civilcomments/in'"),
    "another table": (bad(lambda _, files: tar({**files, MARKER: b"a,b\n1,2\n"})), "has no column 'comment_text'"),
}  # fmt: skip


@pytest.mark.parametrize("trouble", ROWS)
def test_trouble(trouble, call, site, tmp_path, files, archive):
    make, expected = ROWS[trouble]
    site.set(send(archive), path="/other")
    site.set(*make(archive, files))
    (tmp_path / "beside").write_text("unchanged")
    started = time.monotonic()
    expected = expected and expected.replace("{rest}", f"{len(archive):,}"[1:])
    result = get(call, tmp_path, "--address", site.url())
    judge(result, tmp_path, expected, files)
    assert time.monotonic() < started + MAX_SECONDS
    if expected is not None:
        site.set(send(archive))
        judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)
    assert {path.name for path in tmp_path.iterdir()} == {"beside", "root"}


def inventory(folder):
    """Content of all files below a folder, None for folders."""
    paths = sorted(folder.rglob("*")) if folder.is_dir() else []
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize(("etag", "sent"), [('"one"', '"one"'), ('W/"one"', LAST_MODIFIED), (None, LAST_MODIFIED)])
def test_a_cut_download_is_continued(call, site, tmp_path, files, archive, etag, sent):
    site.set(send(archive, cut=150_000, etag=etag), send(archive, etag=etag))
    judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)
    assert [headers.get("Range") for _, headers in site.requests] == [None, "bytes=150000-"]
    assert site.requests[1][1]["If-Range"] == sent
    assert site.sent == len(archive)


def table(tmp_path, site, **keys):
    """Write a table of addresses."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    lines += ['name = "archive.tar.gz"', f'folder = "{NAME}"', f'addresses = ["{site.url("/gone")}", "{site.url()}"]']
    path = tmp_path / "mirror.toml"
    path.write_text(f'[{NAME}]\nterms = "free"\n[[{NAME}.files]]\n' + "\n".join(lines) + "\n")
    return "--from", str(path)


@pytest.mark.parametrize("key", ["size", "md5", "sha256"])
def test_sizes_and_checksums(call, site, tmp_path, files, archive, key):
    """Wrong bytes are rejected, also where they came in two parts; the next run succeeds."""
    right = {
        "size": len(archive),
        "md5": hashlib.md5(archive).hexdigest(),
        "sha256": hashlib.sha256(archive).hexdigest(),
    }
    mirror = table(tmp_path, site, **{key: right[key]})
    wrong = archive + b"\0" if key == "size" else flipped(archive, 250_000)
    for answers in ([send(wrong)], [chunked(wrong)]):
        site.set(*answers)
        expected = f"not {right[key]:,}" if key == "size" else f"the {key} checksum"
        judge(get(call, tmp_path, *mirror), tmp_path, expected, files)
    if key != "size":  # two versions of one length and date
        site.set(send(wrong, cut=300_000, etag=None), send(archive, etag=None))
    else:
        site.set(send(archive))
    result = get(call, tmp_path, *mirror)
    judge(result, tmp_path, None, files)
    assert f"{NAME}: free\n" in result.err
    assert "the data set" not in result.err


def test_what_is_printed(call, site, tmp_path, archive):
    site.set(send(archive))
    result = get(call, tmp_path, "--address", site.url())
    host = f"127.0.0.1:{site.port}"
    assert result.out.startswith(f"civilcomments is complete in {tmp_path / 'root'}, fetched from {host}\n")
    assert "7 rows of text, found as civilcomments/all_data_with_identities.csv (as published)" in result.out
    assert re.search(r"^published +148304 +24278 +71854 *$", result.out, re.MULTILINE)
    assert f"civilcomments_v1.0.tar.gz: {len(archive):,} bytes from {host}" in result.err
    before, requests = inventory(tmp_path / "root"), len(site.requests)
    result = get(call, tmp_path, "--address", site.url())
    assert result.out.startswith(f"civilcomments is complete in {tmp_path / 'root'}, already there: nothing was")
    result = json.loads(get(call, tmp_path, "--json").out)
    assert (result["fetched"], result["hosts"], result["rows"]["train"]) == (False, [], 3)
    assert result["published"] == {"train": 148304, "val": 24278, "test": 71854}
    assert (inventory(tmp_path / "root"), len(site.requests)) == (before, requests)


def test_folders_that_are_there(call, site, tmp_path, files, archive):
    site.set(send(archive))
    folder = tmp_path / "root" / NAME
    folder.mkdir(parents=True)
    (folder / "own.txt").write_text("mine")
    result = get(call, tmp_path, "--address", site.url())
    assert result.returncode == 2
    assert "exists, but does not hold all of civilcomments" in result.err
    (folder / MARKER).write_bytes(files[MARKER][:100])
    result = get(call, tmp_path, "--address", site.url())
    assert result.returncode == 2
    assert "exists, but is incomplete or damaged" in result.err
    assert site.requests == []
    for path in folder.iterdir():
        path.unlink()
    judge(get(call, tmp_path, "--address", site.url()), tmp_path, None, files)  # an empty folder is replaced


@pytest.mark.filterwarnings("ignore:.*the download is incomplete")  # the tree has few groups
def test_several_files(call, site, tmp_path):
    """A data set of which one file is missing does not appear, and what was received is not fetched again."""
    trees.nicopp(tmp_path, "plain")
    images = {
        str(path.relative_to(tmp_path / "nicopp")): path.read_bytes() for path in (tmp_path / "nicopp").rglob("*.jpg")
    }
    names = (tmp_path / "nicopp/dg_label_id_mapping.json").read_bytes()
    site.set(send(packed_zip(images)), path="/images")
    both = ["--address", site.url("/images"), "--address", site.url("/names")]
    for answer, sentence in (
        (refuse(404), "error 404"),
        (page(), "sends a web page"),
        (unmeasured(names), "does not state the file's length"),
        (send(names[:-9]), "is not a JSON object"),
    ):
        site.set(answer, path="/names")
        result = get(call, tmp_path, *both, name="nico++")
        assert result.returncode == 2
        assert sentence in result.err.splitlines()[-1]
        assert benchmark("nico++").find(tmp_path / "root") is None
    assert sum(path == "/images" for path, _ in site.requests) == 1
    site.set(send(names), path="/names")
    assert get(call, tmp_path, *both, name="nico++").returncode == 0
    assert len(benchmark("nico++").load(tmp_path / "root")) == len(images)
    result = get(call, tmp_path, "--address", site.url("/images"), name="nico++")
    assert "nico++ has 2 files ('track_1.zip', 'dg_label_id_mapping.json') but 1 address was passed" in result.err


def test_a_missing_image_is_noticed(call, site, tmp_path):
    trees.waterbirds(tmp_path, "authors")
    base = tmp_path / "waterbirds"
    whole = {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}
    short = {name: content for name, content in whole.items() if not name.endswith(trees.BIRDS[3][0])}
    site.set(send(tar(short)), send(tar(whole)))
    result = get(call, tmp_path, "--address", site.url(), name="waterbirds")
    assert result.returncode == 2
    assert f"1 of {len(trees.BIRDS)} images are missing, such as '{trees.BIRDS[3][0]}'" in result.err
    assert list((tmp_path / "root").glob("w*")) == []
    assert get(call, tmp_path, "--address", site.url(), name="waterbirds").returncode == 0


def test_no_connection(call, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        result = get(call, tmp_path, "--address", f"http://127.0.0.1:{taken.getsockname()[1]}/file")
    judge(result, tmp_path, "there is no connection (Connection refused), 3 times in a row", {})
    assert "pass another address, or by hand, get civilcomments_v1.0.tar.gz" in result.err


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "1e300"])
def test_wrong_timeouts(call, tmp_path, timeout):
    result = get(call, tmp_path, "--timeout", timeout)
    judge(result, tmp_path, "pass a number of seconds above 0 and up to 86400", {})
    assert not (tmp_path / "root").exists()


def test_never_from_https_to_http():
    request = download.request.Request("https://a.org/file")
    follow = download._Redirects().redirect_request
    assert follow(request, None, 302, "", {}, "https://b.org/file").full_url == "https://b.org/file"
    for address in ("http://a.org/file", "ftp://a.org/file", "file:///etc/passwd"):
        with pytest.raises(download.HTTPError) as error:
            follow(request, None, 302, "", {}, address)
        error.value.close()
    old = download.request.Request("http://a.org/file")
    assert follow(old, None, 301, "", {}, "https://a.org/file").full_url == "https://a.org/file"
