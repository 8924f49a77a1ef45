"""Named protocols, their part in the names of jobs, and draws of hyper-parameters."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import InputError
from compshift.bench.jobs import Job, PlannedData, PlannedMethod
from compshift.bench.paper import read_table
from compshift.bench.protocol import PROTOCOLS, SELECTIONS, Protocol, named_protocol, protocol_ranges
from compshift.bench.sources import DataSource
from compshift.data.benchmarks import BENCHMARKS, benchmark
from compshift.methods.sampling import Fixed, LogUniform

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
PENALTY = {"penalty": LogUniform(-1, 5), "anneal": LogUniform(0, 4, whole=True, steps=10_000)}
PAPER_SETS = {"waterbirds": "images", "celeba": "images", "metashift": "images", "nico++": "images"}
PAPER_SETS |= {"multinli": "text", "civilcomments": "text"}
OTHER = {  # another value of every field, to see that it changes the names of jobs
    "mode": "features",
    "steps": 7,
    "ranges": {},
    "select": "worst",
    "plan_seed": 1,
    "backbone": "small-cnn",
    "balanced_classes": True,
    "strict": True,
    "tolerance": 0.5,
    "solver_tolerance": 0.5,
    "version": 9,
    "weights": "sha256 0123",
    "resampling": "bicubic",
    "pooling": "mean",
    "dropout": 0.25,
    "precision": "bfloat16",
    "optimiser": "adamw",
    "momentum": 0.5,
    "schedule": "linear",
    "warmup": 3,
    "decay": "vectors",
    "clip": 1.0,
    "eval_every": 9,
    "validation_rows": "all",
    "bias_rows": 17,
    "validation_bias": "learned",
    "validation_prior": "uniform",
    "draws": 2,
    "seeds": 2,
    "scenarios": "random:0.5",
    "draw_generator": "RandomState",
    "methods": {},
}
ONLY_ONE_VALUE = ("validation_rows", "validation_prior")


def _key(protocol):
    data = PlannedData(DataSource("birds"), "digest", protocol)
    return Job(data, "none", (), PlannedMethod("erm", {}), 0, 0).key


@given(st.integers(0, 50), st.integers(0, 5))
def test_a_draw_is_a_function_of_its_number_and_the_seed_of_the_plan(number, plan_seed):
    protocol = named_protocol(kind="images", dataset="waterbirds", plan_seed=plan_seed)
    common, own = protocol.draw(number, PENALTY)
    assert protocol.draw(number, {})[0] == common  # the shared values do not depend on the method's ranges
    assert protocol.draw(number, PENALTY) == (common, own)
    rng = np.random.default_rng([plan_seed, number])
    expected = [10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-6, -3), int(2 ** rng.uniform(5, 7))]
    assert list(common.values()) == expected
    assert own == {"penalty": 10 ** rng.uniform(-1, 5), "anneal": max(1, int(10 ** rng.uniform(0, 4)))}
    assert protocol.draw(number + 1, {})[0] != common


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("dataset", PAPER_SETS)
def test_shared_ranges_and_steps_are_those_of_the_papers_table(name, dataset):
    (row,) = [row for row in read_table("hyperparameters") if row["dataset"] == dataset]
    protocol = named_protocol(name, kind=PAPER_SETS[dataset], dataset=dataset)
    assert protocol.steps == int(row["epochs"])
    names = {
        "learning_rate": ("lr_log10", 10),
        "weight_decay": ("weight_decay_log10", 10),
        "batch_size": ("batch_size_log2", 2),
    }
    for key, (column, base) in names.items():
        found = protocol.ranges[key]
        assert (found.low, found.high, found.base) == (float(row[f"{column}_low"]), float(row[f"{column}_high"]), base)


def test_the_default_protocol_has_the_ranges_and_constants_of_the_methods_themselves():
    registry = pytest.importorskip("compshift.methods.registry")
    protocol = named_protocol(kind="images")
    listed = dict(protocol.methods)
    for name, kind in registry.METHODS.items():
        for key, values in kind.ranges.items():
            assert listed.pop(f"{name}.{key}") == values
    for key, value in listed.items():
        name, _, field = key.partition(".")
        assert value == Fixed(getattr(registry.make_method(name), field))


def test_classes_are_balanced_where_the_registry_of_data_sets_says():
    for name in BENCHMARKS:
        known = benchmark(name)
        if known.kind != "features":
            assert named_protocol(kind=known.kind, dataset=name).balanced_classes == known.balanced_classes
            assert not named_protocol("paper", kind=known.kind, dataset=name).balanced_classes


def test_other_kinds_of_data():
    assert named_protocol(kind="images", dataset="celeba5").steps == 10_000
    assert named_protocol(kind="images", dataset="waterbirds", steps=7).steps == 7
    assert named_protocol(kind="images").ranges["learning_rate"] == LogUniform(-5, -3)
    assert named_protocol(kind="features").ranges == {"alpha": LogUniform(-4, 0)}
    fresh = named_protocol(kind="images", dataset="digits-backgrounds", bundled=True, fresh=True)
    assert (fresh.backbone, fresh.steps, fresh.ranges["learning_rate"]) == ("small-cnn", 1000, LogUniform(-2.5, -1))
    with pytest.raises(InputError, match="'paper' fine-tunes networks and has no settings for frozen features"):
        named_protocol("paper", kind="features")


def test_anneal_scales_with_the_length_of_a_run():
    """The paper's range suits the paper's numbers of steps; for other numbers it is scaled in proportion."""
    steps = 500
    for number in range(20):
        full, same, *scaled = (
            protocol.draw(number, PENALTY)[1]["anneal"]
            for protocol in (
                Protocol("fine-tuning", 10_000, {}),
                Protocol("fine-tuning", 5000, {}),
                Protocol("fine-tuning", steps, {}),
                Protocol("features", steps, {}),
            )
        )
        assert full == same
        for found in scaled:
            assert found == pytest.approx(full * steps / 10_000, abs=1.05)
            assert 1 <= found <= steps


@pytest.mark.parametrize(
    ("kind", "number", "rate", "decay", "batch", "eta", "penalty", "anneal", "alpha"),
    [
        ("images", 0, 1.25e-4, 1.40e-4, 73, 0.0123, 186, 49, 151),
        ("images", 3, 1.26e-4, 1.33e-4, 47, 0.0105, 116, 3730, 110),
        ("text", 0, 1.25e-5, 1.40e-4, 36, 0.0177, 551, 34, 312),
        ("text", 4, 8.59e-5, 4.38e-5, 61, 0.0249, 1536, 7, 618),
    ],
)
def test_the_authors_protocol_draws_the_authors_values(kind, number, rate, decay, batch, eta, penalty, anneal, alpha):
    """Values of the generator that the authors' code seeds with the number of a draw, computed from NumPy alone."""
    protocol = named_protocol("authors", kind=kind)
    own = {key: protocol.methods[key] for key in ("groupdro.eta", "irm.penalty", "irm.anneal", "mixup.alpha")}
    common, _ = protocol.draw(number, {})
    assert common == pytest.approx({"learning_rate": rate, "weight_decay": decay, "batch_size": batch}, rel=0.005)
    assert protocol.draw(number, {"eta": own["groupdro.eta"]})[1]["eta"] == pytest.approx(eta, rel=0.01)
    irm = protocol.draw(number, {"penalty": own["irm.penalty"], "anneal": own["irm.anneal"]})[1]
    assert irm == pytest.approx({"penalty": penalty, "anneal": anneal}, rel=0.005)
    assert protocol.draw(number, {"alpha": own["mixup.alpha"]})[1]["alpha"] == pytest.approx(alpha, rel=0.005)


