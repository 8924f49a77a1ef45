import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from compshift import GroupSpace, InputError, load
from compshift._errors import system_sentence
from compshift._files import (
    append_line,
    check_apart,
    check_folder,
    check_inside,
    check_ordinary,
    check_path,
    check_target,
    locked,
    parse_json,
    replacing,
    try_lock,
)
from compshift.cli.options import read_prior
from compshift.data.audit import read_group_counts
from compshift.data.feature_files import read_features, read_labels
from compshift.data.feature_store import FeatureStore
from compshift.data.table import load_table
from compshift.data.table_files import column_names

NOT_REGULAR = "is not a regular file but a pipe, device or socket: pass the path of a file"


def test_errors_of_the_system_become_sentences(tmp_path):
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
        raise OSError("encoder error -2")  # raised by a library, without errno
    assert "None" not in system_sentence(caught.value)


def test_links_that_lead_nowhere_raise(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing/file")
    with pytest.raises(InputError, match=r"'.*loop' is a symbolic link to itself: choose another path"):
        check_target(tmp_path / "loop")
    with pytest.raises(InputError, match=r"there is no folder '.*/missing' to write 'file' to"):
        check_target(tmp_path / "nowhere")
    for name in ("loop", "nowhere"):
        with pytest.raises(InputError, match="is a broken link: remove it, or pass another folder for the results"):
            check_folder(tmp_path / name, "for the results")


def test_an_incomplete_last_line_is_ended_before_the_next(tmp_path):
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
    (tmp_path / "lock").write_text("1\nanother-host\n")  # the file alone does not hold the lock
    held = try_lock(tmp_path / "lock")
    assert held is not None
    held.release()

    def missing(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    for name in ("lock", "new"):
        with pytest.raises(InputError, match="does not support locks: choose a folder on another"):
            try_lock(tmp_path / name)
    assert not (tmp_path / "new").exists()
    start = time.monotonic()
    with pytest.raises(InputError, match="does not support locks"):
        try_lock(tmp_path / "lock", patience=60)
    assert time.monotonic() - start < 30


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
class TestPipes:
    """Readers raise at a pipe instead of waiting for it; if one opened it, these tests would hang."""

    @pytest.fixture(autouse=True)
    def pipes(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for name in ("p.npz", "p.csv", "p.parquet", "p.safetensors", "p.toml", "p.py", "log"):
            os.mkfifo(name)
        for folder, name in (("shards", "part-00000.parquet"), ("whole", "_features.json"), ("run", "run.json")):
            (tmp_path / folder).mkdir()
            os.mkfifo(tmp_path / folder / name)

    @pytest.mark.parametrize(
        "read",
        [
            lambda: check_path("p.csv"),
            lambda: check_target("p.csv"),
            lambda: check_inside(Path("shards/part-00000.parquet"), Path("shards")),
            lambda: read_features("p.npz", ["a"]),
            lambda: read_features("shards", ["a"]),
            lambda: read_features("whole", ["a"]),
            lambda: read_labels("p.npz", ["a"]),
            lambda: read_group_counts(Path("p.csv"), ["a"]),
            lambda: read_group_counts(Path("p.npz"), ["a"]),
            lambda: read_group_counts(Path("p.parquet"), ["a"]),
            lambda: load_table("p.csv", target="a", features=["x"]),
            lambda: FeatureStore("p.parquet"),
            lambda: FeatureStore("shards").columns,
            lambda: column_names(Path("p.parquet")),
            lambda: read_prior("p.csv", GroupSpace.from_cardinalities([2, 2])),
            lambda: load("p.safetensors"),
        ],
    )
    def test_every_reader_raises(self, read):
        with pytest.raises(InputError, match=NOT_REGULAR):
            read()

    def test_a_backbone_raises(self, tmp_path):
        pytest.importorskip("transformers")
        from compshift.nn.backbones import load_backbone

        (tmp_path / "network").mkdir()
        os.mkfifo(tmp_path / "network" / "config.json")
        with pytest.raises(InputError, match=NOT_REGULAR):
            load_backbone(str(tmp_path / "network"), "images")

    def test_readers_of_training_and_benchmarks_raise(self):
        pytest.importorskip("torch")
        from compshift.cli.train_config import TrainConfig
        from compshift.methods.registry import Plugin
        from compshift.studies.growth import run_growth
        from compshift.training.folder import read_json

        for read in (
            lambda: load("run"),
            lambda: read_json(Path("run/run.json")),
            lambda: TrainConfig.read(Path("p.toml"), {}, [], Path("new")),
            lambda: Plugin.read("p.py"),
            lambda: run_growth([], Path("log")),
        ):
            with pytest.raises(InputError, match=NOT_REGULAR):
                read()

    def test_devices_raise(self):
        with pytest.raises(InputError, match="'/dev/zero' is not a regular file"):
            check_path("/dev/zero")
        with pytest.raises(InputError, match="'/dev/zero' is not a regular file"):
            check_ordinary(Path("/dev/zero"), given_pipes=True)

    def test_a_pipe_that_the_process_was_given_is_accepted(self):
        reader, writer = os.pipe()
        try:
            given = Path(f"/dev/fd/{reader}")
            assert check_ordinary(given, given_pipes=True) is given
            with pytest.raises(InputError, match="is not a regular file"):
                check_ordinary(given)
            with pytest.raises(InputError, match="is not a regular file"):
                check_ordinary(Path("p.toml"), given_pipes=True)
        finally:
            os.close(reader)
            os.close(writer)


def test_paths_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    with replacing("~/file") as temporary:
        temporary.write_text("a")
    assert check_path("~/file") == tmp_path / "file"
    assert (tmp_path / "file").read_text() == "a"
    assert str(check_path("~nobody-of-this-name/file")) == "~nobody-of-this-name/file"


def test_unpaired_surrogates_raise():
    assert parse_json(r'"\ud83e\udd86"') == "🦆"
    for text in (r'"\ud800"', rb'{"a\udfff": 1}'):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            parse_json(text)


def test_a_file_is_replaced_and_never_overwritten_in_place(tmp_path):
    """Whoever has the old file open keeps reading the old content."""
    path = tmp_path / "model"
    path.write_text("old")
    with path.open() as reader:
        with replacing(path) as temporary:
            temporary.write_text("new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_a_source_of_an_impossible_length_is_no_input(tmp_path):
    check_apart(tmp_path / "out", "x" * 5000, None)  # the reader of the source says what is wrong with it
