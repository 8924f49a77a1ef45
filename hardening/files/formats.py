"""A valid file of every format that the package reads, how it is read, and what must hold of what comes out."""

import json
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.data import trees

import compshift as cs
from compshift import GroupSpace
from compshift.data.audit import read_group_counts
from compshift.data.benchmarks import benchmark
from compshift.data.dataset import GroupedDataset
from compshift.data.feature_files import file_attributes, read_features, write_features
from compshift.data.feature_store import FeatureStore
from compshift.data.glue_cache import read_glue_cache
from compshift.data.images import broken_samples, check_image, read_image
from compshift.data.table import load_table
from hardening.files import mutations
from hardening.files.mutations import Mutation

BYTES = (mutations.of_bytes,)
TABLE = (mutations.of_bytes, mutations.of_table, mutations.of_table)
JSON = (mutations.of_bytes, mutations.of_json, mutations.of_json)
SPACE = GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea", "sand")))


@dataclass(frozen=True)
class Format:
    """A file that is changed again and again, and how it is read."""

    name: str
    file: Path
    read: Callable[[], Any]
    check: Callable[[Any], str | None]
    mutations: tuple[Mutation, ...] = BYTES
    rounds: int = 150


def small_data(n: int = 60) -> GroupedDataset:
    """Features of six groups, five of them in training."""
    rng = np.random.default_rng(0)
    codes = np.stack([np.arange(n) % 2, np.arange(n) // 2 % 3], axis=1)
    X = rng.normal(size=(n, 4)) + codes @ rng.normal(size=(2, 4))
    return GroupedDataset(X, SPACE, codes, np.arange(n) % 3)


def data_problem(data: Any) -> str | None:
    """What does not hold of a data set."""
    if len(data.codes) != len(data) or not len(data):
        return f"{len(data.codes)} codes for {len(data)} rows"
    if (data.codes < 0).any() or (data.codes >= np.array(data.space.cardinalities)).any():
        return "codes out of range"
    if data.split is not None and not np.isin(data.split, (0, 1, 2)).all():
        return "a split that is none"
    if data.kind == "features" and not np.isfinite(data.X).all():
        return "features that are not finite"
    return None


def model_problem(clf: Any) -> str | None:
    """What does not hold of a classifier of four features."""
    rng = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proba = np.atleast_2d(clf.predict_proba(rng.normal(size=(3, 4))))
    if not np.isfinite(proba).all() or not np.allclose(proba.sum(axis=1), 1):
        return f"probabilities {proba[0].tolist()}"
    return None


def feature_formats(folder: Path) -> Iterator[Format]:
    """Feature files, stores and folders of shards."""
    import pyarrow.parquet as pq

    data, names = small_data(), ["place", "bird"]
    npz, plain = folder / "features.npz", folder / "plain.npz"
    write_features(npz, data)
    np.savez(plain, X=data.X, Z=data.codes, attribute_names=np.array(["bird", "place"]), split=data.split)
    frame = SPACE.frame(data.codes).assign(features=list(data.X), split=np.array(["train", "val", "test"])[data.split])
    parquet, numbered = folder / "features.parquet", folder / "numbered.parquet"
    frame.to_parquet(parquet, row_group_size=25)
    pd.DataFrame(data.X, columns=[f"f{i}" for i in range(4)]).join(frame[["bird", "place"]]).to_parquet(numbered)
    shards = folder / "shards"
    shards.mkdir()
    table = pq.read_table(parquet)
    for number in range(2):
        about = {b"compshift": json.dumps({"key": "k", "broken": []}).encode()}
        part = table.slice(30 * number, 30).replace_schema_metadata(about)
        pq.write_table(part, shards / f"part-{number:05d}.parquet")
    about = {"key": "k", "shards": 2, "rows": 60, "shard_rows": 30, "backbone": "resnet"}
    (shards / "_features.json").write_text(json.dumps(about))

    def store(path: Path) -> Callable[[], Any]:
        def read() -> Any:
            source = FeatureStore(path, split="train")
            return [source.frame(["bird"]), *(block for _, block in source.blocks(7))]

        return read

    def whole(path: Path) -> Callable[[], Any]:
        return lambda: (file_attributes(path), read_features(path, names))[1]

    def blocks_problem(found: Any) -> str | None:
        return None if len(found[0]) == sum(map(len, found[1:])) else "labels and features differ in number"

    yield Format("npz", npz, whole(npz), data_problem, rounds=200)
    yield Format("npz, stored", plain, whole(plain), data_problem, rounds=300)
    yield Format("npz labels", plain, lambda: read_group_counts(plain, names), lambda _: None)
    yield Format("Parquet features", parquet, whole(parquet), data_problem, rounds=300)
    yield Format("Parquet columns", numbered, whole(numbered), data_problem, rounds=180)
    yield Format("Parquet store", parquet, store(parquet), blocks_problem, rounds=250)
    yield Format("shard", shards / "part-00001.parquet", whole(shards), data_problem, rounds=180)
    yield Format("manifest", shards / "_features.json", whole(shards), data_problem, JSON, rounds=200)


def table_formats(folder: Path) -> Iterator[Format]:
    """A user's own tables, and priors."""
    from compshift.cli.options import read_prior

    data = small_data()
    frame = SPACE.frame(data.codes).assign(count=np.arange(60), number=data.X[:, 0], note=["a, b", "c\nd"] * 30)
    csv, tsv, parquet, prior = (folder / name for name in ("table.csv", "table.tsv", "table.parquet", "prior.csv"))
    frame.to_csv(csv, index=False)
    frame.drop(columns="note").to_csv(tsv, index=False, sep="\t")
    frame.to_parquet(parquet)
    SPACE.frame(SPACE.codes(np.arange(6))).assign(prior=1 / 6).to_csv(prior, index=False)

    def counts(path: Path) -> Callable[[], Any]:
        return lambda: read_group_counts(path, ["bird", "place"], count="count")

    def counts_problem(found: Any) -> str | None:
        right = np.isfinite(found.count).all() and (found.count > 0).all() and len(found.count) == len(found.groups)
        return None if right else "counts that are none"

    def load(path: Path, **samples: Any) -> Callable[[], Any]:
        return lambda: load_table(path, target="bird", attributes="place", split={"train": 0.5, "test": 0.5}, **samples)

    def prior_problem(found: Any) -> str | None:
        space = np.exp(cs.CRMClassifier().fit(data.X, data.codes[:, 0], attributes=data.codes[:, 1]).log_prior_)
        return None if found and np.isfinite(space).all() else "an empty prior"

    yield Format("CSV counts", csv, counts(csv), counts_problem, TABLE, rounds=250)
    yield Format("CSV texts", csv, load(csv, text="note"), data_problem, TABLE, rounds=200)
    yield Format("CSV numbers", csv, load(csv, features=["number"]), data_problem, TABLE, rounds=200)
    yield Format("TSV", tsv, load(tsv, features=["number"]), data_problem)
    yield Format("Parquet counts", parquet, counts(parquet), counts_problem, rounds=200)
    yield Format("Parquet table", parquet, load(parquet, text="note"), data_problem, rounds=200)
    yield Format("prior", prior, lambda: read_prior(str(prior), SPACE), lambda _: None, TABLE, rounds=200)


def image_formats(folder: Path) -> Iterator[Format]:
    """Photographs of every kind that is read."""
    from PIL import Image

    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, size=(24, 32, 3), dtype=np.uint8))

    def problem(found: Any) -> str | None:
        return None if found.mode == "RGB" and found.width * found.height < 1 << 28 else f"{found}"

    for ending in ("jpg", "png", "gif", "webp", "tiff", "bmp"):
        path = folder / f"image.{ending}"
        image.save(path)
        yield Format(f"image {ending}", path, lambda path=path: (check_image(path), read_image(path))[1], problem)


