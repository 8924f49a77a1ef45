"""Files that name others, or link to others, outside of the folder that the user named. None of those may be opened."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.report.records import Made, write_results

import compshift as cs
from compshift.bench.results import stored_results
from compshift.bench.store import Store
from compshift.data.benchmarks import benchmark
from compshift.data.feature_files import read_features
from compshift.data.feature_store import FeatureStore
from compshift.data.images import broken_samples, read_image
from compshift.data.table import load_table
from hardening.files.formats import SPACE, small_data, trees
from hardening.files.hostile import Attack
from hardening.files.sandbox import Sandbox

SETS: tuple[tuple[str, Callable[[Path, str], None], str, str, str], ...] = (
    (
        "waterbirds",
        trees.waterbirds,
        "authors",
        "waterbirds/waterbird_complete95_forest2water2/metadata.csv",
        "img_filename",
    ),
    ("waterbirds", trees.waterbirds, "subpopbench", "waterbirds/metadata_waterbirds.csv", "filename"),
    ("celeba", trees.celeba, "subpopbench", "celeba/metadata_celeba.csv", "filename"),
    ("celeba", trees.celeba, "csv", "celebA/data/list_attr_celeba.csv", "image_id"),
    ("metashift", trees.metashift, "table", "metashift/metadata_metashift.csv", "filename"),
    ("nico++", trees.nicopp, "table", "nicopp/metadata.csv", "filename"),
)


def attacks(box: Sandbox) -> Iterator[Attack]:
    """All of them; the secrets are files that could be read as what they are asked for."""
    folder = box.inside / "outside"
    folder.mkdir()
    trees.image(box.outside / "secret.jpg")
    yield from metadata(folder, box.outside)
    yield from links(folder, box.outside)
    yield from tables(folder, box.outside)
    yield from folders(folder, box.outside)


def metadata(folder: Path, outside: Path) -> Iterator[Attack]:
    """Names of images in published tables."""
    for number, (name, make, packaging, file, column) in enumerate(SETS):
        root = folder / f"set{number}"
        make(root, packaging)
        table = root / file
        content = pd.read_csv(table, dtype=str, keep_default_na=False)
        first = content[column][0]
        parts = first.split("/")
        climb = "../" * 12 + str(outside).lstrip("/")
        for way in (f"{outside}/secret.jpg", f"{climb}/secret.jpg", f"{'/'.join(parts[:-1])}/{climb}/secret.jpg"):

            def read(content: Any = content, column: str = column, way: str = way, table: Path = table) -> Any:
                content.assign(**{column: [way, *content[column][1:]]}).to_csv(table, index=False)
                return _all(name, table, root)  # noqa: B023 - read before the next round

            yield Attack(f"{name} ({packaging}) names {way[:3]}…", read)
    root = folder / "names"
    trees.nicopp(root, "plain")
    mapping = root / "nicopp" / "dg_label_id_mapping.json"
    for way in (str(outside), "../" * 12 + str(outside).lstrip("/")):
        mapping.write_text(json.dumps({**trees.OBJECTS, way: 3}))
        yield Attack(f"nico++ has an object called {way[:3]}…", lambda root=root: _all("nico++", None, root))


def links(folder: Path, outside: Path) -> Iterator[Attack]:
    """Symbolic links in a downloaded data set."""
    birds = folder / "linked"
    trees.waterbirds(birds, "authors")
    base = birds / "waterbirds/waterbird_complete95_forest2water2"
    image = base / trees.BIRDS[0][0]
    _replace(image, outside / "secret.jpg")
    yield Attack("an image is a link", lambda: _all("waterbirds", None, birds))
    whole = folder / "linked2"
    trees.waterbirds(whole, "authors")
    shutil.copytree(whole / "waterbirds", outside / "waterbirds")
    _replace(whole / "waterbirds/waterbird_complete95_forest2water2", outside / "waterbirds" / base.name)
    yield Attack("the folder of images is a link", lambda: _all("waterbirds", None, whole))
    pets = folder / "linked3"
    trees.metashift(pets, "folders")
    _replace(pets / "metashift" / trees.METASHIFT / "train/cat", outside)
    yield Attack("a folder of animals is a link", lambda: _all("metashift", None, pets))
    texts = folder / "linked4"
    trees.multinli_texts(texts)
    trees.multinli_table(texts)
    table = texts / "multinli/data/metadata_random.csv"
    shutil.copy(table, outside / "metadata_random.csv")
    _replace(table, outside / "metadata_random.csv")
    yield Attack("a table of splits is a link", lambda: _all("multinli", None, texts))


def tables(folder: Path, outside: Path) -> Iterator[Attack]:
    """A user's own table with a root: the table may be somebody else's."""
    root = folder / "photos"
    trees.image(root / "a.jpg")
    os.symlink(outside / "secret.jpg", root / "link.jpg")
    for way in (str(outside / "secret.jpg"), f"../../../outside/{'secret.jpg'}", "link.jpg"):
        frame = pd.DataFrame({"photo": ["a.jpg", way], "bird": ["x", "y"]})

        def read(frame: pd.DataFrame = frame) -> Any:
            images = load_table(frame, target="bird", path="photo", root=root).samples
            return [read_image(images.path(row)) for row in range(len(images))]

        yield Attack(f"a table with a root names {way[:3]}…", read)


def folders(folder: Path, outside: Path) -> Iterator[Attack]:
    """Links in folders of features, runs and results."""
    data = small_data()
    SPACE.frame(data.codes).assign(features=list(data.X)).to_parquet(outside / "secret.parquet")
    shards = folder / "shards"
    shards.mkdir()
    os.symlink(outside / "secret.parquet", shards / "part-00000.parquet")
    yield Attack("a shard is a link", lambda: read_features(shards, ["bird"]))
    yield Attack("a shard of a store is a link", lambda: FeatureStore(shards).frame(["bird"]))
    for name in ("run.json", "model.safetensors"):
        run = folder / f"run {name}"
        cs.training.train(data, "erm", "linear", cs.training.Settings(steps=2, eval_every=2), folder=run, device="cpu")
        shutil.move(run / name, outside / name)
        os.symlink(outside / name, run / name)
        yield Attack(f"{name} of a run is a link", lambda run=run: cs.load(run))
    store = write_results(folder / "bench", Made())
    job = sorted((store.path / "jobs").glob("*.json"))[0]
    shutil.move(job, outside / "job.json")
    os.symlink(outside / "job.json", job)
    yield Attack("a result is a link", lambda: stored_results(Store.open(store.path)))


def _all(name: str, _: Path | None, root: Path) -> Any:
    """Load a data set and look at all of its samples; what cannot be read ends it."""
    data = benchmark(name).load(root)
    for sentence in broken_samples(data):
        raise cs.InputError(sentence)
    return np.asarray(data.codes)


def _replace(path: Path, target: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.symlink(target, path)