def test_every_field_of_a_protocol_is_in_the_names_of_jobs():
    assert set(OTHER) == {field.name for field in dataclasses.fields(Protocol)} - {"name", "changed"}
    for name in PROTOCOLS:
        protocol = named_protocol(name, kind="images", dataset="waterbirds")
        own = {"changed": ("something",)} if name == "compshift" else {}
        before = _key(dataclasses.replace(protocol, **own))
        assert json.loads(json.dumps(protocol.to_dict())) == protocol.to_dict()
        for field, value in OTHER.items():
            if field not in ONLY_ONE_VALUE:
                other = value if value != getattr(protocol, field) else "sgd" if field == "optimiser" else value
                changed = dataclasses.replace(protocol, **own, **{field: other})
                assert changed == dataclasses.replace(protocol, **own) or _key(changed) != before, field
        stored = dataclasses.replace(protocol, **own).to_dict()
        assert set(stored) == {field.name for field in dataclasses.fields(Protocol)}
    assert len({_key(named_protocol(name, kind="images")) for name in PROTOCOLS}) == len(PROTOCOLS)


def test_every_selection_is_in_the_names_of_jobs():
    keys = {_key(named_protocol(kind="features", select=select)) for select in SELECTIONS}
    assert len(keys) == len(SELECTIONS) == 4
    assert _key(named_protocol(kind="features")) in keys
    assert named_protocol(kind="features", select="combinations").settings()["select"] == "combinations"
    changed = named_protocol(kind="features", changes={"select": "combinations"})
    assert (changed.select, changed.changed) == ("combinations", ("select",))


