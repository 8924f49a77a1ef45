import errno
import fcntl
import os

import pytest

from compshift import InputError
from compshift._errors import system_sentence
from compshift._files import append_line, check_folder, check_target, locked, replacing, try_lock


def test_errors_of_the_system_as_sentences(tmp_path):
    with pytest.raises(OSError, match="cannot write") as caught, replacing(tmp_path / "f.csv"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
    assert system_sentence(caught.value) == (
        f"{str(tmp_path / 'f.csv')!r} cannot be written (No space left on device): free some space, and run the same "
        "command again"
    )
    assert system_sentence(PermissionError(errno.EACCES, "x", "in.npz")) == (
        "'in.npz' cannot be used (Permission denied): change the permissions, or choose another path"
    )
    assert system_sentence(OSError(errno.ENOSPC, "x")).startswith("No space left on device: free some space")
    assert system_sentence(OSError("just\nwords")) == "just words"
    with pytest.raises(OSError, match="encoder error") as caught, replacing(tmp_path / "f.png"):
        raise OSError("encoder error -2")  # of a library, without a number
    assert "None" not in system_sentence(caught.value)


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing/file")
    with pytest.raises(InputError, match=r"'.*loop' is a link that leads to itself: choose another path"):
        check_target(tmp_path / "loop")
    with pytest.raises(InputError, match=r"there is no folder '.*/missing' to write 'file' to"):
        check_target(tmp_path / "nowhere")
    for name in ("loop", "nowhere"):
        with pytest.raises(InputError, match="is a link to nothing: remove it, or pass another folder for the results"):
            check_folder(tmp_path / name, "for the results")


def test_a_torn_line_is_ended_before_the_next(tmp_path):
    path = tmp_path / "log"
    append_line(path, "one")
    path.write_bytes(path.read_bytes() + b"hal\xff")
    append_line(path, "two")
    assert path.read_bytes() == b"one\nhal\xff\ntwo\n"
    with pytest.raises(OSError, match="cannot write: No such file") as caught:
        append_line(tmp_path / "gone" / "log", "one")
    assert caught.value.filename == str(tmp_path / "gone" / "log")


def test_a_lock_has_one_holder_and_needs_a_file_system_that_has_locks(tmp_path, monkeypatch):
    with locked(tmp_path / "lock") as alone, locked(tmp_path / "lock") as second:
        assert (alone, second) == (True, False)
    (tmp_path / "lock").write_text("1\nanother-host\n")  # a file is no holder
    held = try_lock(tmp_path / "lock")
    assert held is not None
    held.release()

    def missing(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    for name in ("lock", "new"):
        with pytest.raises(InputError, match="has no locks: choose a folder on another one"):
            try_lock(tmp_path / name)
    assert not (tmp_path / "new").exists()
