"""The table of published addresses, and tables of others."""

import gzip
import io
import tarfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from compshift._errors import InputError
from compshift.data import addresses, archives
from compshift.data.addresses import fetch, read_source
from compshift.data.benchmarks import BENCHMARKS, benchmark
from compshift.data.download import check_address

DOWNLOADS = [name for name in BENCHMARKS if not benchmark(name).bundled]


@pytest.mark.parametrize("name", DOWNLOADS)
def test_published_addresses(name):
    """Every data set that must be downloaded has files, on encrypted connections, in a folder that its loader knows."""
    source = read_source(name)
    assert source.files
    assert source.terms
    assert all(address.startswith("https://") for file in source.files for address in file.addresses)
    markers = [PurePosixPath(packaging.marker).parts[0] for packaging in benchmark(name).packagings]
    assert source.top in markers


def test_data_sets_with_the_same_files():
    assert read_source("celeba5") == read_source("celeba")
    assert [file.expected.archive for file in read_source("celeba").files] == [True, False, False]


def test_the_table_on_the_page(tmp_path):
    """The mirror in the documentation is a valid table, whose files the loader knows."""
    page = (Path(__file__).parents[2] / "docs" / "researchers.md").read_text()
    (tmp_path / "mirror.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    files = read_source("multinli", tmp_path / "mirror.toml").files
    assert [file.folder for file in files] == ["multinli", "multinli/data"]
    assert files[0].expected.digests


def test_bundled_data_sets_are_not_fetched(tmp_path):
    with pytest.raises(InputError, match="penguins is bundled with compshift: there is nothing to download"):
        fetch(benchmark("penguins"), tmp_path)


def test_by_hand(tmp_path):
    """A data set without addresses ends in the sentence that says what to do."""
    table = tmp_path / "t.toml"
    table.write_text("[waterbirds]\n")
    with pytest.raises(InputError, match=r"cannot be downloaded by a program: by hand, get waterbird_.* and unpack it"):
        fetch(benchmark("waterbirds"), tmp_path / "root", table=table)
    assert not (tmp_path / "root").exists()


GOOD = {"name": '"a.zip"', "folder": '"waterbirds"', "addresses": '["https://a.org/a.zip"]'}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": '"../a.zip"'}, "has the name '../a.zip'"),
        ({"name": '"b/a.zip"'}, "has the name 'b/a.zip'"),
        ({"name": '""'}, "has the name ''"),
        ({"name": '".hidden"'}, "has the name '.hidden'"),
        ({"folder": '"/tmp"'}, "has the folder '/tmp'"),
        ({"folder": '"a/../.."'}, "has the folder 'a/../..'"),
        ({"folder": "'a\\b'"}, "has the folder"),
        ({"folder": '"~/a"'}, "has the folder '~/a'"),
        ({"folder": "3"}, "has the folder 3"),
        ({"addresses": "[]"}, "give it a list of addresses"),
        ({"addresses": '"https://a.org"'}, "give it a list of addresses"),
        ({"addresses": '["file:///etc/passwd"]'}, "is not an http or https address"),
        ({"size": "-1"}, "has the size -1"),
        ({"size": "true"}, "has the size True"),
        ({"md5": '"123"'}, "has the md5 '123'"),
        ({"sha256": f'"{"G" * 64}"'}, "has the sha256 'GGG"),
        ({"unpack": '"yes"'}, "has unpack = 'yes'"),
        ({"sha512": '"a"'}, "the key 'sha512' is not known"),
    ],
)
def test_wrong_entries(tmp_path, changes, sentence):
    table = tmp_path / "t.toml"
    lines = [f"{key} = {value}" for key, value in {**GOOD, **changes}.items()]
    table.write_text("[[waterbirds.files]]\n" + "\n".join(lines) + "\n")
    with pytest.raises(InputError) as error:
        read_source("waterbirds", table)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the data set 'waterbirds' is not known"),
        ("[waterbirds", "is not valid TOML"),
        ("waterbirds = 3", "is not a data set"),
        ("[waterbirds]\nfiles = 3", "is not a data set"),
        ("[waterbirds]\nfiles = [3]", "is not a data set"),
        ("[waterbirds]\nsame_as = 'waterbird'", "is not a data set"),
        ("[waterbirds]\nsame_as = 3", "is not a data set"),
        ("\xff", "is not valid TOML"),
        ("#" * (1 << 21), "is larger than 1,048,576 bytes"),
        (
            "".join(f"[[waterbirds.files]]\nname='a'\nfolder='{name}'\naddresses=['http://a.org']\n" for name in "ab"),
            "have different folders",
        ),
    ],
)
def test_wrong_tables(tmp_path, text, sentence):
    table = tmp_path / "t.toml"
    table.write_text(text, encoding="latin-1")
    with pytest.raises(InputError) as error:
        read_source("waterbirds", table)
    assert sentence in str(error.value)
    with pytest.raises(InputError, match=r"cannot be read \(No such file"):
        read_source("waterbirds", tmp_path / "no.toml")


@pytest.mark.parametrize(
    "address",
    ["", "a.org/file", "ftp://a.org/file", "https:///file", "http://a.org:99999/f", "http://a.org:x/f", "http://a b/f",
     "http://a.org/\nf", "http://é.org/f", "http://[a/f", "https://me:secret@a.org/f"],
)  # fmt: skip
def test_wrong_addresses(address):
    with pytest.raises(InputError, match="the address"):
        check_address(address)


def test_number_of_addresses():
    with pytest.raises(InputError, match=r"multinli has 2 files .* but 1 address was passed: pass one per file"):
        read_source("multinli", None, ["https://a.org/f"])
    assert read_source("waterbirds", None, ["https://a.org/f"]).files[0].addresses == ("https://a.org/f",)
    assert read_source("celeba", None, ["https://a.org/f"] * 3).files[0].expected.digests


def test_number_of_entries_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_ENTRIES", 10)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number in range(11):
            archive.addfile(tarfile.TarInfo(f"d/{number}"))
    (tmp_path / "a.tar.gz").write_bytes(packed.getvalue())
    with pytest.raises(InputError, match="has more than 10 entries"):
        archives.unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_data_behind_the_end_is_bounded(tmp_path):
    """What follows the end of a tar archive is read for gzip's checksum, but not without limit."""
    info = tarfile.TarInfo("a")
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(info.tobuf() + bytes(4 << 20)))
    with pytest.raises(InputError, match="designed to exhaust memory"):
        archives.unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_a_bar_around_every_step(tmp_path, monkeypatch):
    """Downloads and unpacking are shown, each under the name of its file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    titles = []

    @contextmanager
    def bar(title):
        titles.append(title)
        yield lambda _done, _total: None

    def received(_address, target, *_):
        target.write_bytes(packed.getvalue())
        return "a.org"

    monkeypatch.setattr(addresses, "download", received)
    with pytest.raises(InputError, match="the downloaded files are not a complete copy of metashift"):
        fetch(benchmark("metashift"), tmp_path / "root", bar=bar)
    assert titles == ["metashift.tar.gz", "unpacking metashift.tar.gz"]
