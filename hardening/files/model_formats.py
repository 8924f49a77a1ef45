"""Saved models, runs, configurations and results of benchmarks: valid ones, and how they are read."""

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tests.report.records import Made, write_results

import compshift as cs
from compshift.crm.io import _checksum
from hardening.files import mutations
from hardening.files.formats import JSON, Format, model_problem, small_data


def _signed(content: bytes, rng: random.Random) -> bytes:
    """A model file with other contents and the checksum that fits them, as somebody who means ill would write it."""
    from safetensors.numpy import load, save

    arrays = load(content)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["compshift"])
    if rng.random() < 0.6:
        header = mutations.of_tree(header, rng)
    else:
        name = rng.choice(list(arrays))
        arrays[name] = _changed(arrays[name], rng)
    text = json.dumps(header).encode("utf-8", "replace").decode()
    return save(arrays, metadata={"compshift": text, "sha256": _checksum(text, arrays)})


def _changed(array: Any, rng: random.Random) -> Any:
    """An array with other numbers, or of another type or shape."""
    what = rng.randrange(8)
    if what == 0:
        return array[:-1].copy()
    if what == 1:
        return array.reshape(-1).copy()
    if what == 2:
        return array.astype(rng.choice(("float32", "int64", "uint8", "bool", "float16")))
    if what == 3:
        return array[:0].copy()
    if what == 4:
        return np.repeat(array[..., None], rng.choice((1, 3)), axis=-1)
    changed = array.copy()
    values: tuple[float, ...] = (
        (np.nan, np.inf, -np.inf, 1e308, 1e150, 1e20, -1.0) if array.dtype.kind == "f" else (-1, 99, 2**62)
    )
    changed.reshape(-1)[rng.randrange(changed.size)] = rng.choice(values)
    return changed


def _toml(content: bytes, rng: random.Random) -> bytes:
    import tomllib

    import tomli_w

    try:
        return tomli_w.dumps(mutations.of_tree(tomllib.loads(content.decode()), rng)).encode("utf-8", "replace")
    except (TypeError, AttributeError):  # TOML has no null, and holds no list by itself
        return mutations.of_bytes(content, rng)


def model_formats(folder: Path) -> Iterator[Format]:
    """A fitted model, alone and as somebody else would sign it."""
    data, path = small_data(), folder / "model.safetensors"
    cs.CRMClassifier().fit(data.X, data.codes[:, 0], attributes=data.codes[:, 1]).save(path)
    yield Format("model", path, lambda: cs.load(path), model_problem, rounds=200)
    yield Format("model, signed", path, lambda: cs.load(path), model_problem, (_signed,), rounds=300)


def trained_formats(folder: Path) -> Iterator[Format]:
    """Folders of runs, and configurations."""
    import torch

    from compshift.cli.train_config import TrainConfig
    from compshift.training.folder import RunFolder, read_tensors
    from compshift.training.settings import Settings

    settings = Settings(steps=4, batch_size=16, eval_every=2)
    for method, backbone in (("crm", "linear"), ("erm", "mlp")):
        run = folder / method
        cs.training.train(small_data(), method, backbone, settings, folder=run, device="cpu")
        for name, kind in (("run.json", JSON), ("model.safetensors", mutations_of_bytes())):
            yield Format(f"run {method} {name}", run / name, lambda run=run: cs.load(run), _run_problem, kind, 120)
    metrics = folder / "crm" / "metrics.jsonl"
    log = (mutations.of_bytes, mutations.of_lines)
    yield Format("metrics", metrics, lambda: list(RunFolder(folder / "crm").records()), lambda _: None, log, 150)
    model = folder / "crm" / "model.safetensors"
    checkpoint = shutil.copy(model, folder / "last.safetensors")

    def finite(found: Any) -> str | None:
        return None if all(bool(torch.isfinite(tensor).all()) for tensor in found[0].values()) else "not finite"

    yield Format("checkpoint", Path(checkpoint), lambda: read_tensors(Path(checkpoint)), finite, rounds=150)
    config = folder / "config.toml"
    config.write_text(
        'data = "digits-backgrounds"\nmethod = "crm"\nsteps = 20\nlearning-rate = 0.1\ndrop = ["3,stripes"]\n'
        'backbone = "small-cnn"\n[hyperparameters]\nprior = "hull"\n'
    )

    def read_config() -> Any:
        found = TrainConfig.read(config, {}, [], folder / "new")
        Settings.from_dict({name: found.options[name] for name in vars(Settings()) if name in found.options})
        return found

    yield Format("TOML", config, read_config, lambda _: None, (mutations.of_bytes, _toml), rounds=200)


def mutations_of_bytes() -> tuple[mutations.Mutation, ...]:
    """Of a file of weights: any byte, or a header that declares another size."""

    def header(content: bytes, rng: random.Random) -> bytes:
        return struct.pack("<Q", rng.choice(mutations.SIZES)) + content[8:]

    return (mutations.of_bytes, mutations.of_bytes, mutations.of_bytes, header)


def _run_problem(found: Any) -> str | None:
    proba = found.predict_proba(np.zeros((2, 4), dtype=np.float32))
    return None if np.isfinite(proba).all() and np.allclose(proba.sum(axis=1), 1) else f"{proba.tolist()}"


def result_formats(folder: Path) -> Iterator[Format]:
    """Folders of benchmark results."""
    from compshift.bench.results import group_results, stored_results
    from compshift.bench.selection import chosen_records
    from compshift.bench.store import Store, write_view

    store = write_results(folder / "bench", Made(draws=2, seeds=2))

    def read(path: Path) -> Callable[[], Any]:
        def results() -> Any:
            opened = Store.open(path)
            list(group_results(chosen_records(opened)))
            write_view(opened)
            return stored_results(opened)

        return results

    def problem(found: Any) -> str | None:
        means = [score.mean for scores in found.main.values() for score in scores.values()]
        return None if all(np.isnan(mean) or 0 <= mean <= 100 for mean in means) else f"accuracies {means}"

    job = sorted((store.path / "jobs").glob("*.json"))[0]
    yield Format("bench.json", store.about, read(store.path), problem, JSON, rounds=180)
    yield Format("record", job, read(store.path), problem, JSON, rounds=250)
    yield growth_format(folder)


def _growth_problem(found: Any) -> str | None:
    """Figures are shares, but for accuracies that there are no rows for."""
    figures = [value for outcome in found for value in (outcome.accuracy, outcome.accuracy_unseen, outcome.bayes)]
    return None if all(value != value or 0 <= value <= 1 for value in figures) else f"{figures}"


def growth_format(folder: Path) -> Format:
    """The log of a study of growth, and the figure that is drawn of it."""
    from compshift.studies.growth import GrowthCase, GrowthOutcome, run_growth

    jobs = [GrowthCase(2, 2, share, 0, n_train=100) for share in (0.5, 1.0)]
    log = folder / "growth.jsonl"
    lines = [asdict(GrowthOutcome(job, 1.0, 0.1, 2, 0.5, 0.8, 0.9, 0.7, 0.95)) for job in jobs]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Format(
        "growth.jsonl",
        log,
        lambda: run_growth(jobs, log),
        _growth_problem,
        (mutations.of_bytes, mutations.of_lines),
        rounds=50,
    )