@pytest.mark.parametrize("kind", ["images", "text"])
@pytest.mark.parametrize("options", [{"select": "combinations"}, {"changes": {"select": "combinations"}}])
def test_networks_cannot_be_selected_by_combinations(kind, options):
    for name in PROTOCOLS:
        with pytest.raises(InputError, match=r"a network is fine-tuned: use frozen features .* 'crm-resolved'"):
            named_protocol(name, kind=kind, **options)


def test_the_default_protocol_keeps_the_names_that_jobs_had_before_protocols_had_names():
    protocol = named_protocol(kind="images", dataset="waterbirds")
    assert list(protocol.to_dict()) == [
        "mode", "steps", "ranges", "select", "plan_seed", "backbone",
        "balanced_classes", "strict", "tolerance", "solver_tolerance",
    ]  # fmt: skip
    rate = {"low": -5.0, "high": -3.0, "base": 10.0, "whole": False, "steps": None}
    assert json.dumps(protocol.to_dict()["ranges"]["learning_rate"]) == json.dumps(rate)


@pytest.mark.parametrize("dataset", [name for name in BENCHMARKS if not benchmark(name).bundled])
def test_features_and_fresh_networks_of_every_data_set_keep_their_settings(dataset):
    """These settings are in the names of jobs from before protocols had names."""
    features = named_protocol(kind="features", dataset=dataset)
    assert (features.steps, features.balanced_classes, features.backbone) == (600, False, None)
    fresh = named_protocol(kind=benchmark(dataset).kind, dataset=dataset, fresh=True)
    assert fresh.steps == 1000
    assert fresh.ranges["weight_decay"] == LogUniform(-6, -2)


