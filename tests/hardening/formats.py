"""A valid file of every format that the package reads, how it is read, and what must hold for the result."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from PIL import Image

import compshift as cs
from compshift.bench import results, selection
from compshift.bench.store import Store, write_view
from compshift.cli.options import read_prior
from compshift.cli.train_config import TrainConfig
from compshift.data import audit, feature_files, glue_cache
from compshift.data.dataset import ImageArrays, Texts
from compshift.data.images import broken_samples, check_image, read_image
from compshift.nn.huggingface import quiet
from compshift.training.folder import RunFolder, read_tensors
from tests.data import trees
from tests.hardening import mutations as m
from tests.hardening.verdicts import Check, no_probabilities
from tests.nn.models import bert, resnet
from tests.report.records import Made, write_results

BYTES: tuple[m.Mutation, ...] = (m.of_bytes,)
TABLE = (m.of_bytes, m.of_table, m.of_table)
JSON = (m.of_bytes, m.of_json, m.of_json)
LINES = (m.of_bytes, m.of_lines)
NAMES = ["bird", "place"]
SPACE = cs.GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea", "sand")))


class Format(NamedTuple):
    """A file, how it is read, a check of the result, and how often it is mutated."""

    name: str
    file: Path
    read: Callable[[], Any]
    check: Check
    mutations: tuple[m.Mutation, ...] = BYTES
    rounds: int = 150


def small_data() -> Any:
    """Features of six groups, 60 samples in three splits."""
    rng = np.random.default_rng(0)
    codes = np.stack([np.arange(60) % 2, np.arange(60) // 2 % 3], axis=1)
    X = rng.normal(size=(60, 4)) + codes @ rng.normal(size=(2, 4))
    return cs.data.GroupedDataset(X, SPACE, codes, np.arange(60) % 3)


def train_run(folder: Path, method: str = "erm", backbone: str = "linear", steps: int = 2) -> Path:
    """A short training run in a folder."""
    settings = cs.training.Settings(steps=steps, batch_size=16, eval_every=2)
    cs.training.train(small_data(), method, backbone, settings, folder=folder, device="cpu")
    return folder


def require(condition: Callable[[Any], Any]) -> Check:
    """Return a check that a condition holds."""
    return lambda found: None if condition(found) else f"invalid result {found!r:.100}"


@require
def valid_data(data: Any) -> bool:
    """Whether codes, split and features of a data set are in range."""
    inside = (data.codes >= 0).all() and (data.codes < np.array(data.space.cardinalities)).all()
    split = data.split is None or np.isin(data.split, (0, 1, 2)).all()
    finite = data.kind != "features" or np.isfinite(data.X).all()
    return len(data.codes) == len(data) > 0 and inside and split and finite


def predictions_problem(model: Any) -> str | None:
    """Complain about the probabilities of a classifier of four features."""
    return no_probabilities(model.predict_proba(np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)))


def feature_formats(folder: Path) -> Iterator[Format]:
    """Feature files, stores and folders of shards."""
    data = small_data()
    npz, plain, parquet, numbered, shards = (
        folder / name for name in ("a.npz", "plain.npz", "a.parquet", "numbered.parquet", "shards")
    )
    cs.data.write_features(npz, data)
    np.savez(plain, X=data.X, Z=data.codes, attribute_names=np.array(NAMES), split=data.split)
    frame = SPACE.frame(data.codes).assign(features=list(data.X), split=np.array(["train", "val", "test"])[data.split])
    frame.to_parquet(parquet, row_group_size=25)
    pd.DataFrame(data.X, columns=[f"f{i}" for i in range(4)]).join(frame[NAMES]).to_parquet(numbered)
    shards.mkdir()
    note = {b"compshift": json.dumps({"key": "k", "broken": []}).encode()}
    for number in range(2):
        part = pq.read_table(parquet).slice(30 * number, 30).replace_schema_metadata(note)
        pq.write_table(part, shards / f"part-{number:05d}.parquet")
    about = {"key": "k", "shards": 2, "rows": 60, "shard_rows": 30, "backbone": "resnet"}
    (shards / "_features.json").write_text(json.dumps(about))

    def whole(path: Path) -> Callable[[], Any]:
        return lambda: (feature_files.file_attributes(path), cs.data.read_features(path, NAMES[::-1]))[1]

    def store() -> Any:
        source = cs.data.FeatureStore(parquet, split="train")
        return [source.frame(["bird"]), *(block for _, block in source.blocks(7))]

    same_length = require(lambda found: len(found[0]) == sum(map(len, found[1:])))
    yield Format("npz", npz, whole(npz), valid_data, BYTES, 200)
    yield Format("npz, stored", plain, whole(plain), valid_data, BYTES, 300)
    yield Format("npz labels", plain, lambda: audit.read_group_counts(plain, NAMES), lambda _: None)
    yield Format("Parquet features", parquet, whole(parquet), valid_data, BYTES, 300)
    yield Format("Parquet columns", numbered, whole(numbered), valid_data, BYTES, 180)
    yield Format("Parquet store", parquet, store, same_length, BYTES, 250)
    yield Format("shard", shards / "part-00001.parquet", whole(shards), valid_data, BYTES, 180)
    yield Format("manifest", shards / "_features.json", whole(shards), valid_data, JSON, 200)


def table_formats(folder: Path) -> Iterator[Format]:
    """A user's own tables, and priors."""
    data = small_data()
    csv, tsv, parquet, prior = (folder / name for name in ("t.csv", "t.tsv", "t.parquet", "prior.csv"))
    frame = SPACE.frame(data.codes).assign(count=np.arange(60), number=data.X[:, 0], note=["a, b", "c\nd"] * 30)
    frame.to_csv(csv, index=False)
    frame.drop(columns="note").to_csv(tsv, index=False, sep="\t")
    frame.to_parquet(parquet)
    SPACE.frame(SPACE.codes(np.arange(6))).assign(prior=1 / 6).to_csv(prior, index=False)

    def load(path: Path, **samples: Any) -> Callable[[], Any]:
        options: Any = {"target": "bird", "attributes": "place", "split": {"train": 0.5, "test": 0.5}, **samples}
        return lambda: cs.data.load_table(path, **options)

    positive = require(lambda found: np.isfinite(found.count).all() and (found.count > 0).all())
    for path, kind in ((csv, TABLE), (parquet, BYTES)):
        read = lambda path=path: audit.read_group_counts(path, NAMES, count="count")  # noqa: E731
        yield Format(f"{path.suffix} counts", path, read, positive, kind, 225)
        yield Format(f"{path.suffix} texts", path, load(path, text="note"), valid_data, kind, 200)
    yield Format(".csv numbers", csv, load(csv, features=["number"]), valid_data, TABLE, 200)
    yield Format(".tsv numbers", tsv, load(tsv, features=["number"]), valid_data)
    yield Format("prior", prior, lambda: read_prior(str(prior), SPACE), require(len), TABLE, 200)


