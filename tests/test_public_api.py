"""A change of the public API is seen: it is a line of a file that a commit changes."""

import pytest

pytest.importorskip("torch")

from tests.public_api import SNAPSHOT, public_api


def test_the_public_api_is_the_one_that_was_written_down():
    known, found = SNAPSHOT.read_text(encoding="utf-8").splitlines(), public_api()
    gone = [line for line in known if line not in found]
    new = [line for line in found if line not in known]
    assert not gone, f"gone or changed, which breaks what users wrote: {gone}"
    assert not new, f"new: run python -m tests.public_api and commit {SNAPSHOT.name}: {new}"
