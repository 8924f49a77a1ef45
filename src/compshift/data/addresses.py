"""Fetch published data sets from the addresses in ``addresses.toml``, or from mirrors in a table of the same form.

Files are downloaded to the hidden folder ``.fetch-FOLDER`` beside the target folder, and unpacked there. If the
unpacked data set can be loaded and no image is missing, it is moved to the target by a single rename, so the target
never holds an incomplete data set.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from compshift._errors import InputError, check_name, listing, shown
from compshift._files import check_folder, check_ordinary, check_path, locked
from compshift.data.archives import Progress, unpack
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset, ImageFiles
from compshift.data.download import Expected, Patience, check_address, download, mismatch

TABLE = Path(__file__).with_name("addresses.toml")
"""Path of the table of addresses that is shipped with compshift."""

MAX_TABLE_BYTES = 1 << 20
"""Maximum size of a table of addresses."""

DIGESTS = {"md5": 32, "sha256": 64}
"""Number of hexadecimal digits of each checksum that a table can contain."""

PATIENCE = Patience()
"""Default timeout and number of attempts of a download."""

FILE_KEYS = ("name", "folder", "unpack", "addresses", "size", *DIGESTS)
"""Keys that the entry of a file in a table of addresses may have."""

Bar = Callable[[str], AbstractContextManager[Progress]]
"""Takes the title of a step, and returns a context manager that yields the function to call with its progress."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and the folder below the root that it is put or unpacked into."""

    name: str
    folder: str
    addresses: tuple[str, ...]  # of the same file, to be tried in turn
    expected: Expected


@dataclass(frozen=True)
class RemoteFiles:
    """The files that make up a data set, and its terms of use."""

    files: tuple[RemoteFile, ...]
    terms: str = ""

    @property
    def top(self) -> str:
        """Name of the folder below the root that holds the data set."""
        return PurePosixPath(self.files[0].folder).parts[0]


@dataclass(frozen=True)
class Fetched:
    """A data set on disk: whether it was downloaded now, and the hosts that it came from."""

    data: GroupedDataset
    new: bool
    hosts: tuple[str, ...] = ()


def read_source(name: str, table: Path | None = None, addresses: Sequence[str] = ()) -> RemoteFiles:
    """Return the files of a data set from a table of addresses.

    If ``addresses`` are given, there must be one for each file, in order; it replaces the addresses in the table.
    """
    path = TABLE if table is None else check_path(table)
    content = _read_table(path)
    check_name(f"in {str(path)!r}, the data set", name, list(content))
    entry = _entry(content, name, path)
    files = tuple(_remote_file(item, f"{name} in {str(path)!r}") for item in entry.get("files", []))
    if len({PurePosixPath(file.folder).parts[0] for file in files}) > 1:
        raise InputError(
            f"the files of {name} in {str(path)!r} have different folders: let the folder of every file begin with the "
            "same name"
        )
    if addresses and len(addresses) != len(files):
        raise InputError(
            f"{name} has {len(files)} file{'s' * (len(files) != 1)} ({listing(file.name for file in files)}) but "
            f"{len(addresses)} address{'es were' if len(addresses) > 1 else ' was'} passed: pass one per file, in order"
        )
    if addresses:
        files = tuple(
            replace(file, addresses=(check_address(address),)) for file, address in zip(files, addresses, strict=True)
        )
    return RemoteFiles(files, str(entry.get("terms", "")))


def _read_table(path: Path) -> dict[str, Any]:
    """Read a table of addresses: a TOML file of at most ``MAX_TABLE_BYTES``."""
    try:
        with check_ordinary(path, given_pipes=True).open("rb") as stream:
            content = stream.read(MAX_TABLE_BYTES + 1)
        if len(content) > MAX_TABLE_BYTES:
            raise InputError(
                f"the table of addresses {str(path)!r} is larger than {MAX_TABLE_BYTES:,} bytes: remove the data sets "
                "that are not needed"
            )
        return tomllib.loads(content.decode())
    except OSError as error:
        raise InputError(
            f"the table of addresses {str(path)!r} cannot be read ({error.strerror}): check its path"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the table of addresses {str(path)!r} is not valid TOML ({error}): correct the file"
        ) from None