def benchmark_formats(folder: Path) -> Iterator[Format]:
    """The files of published data sets."""
    birds, faces, faces_csv, pets, objects, texts, caches, comments, fine = (
        folder / name for name in ("birds", "faces", "facescsv", "pets", "objects", "texts", "caches", "civil", "fine")
    )
    trees.waterbirds(birds, "authors")
    trees.celeba(faces, "txt")
    trees.celeba(faces_csv, "csv")
    trees.metashift(pets, "table")
    trees.nicopp(objects, "table")
    trees.multinli_texts(texts)
    trees.multinli_table(texts)
    trees.multinli_caches(caches)
    trees.multinli_table(caches)
    trees.civilcomments(comments, "authors")
    trees.civilcomments(fine, "subpopbench")

    def loaded(name: str, root: Path) -> Callable[[], Any]:
        def read() -> Any:
            data = benchmark(name).load(root)
            list(broken_samples(data.rows(slice(0, 5))))
            return data

        return read

    place = "waterbirds/waterbird_complete95_forest2water2/metadata.csv"
    for name, root, file, kind, rounds in (
        ("waterbirds", birds, place, TABLE, 200),
        ("celeba", faces, "celeba/list_attr_celeba.txt", BYTES, 200),
        ("celeba", faces, "celeba/list_eval_partition.txt", BYTES, 150),
        ("celeba", faces_csv, "celebA/data/list_attr_celeba.csv", TABLE, 150),
        ("metashift", pets, "metashift/metadata_metashift.csv", TABLE, 200),
        ("nico++", objects, "nicopp/dg_label_id_mapping.json", JSON, 150),
        ("nico++", objects, "nicopp/metadata.csv", TABLE, 150),
        ("civilcomments", comments, "civilcomments/all_data_with_identities.csv", TABLE, 200),
        ("civilcomments", fine, "civilcomments/metadata_civilcomments_fine.csv", TABLE, 150),
        ("multinli", texts, "multinli/data/metadata_random.csv", TABLE, 150),
        ("multinli", texts, "multinli/data/multinli_1.0_train.jsonl", (*BYTES, mutations.of_lines), 200),
        ("multinli", caches, "multinli/glue_data/MNLI/cached_train_bert-base-uncased_128_mnli", BYTES, 200),
    ):
        yield Format(f"{name} {Path(file).name}", root / file, loaded(name, root), data_problem, kind, rounds)


