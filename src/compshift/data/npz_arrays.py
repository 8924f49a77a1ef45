"""Arrays out of ``.npz`` files that anybody may have written."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift._files import check_ordinary
from compshift.data.unpacked_size import check_unpacked


def read_arrays(path: Path, wanted: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Those of the wanted arrays that the file has, and the names of all that it has.

    The members that are measured are the ones that are read, each to the size that it was measured by and no further.
    """
    try:
        with check_ordinary(path).open("rb") as stream, zipfile.ZipFile(stream) as archive:
            members: dict[str, zipfile.ZipInfo] = {}
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if name in members:
                    raise InputError(f"{str(path)!r} has two arrays {name!r}: write it again, with one of each name")
                members[name] = entry
            chosen = {name: members[name] for name in wanted if name in members}
            check_unpacked(
                sum(entry.file_size for entry in chosen.values()),
                path.stat().st_size,
                path,
                "write it with numpy.savez, not compressed, if it is right",
            )
            return {name: _read_array(archive, entry) for name, entry in chosen.items()}, list(members)
    except InputError:
        raise
    except Exception as error:  # damaged archives make their readers fail in every way there is
        if isinstance(error, OSError) and error.errno:
            raise  # the system's, not the file's
        raise InputError(
            f"{str(path)!r} cannot be read as .npz: it is damaged, another kind of file, or holds Python objects; "
            "write arrays of numbers and text with numpy.savez"
        ) from None


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    """The array of a member. What runs on beyond the member's size is never unpacked."""
    with archive.open(entry) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)