def image_formats(folder: Path) -> Iterator[Format]:
    """Photographs in every format that is read."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, size=(24, 32, 3), dtype=np.uint8))
    small = require(lambda found: found.mode == "RGB" and found.width * found.height < 1 << 28)
    for ending in ("jpg", "png", "gif", "webp", "tiff", "bmp"):
        path = folder / f"image.{ending}"
        image.save(path)
        yield Format(f"image {ending}", path, lambda path=path: (check_image(path), read_image(path))[1], small)


def benchmark_formats(folder: Path) -> Iterator[Format]:
    """The files of published data sets, and caches of MultiNLI."""
    sets: tuple[tuple[str, Callable[[Path], Any], dict[str, Any]], ...] = (
        ("waterbirds", lambda r: trees.waterbirds(r, "authors"),
         {"waterbirds/waterbird_complete95_forest2water2/metadata.csv": TABLE}),
        ("celeba", lambda r: trees.celeba(r, "txt"),
         {"celeba/list_attr_celeba.txt": BYTES, "celeba/list_eval_partition.txt": BYTES}),
        ("celeba", lambda r: trees.celeba(r, "csv"), {"celebA/data/list_attr_celeba.csv": TABLE}),
        ("metashift", lambda r: trees.metashift(r, "table"), {"metashift/metadata_metashift.csv": TABLE}),
        ("nico++", lambda r: trees.nicopp(r, "table"),
         {"nicopp/dg_label_id_mapping.json": JSON, "nicopp/metadata.csv": TABLE}),
        ("civilcomments", lambda r: trees.civilcomments(r, "authors"),
         {"civilcomments/all_data_with_identities.csv": TABLE}),
        ("civilcomments", lambda r: trees.civilcomments(r, "subpopbench"),
         {"civilcomments/metadata_civilcomments_fine.csv": TABLE}),
        ("multinli", lambda r: (trees.multinli_texts(r), trees.multinli_table(r)),
         {"multinli/data/metadata_random.csv": TABLE, "multinli/data/multinli_1.0_train.jsonl": LINES}),
        ("multinli", lambda r: (trees.multinli_caches(r), trees.multinli_table(r)),
         {"multinli/glue_data/MNLI/cached_train_bert-base-uncased_128_mnli": BYTES}),
    )  # fmt: skip
    for number, (name, make, files) in enumerate(sets):
        root = folder / f"set{number}"
        make(root)

        def load(name: str = name, root: Path = root) -> Any:
            data = cs.data.benchmark(name).load(root)
            list(broken_samples(data.rows(slice(0, 5))))
            return data

        for file, kind in files.items():
            yield Format(f"{name} {Path(file).name}", root / file, load, valid_data, kind, 175)


def cache_formats(folder: Path) -> Iterator[Format]:
    """Caches of MultiNLI: pickles of several protocols, and PyTorch's files with lists and tensors."""
    for kind in (2, 3, 4, "zip", "legacy"):
        path = folder / f"cache {kind}"
        wrap: Any = {4: np.array, "legacy": torch.tensor}.get(kind, list)
        features = trees.glue_features([2, 0, 1], length=12, wrap=wrap)
        if isinstance(kind, int):
            path.write_bytes(trees.pickled(features, lambda found, kind=kind: pickle.dumps(found, protocol=kind)))
        else:
            options = {"_use_new_zipfile_serialization": kind == "zip"}
            trees.pickled(features, lambda found, path=path, options=options: torch.save(found, path, **options))
        same = require(lambda v: v["ids"].shape == v["mask"].shape == v["segments"].shape and len(v["label"]))
        yield Format(path.name, path, lambda path=path: glue_cache.read_glue_cache(path), same, BYTES, 250)