def cache_formats(folder: Path) -> Iterator[Format]:
    """Caches of MultiNLI in every form, and pickles that differ in protocol."""
    import torch

    def problem(found: Any) -> str | None:
        shapes = {found[name].shape for name in ("ids", "mask", "segments")}
        right = len(shapes) == 1 and found["label"].shape == next(iter(shapes))[:1] and len(found["label"])
        return None if right else f"shapes {shapes}"

    for protocol in (2, 3, 4):
        path = folder / f"cache{protocol}"
        objects = trees.glue_features([2, 0, 1], length=12, wrap=np.array if protocol == 4 else list)
        path.write_bytes(trees.pickled(objects, lambda found, p=protocol: pickle.dumps(found, protocol=p)))
        yield Format(f"cache, protocol {protocol}", path, lambda path=path: read_glue_cache(path), problem, rounds=300)
    for legacy in (False, True):
        path = folder / f"cachetorch{legacy}"
        wrap = torch.tensor if legacy else list
        objects = trees.glue_features([2, 0, 1], length=12, wrap=wrap)
        dump = {"_use_new_zipfile_serialization": not legacy}
        trees.pickled(objects, lambda found, path=path, dump=dump: torch.save(found, path, **dump))
        label = "cache, torch with tensors" if legacy else "cache, torch"
        yield Format(label, path, lambda path=path: read_glue_cache(path), problem, rounds=200)


def copy_of(folder: Path, name: str) -> Path:
    """A second copy of a folder, to attack."""
    target = folder.parent / name
    shutil.copytree(folder, target)
    return target