def _entry(content: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return the entry of a data set or, if it has ``same_as``, the entry of the data set that this key names."""
    entry = content[name]
    same = entry.get("same_as") if isinstance(entry, dict) else None
    if same is not None:
        entry = content.get(same) if isinstance(same, str) else None
    files = entry.get("files", []) if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(files, list) or not all(isinstance(item, dict) for item in files):
        raise InputError(f"[{name}] in {str(path)!r} is not a data set: add [[{name}.files]] or the key same_as")
    return entry


def _remote_file(item: Mapping[str, Any], where: str) -> RemoteFile:
    """Check the entry of a file in a table of addresses, and return it as a ``RemoteFile``."""
    for key in item:
        check_name(f"in a file of {where}, the key", key, FILE_KEYS)
    name, folder, addresses, size = (item.get(key) for key in ("name", "folder", "addresses", "size"))
    for key, value, nested, expected in (
        ("name", name, False, "a file name without folders"),
        ("folder", folder, True, "a relative path, such as 'birds/images'"),
    ):
        parts = PurePosixPath(value).parts if isinstance(value, str) else ()
        if not parts or parts[0][0] in "/.~" or {"..", "\\"} & {*parts, *str(value)} or (len(parts) > 1 and not nested):
            raise InputError(f"a file of {where} has the {key} {shown(value)}: write {expected}")
    if not isinstance(addresses, list) or not addresses or not all(isinstance(address, str) for address in addresses):
        raise InputError(
            f"the file {name!r} of {where} has the addresses {shown(addresses)}: give it a list of addresses"
        )
    if size is not None and (type(size) is not int or size < 1):
        raise InputError(f"the file {name!r} of {where} has the size {shown(size)}: give it in bytes, or leave it out")
    digests = {key: item[key] for key in DIGESTS if key in item}
    for key, digest in digests.items():
        if not isinstance(digest, str) or len(digest) != DIGESTS[key] or set(digest) - set("0123456789abcdef"):
            raise InputError(f"the file {name!r} of {where} has the {key} {shown(digest)}: give its hexadecimal digits")
    archive = item.get("unpack", True)
    if not isinstance(archive, bool):
        raise InputError(f"the file {name!r} of {where} has unpack = {shown(archive)}: write true or false")
    return RemoteFile(str(name), str(folder), tuple(map(check_address, addresses)), Expected(archive, size, digests))


def fetch(
    known: Benchmark,
    root: Path,
    *,
    table: Path | None = None,
    addresses: Sequence[str] = (),
    patience: Patience = PATIENCE,
    notify: Callable[[str], None] = lambda _: None,
    bar: Bar = lambda _: nullcontext(lambda _done, _total: None),
) -> Fetched:
    """Download a published data set below the folder ``root``, unless it is there already.

    ``table`` is a table of addresses to use instead of the published one, and ``addresses`` has one address per file.
    """
    if known.bundled:
        raise InputError(f"{known.name} is bundled with compshift: there is nothing to download")
    root = check_path(root)
    check_folder(root, "to put the data set into")
    source = read_source(known.name, table, addresses)
    found = _present(known, root)
    if found is not None:
        return Fetched(found, new=False)
    by_hand = f"by hand, {known.download}" if known.download else ""
    if not source.files:
        raise InputError(f"{known.name} cannot be downloaded by a program: {by_hand}")
    root.mkdir(parents=True, exist_ok=True)
    work = root / f".fetch-{source.top}"
    work.mkdir(exist_ok=True)
    with locked(work / "lock") as mine:
        if not mine:
            raise InputError(f"another process is fetching {known.name} into {str(root)!r}: wait until it has finished")
        found = _present(known, root)  # another process may have finished it in the meantime
        if found is not None:
            return Fetched(found, new=False)
        _check_free(known, root / source.top)
        notify(f"{known.name}: {source.terms}" if source.terms else f"fetching {known.name}")
        hosts = []
        for file in source.files:
            try:
                hosts.append(_download(file, work, patience, notify, bar))
            except InputError as error:
                raise InputError(
                    f"{known.name} was not downloaded ({error}): pass another address, or {by_hand}"
                ) from None
        _unpack_all(known, source, work, bar)
        if (root / source.top).is_dir():
            (root / source.top).rmdir()
        os.rename(work / "tree" / source.top, root / source.top)
    shutil.rmtree(work, ignore_errors=True)  # a process that waits for the lock finds the data set complete
    return Fetched(known.load(root), new=True, hosts=tuple(dict.fromkeys(filter(None, hosts))))


def _present(known: Benchmark, root: Path) -> GroupedDataset | None:
    """Load the data set if it is below ``root``; raise an InputError if it is there but cannot be used."""
    packaging = known.find(root)
    if packaging is None:
        return None
    try:
        data = known.load(root)
        _check_images(data)
    except InputError as error:
        folder = str(root / PurePosixPath(packaging.marker).parts[0])
        raise InputError(
            f"{known.name} exists, but is incomplete or damaged ({error}): move {folder!r} away to fetch it again"
        ) from None
    return data


def _check_free(known: Benchmark, target: Path) -> None:
    """Check that the folder ``target`` does not exist or is empty."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise InputError(
            f"{str(target)!r} exists, but does not hold all of {known.name}: complete it by hand ({known.download}), "
            "or move it away to fetch the data set again"
        )