def model_formats(folder: Path) -> Iterator[Format]:
    """Fitted models, training runs, checkpoints and configurations."""
    data, path = small_data(), folder / "model.safetensors"
    cs.CRMClassifier().fit(data.X, data.codes[:, 0], attributes=data.codes[:, 1]).save(path)
    yield Format("model", path, lambda: cs.load(path), predictions_problem, BYTES, 200)
    yield Format("model, signed", path, lambda: cs.load(path), predictions_problem, (m.of_signed_model,), 300)
    for method, backbone in (("crm", "linear"), ("erm", "mlp")):
        run = train_run(folder / method, method, backbone, 4)
        for name, kind in (("run.json", JSON), ("model.safetensors", BYTES)):
            yield Format(f"{method} {name}", run / name, lambda run=run: cs.load(run), predictions_problem, kind, 120)
    crm, checkpoint, config = folder / "crm", folder / "last.safetensors", folder / "config.toml"
    yield Format("metrics", crm / "metrics.jsonl", lambda: list(RunFolder(crm).records()), lambda _: None, LINES)
    shutil.copy(crm / "model.safetensors", checkpoint)
    finite = require(lambda found: all(bool(torch.isfinite(tensor).all()) for tensor in found[0].values()))
    yield Format("checkpoint", checkpoint, lambda: read_tensors(checkpoint), finite)
    config.write_text(
        'data = "digits-backgrounds"\nmethod = "crm"\nsteps = 20\nlearning-rate = 0.1\ndrop = ["3,stripes"]\n'
        'backbone = "small-cnn"\n[hyperparameters]\nprior = "hull"\n'
    )

    def read_config() -> Any:
        options = TrainConfig.read(config, {}, [], folder / "new").options
        known = vars(cs.training.Settings())
        return cs.training.Settings.from_dict({name: value for name, value in options.items() if name in known})

    yield Format("TOML", config, read_config, lambda _: None, (m.of_bytes, m.of_toml), 200)


def backbone_formats(folder: Path) -> Iterator[Format]:
    """Folders of a vision model and of a text model as sentence-transformers publishes them."""
    photos, texts = ImageArrays(np.zeros((2, 40, 30, 3), np.uint8)), Texts(np.array(["a", "the sea"], object))
    with quiet():
        vision, text = resnet(folder / "resnet", side=16), bert(folder / "bert", vocabulary=30522)
    (text / "1_Pooling").mkdir()
    for name, content in {
        "modules.json": [{"idx": 0, "type": "a.Transformer"}, {"idx": 1, "type": "a.Pooling"}],
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 16},
        "sentence_bert_config.json": {"max_seq_length": 32},
    }.items():
        (text / name).write_text(json.dumps(content))
    files = ("config.json", "preprocessor_config.json", "tokenizer_config.json", "modules.json")
    files += ("1_Pooling/config.json", "sentence_bert_config.json", "model.safetensors")
    for root, kind, samples in ((vision, "images", photos), (text, "text", texts)):

        def embed(root: Path = root, kind: str = kind, samples: Any = samples) -> Any:
            embedder = cs.features.Embedder(cs.nn.load_backbone(str(root), kind), device="cpu", num_workers=0)
            embedder.about()
            (found,) = embedder.embed(samples, [np.arange(2)])
            return found.features

        finite = require(lambda found: found.ndim == 2 and len(found) == 2 and np.isfinite(found).all())
        for file in [file for file in files if (root / file).exists()]:
            mutations = JSON if file.endswith("json") else BYTES
            yield Format(f"{root.name} {file}", root / file, embed, finite, mutations, 85)


def result_formats(folder: Path) -> Iterator[Format]:
    """Folders of benchmark results."""
    store = write_results(folder / "bench", Made(draws=2, seeds=2))

    def means() -> Any:
        opened = Store.open(store.path)
        list(results.group_results(selection.chosen_records(opened)))
        write_view(opened)
        return [score.mean for scores in results.stored_results(opened).main.values() for score in scores.values()]

    percentages = require(lambda found: all(np.isnan(mean) or 0 <= mean <= 100 for mean in found))
    yield Format("bench.json", store.about, means, percentages, JSON, 180)
    yield Format("record", sorted((store.path / "jobs").glob("*.json"))[0], means, percentages, JSON, 250)


MAKERS = (
    *(feature_formats, table_formats, image_formats, benchmark_formats, cache_formats, model_formats),
    *(backbone_formats, result_formats),
)