def test_changes_are_recorded_and_checked():
    changes = {"pooling": "mean", "mixup.alpha": "10^U(-2,1)", "learning_rate": "10^U(-4, -2)", "lc.epsilon": "0.5"}
    protocol = named_protocol("paper", kind="text", changes={**changes, "steps": "12", "balanced_classes": "true"})
    assert protocol.changed == tuple(sorted([*changes, "steps", "balanced_classes"]))
    assert (protocol.pooling, protocol.steps, protocol.balanced_classes) == ("mean", 12, True)
    assert protocol.methods["mixup.alpha"] == LogUniform(-2, 1)
    assert protocol.methods["lc.epsilon"] == Fixed(0.5)
    assert protocol.ranges["learning_rate"] == LogUniform(-4, -2)
    fixed = named_protocol("paper", kind="text", changes={"learning_rate": "1e-4", "batch_size": 8, "weight_decay": 0})
    assert fixed.ranges == {"learning_rate": Fixed(1e-4), "batch_size": Fixed(8), "weight_decay": Fixed(0.0)}
    assert fixed.changed == ("batch_size", "learning_rate", "weight_decay")
    assert fixed.draw(3, {})[0] == {"learning_rate": 1e-4, "weight_decay": 0.0, "batch_size": 8}
    assert json.loads(json.dumps(fixed.to_dict()))["ranges"]["learning_rate"] == 1e-4
    assert named_protocol("paper", kind="text", steps=12).changed == ("steps",)
    assert named_protocol("paper", kind="text", steps=10_000).changed == ()
    assert not named_protocol(kind="text", changes={"clip": 1}).is_first
    assert named_protocol("paper", kind="text", changes={"warmup": "0.1"}).warmup == 0.1
    assert named_protocol(kind="text", changes={"pooling": "auto"}).is_first  # nothing differs
    assert named_protocol("authors", kind="text", changes={"dropout": 0}).draw(0, {"alpha": LogUniform(0, 4)}) == (
        named_protocol("authors", kind="text").draw(0, {"alpha": LogUniform(0, 4)})
    )
    for kind, name in (("features", "clip"), ("features", "lc.epsilon"), ("images", "pooling"), ("text", "resampling")):
        with pytest.raises(InputError, match=f"the setting '{name}' has no effect on"):
            named_protocol(kind=kind, changes={name: "1"})
    for change, sentence in (
        ({"poling": "mean"}, "did you mean 'pooling'?"),
        ({"pooling": "max"}, "pooling 'max' is not known"),
        ({"steps": "many"}, "steps is 'many': pass an integer"),
        ({"clip": "-1"}, "clip is -1.0: pass a number ≥ 0"),
        ({"balanced_classes": "maybe"}, "balanced_classes is 'maybe': pass true or false"),
        ({"mixup.alpha": "10^U(2,1)"}, "is not a range: write one such as"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': pass a number"),
        ({"learning_rate": "0"}, "learning_rate is 0.0: pass a number above 0, or a range such as 10^U(-6, -4)"),
        ({"batch_size": "1.5"}, "batch_size is '1.5': pass an integer"),
        ({"name": "mine"}, "setting of a protocol 'name' is not known"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            named_protocol("paper", kind="text", changes=change)
    with pytest.raises(InputError, match=r"protocol 'papers' is not known.*did you mean 'paper'"):
        named_protocol("papers", kind="text")


@pytest.mark.parametrize("text", ["10^U(-5, -3)", "int 2^U(5, 7)", "int 10^U(0, 4) of 10000 steps", "2.5^U(-1.5, 0)"])
def test_ranges_are_read_as_they_are_printed(text):
    assert str(LogUniform.parse(text)) == text


def test_docs_list_every_setting_and_where_the_protocols_differ():
    page = PAGE.read_text()
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                rows[name] = cells[1:]
    fields = {field.name for field in dataclasses.fields(Protocol)}
    fields -= {
        "mode",
        "name",
        "version",
        "changed",
        "plan_seed",
        "strict",
        "ranges",
        "methods",
        "tolerance",
        "solver_tolerance",
    }
    methods = {key for name in PROTOCOLS for key in named_protocol(name, kind="images").methods}
    wanted = fields | methods | {"learning_rate", "weight_decay", "batch_size"}
    assert wanted <= set(rows), sorted(wanted - set(rows))
    assert all(f"`{select}`" in page for select in SELECTIONS)
    for name in wanted:
        assert len(rows[name]) == 4
        for protocol, cell in zip(("compshift", "paper", "authors"), rows[name][1:], strict=True):
            for kind in ("images", "text"):
                found = named_protocol(protocol, kind=kind)
                value = found.methods.get(name) or found.ranges.get(name) or getattr(found, name, None)
                shown = (
                    str(value).lower()
                    if isinstance(value, bool)
                    else f"{value:g}"
                    if isinstance(value, float)
                    else str(value)
                )
                assert f"`{shown}`" in cell, (name, protocol, kind, shown, cell)


def test_ranges_of_every_protocol_are_listed():
    listed = {name: protocol_ranges(name) for name in PROTOCOLS}
    assert listed["authors"]["mixup.alpha"] == "10^U(0, 4)"
    assert listed["paper"]["learning_rate (text)"] == "10^U(-6, -4)"
    assert listed["compshift"]["alpha (features)"] == "10^U(-4, 0)"
    assert "alpha (features)" not in listed["paper"]
