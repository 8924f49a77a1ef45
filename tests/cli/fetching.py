"""Archives to fetch, good and bad, and the verdict on a run of ``compshift datasets get``."""

import gzip
import io
import stat
import tarfile
import zipfile

from compshift.data.benchmarks import benchmark

NAME, MARKER = "civilcomments", "all_data_with_identities.csv"
PATIENCE = ["--timeout", "0.4", "--attempts", "3"]


def tar(files, mode="w:gz", extra=()):
    """Pack files as a tar archive; ``extra`` has further entries, as TarInfo with content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for info, content in [*((tarfile.TarInfo(name), content) for name, content in files.items()), *extra]:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def special(name, kind, target="", *further):
    """An entry of a tar archive that is not a regular file, and further ones that are."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return [(info, b""), *((tarfile.TarInfo(name), b"x") for name in further)]


def packed_zip(files, method=zipfile.ZIP_DEFLATED, modes=()):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            info.external_attr = dict(modes).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return packed.getvalue()


def bomb():
    """A tar archive of a file of zeros, a thousand times as large."""
    info = tarfile.TarInfo("zeros")
    info.size = 32 << 20
    return gzip.compress(info.tobuf() + bytes(info.size + 1024))


def huge_header():
    """A tar archive with a large extended header, which readers keep in memory."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 3 << 20
    return gzip.compress(info.tobuf() + bytes(info.size + 1024))


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def get(call, tmp_path, *arguments, name=NAME):
    return call("datasets", "get", name, "--root", str(tmp_path / "root"), *PATIENCE, *arguments, cwd=tmp_path)


def judge(result, tmp_path, expected, files):
    """Check the end of a run: ``expected`` is None for the right files, else a part of the sentence."""
    root = tmp_path / "root"
    assert "Traceback" not in result.out + result.err
    if expected is None:
        assert result.returncode == 0, result.err
        assert {name: (root / NAME / name).read_bytes() for name in files} == files
        assert sorted(path.name for path in root.iterdir()) == [NAME]
        assert len(benchmark(NAME).load(root)) == 7
        return
    assert result.returncode == 2, (result.out, result.err)
    assert result.out == ""
    assert [line[:7] for line in result.err.splitlines() if "error: " in line] == ["error: "]
    assert expected in result.err.splitlines()[-1]
    assert len(result.err.splitlines()[-1]) < 810
    assert benchmark(NAME).find(root) is None
    assert not (root / NAME).exists()