def _download(file: RemoteFile, work: Path, patience: Patience, notify: Callable[[str], None], bar: Bar) -> str:
    """Download a file to ``work`` from the first of its addresses that works; return the host.

    A file that an earlier run downloaded is kept; the host is then empty.
    """
    target = work / file.name
    if target.is_file() and not mismatch(target, file.expected):  # downloaded by an earlier run that was killed
        return ""
    problems = []
    for address in file.addresses:
        try:
            with bar(file.name) as progress:
                host = download(address, target, file.expected, patience, progress, notify)
            notify(f"{file.name}: {target.stat().st_size:,} bytes from {host}")
            return host
        except InputError as error:
            problems.append(str(error))
    raise InputError("; ".join(problems))


def _unpack_all(known: Benchmark, source: RemoteFiles, work: Path, bar: Bar) -> None:
    """Unpack the files into ``work/tree`` and check that the data set loads; if not, remove the files and raise."""
    tree = work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    try:
        for file in source.files:
            folder = tree / file.folder
            if file.expected.archive:
                with bar(f"unpacking {file.name}") as progress:
                    unpack(work / file.name, folder, progress)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(work / file.name, folder / file.name)
        if known.find(tree) is None:
            markers = listing(packaging.marker for packaging in known.packagings)
            held = sorted(str(path.relative_to(tree)) for path in (tree / source.top).iterdir())
            raise InputError(f"it holds {listing(held, 4)}, but none of {markers}")
        _check_images(known.load(tree))
    except InputError as error:
        shutil.rmtree(tree, ignore_errors=True)
        for file in source.files:
            (work / file.name).unlink(missing_ok=True)
        sentence = str(error).replace(f"{tree}{os.sep}", "").replace(str(tree), ".")
        raise InputError(
            f"the downloaded files are not a complete copy of {known.name} ({sentence}): pass another address"
        ) from None
    if hasattr(os, "sync"):
        os.sync()  # flush the content to disk before the folder is renamed, so that it survives a power failure


def _check_images(data: GroupedDataset) -> None:
    """Check that the file of every image exists."""
    if isinstance(data.samples, ImageFiles):
        absent = [name for name in data.samples.names if not (data.samples.root / str(name)).is_file()]
        if absent:
            raise InputError(f"{len(absent)} of {len(data)} images are missing, such as {shown(absent[0])}")
