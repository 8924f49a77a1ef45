"""``compshift bench`` and ``compshift tables``, as a user calls them."""

import csv
import io
import json
import re

import numpy as np
import pytest

from tests.bench.small import write_birds
from tests.data import trees

SOLVED = ["--features", "--methods", "erm,crm", "--draws", "2", "--seeds", "1", "--jobs", "1"]


def test_from_a_feature_file_to_tables_without_torch(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    plan = call(
        "bench", "birds.npz", *SOLVED, "--drop", "each", "--drop", "none", "--dry-run", "-o", "out", cwd=tmp_path
    )
    assert plan.returncode == 0, plan.err
    assert "birds: 7 scenarios × 2 methods, 2 draws, 1 seed, 28 jobs (features)" in plan.out
    assert "28 jobs in all\nabout" in plan.out
    assert not (tmp_path / "out").exists()
    result = call("bench", "birds.npz", *SOLVED, "--drop", "each", "--drop", "none", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert "28 jobs run, 0 already stored; the tables show all results in out" in result.out
    assert (tmp_path / "out" / "results.parquet").is_file()
    again = call("bench", "birds.npz", *SOLVED, "--drop", "each", "--json", "-o", "out", cwd=tmp_path)
    outcome = json.loads(again.out)
    assert (outcome["new"], outcome["known"]) == (0, 24)
    assert {entry["method"] for entry in outcome["results"] if entry["table"] == "main"} == {"ERM", "CRM"}
    known = call("bench", "birds.npz", *SOLVED, "--dry-run", "--json", "-o", "out", cwd=tmp_path)
    plan = json.loads(known.out)
    assert (plan["jobs"], plan["stored"], plan["seconds"]) == (24, 24, 0.0)
    text = call("tables", "out", cwd=tmp_path).out
    for title in ("Compositional shift", "birds, each scenario: worst group", "Ablations of CRM", "No group dropped"):
        assert f"### {title}\n" in text
    assert "| none dropped |" in text
    assert call("tables", "out", "--format", "latex", "-o", "t.tex", cwd=tmp_path).returncode == 0
    assert (tmp_path / "t.tex").read_text().count(r"\begin{tabular}") == text.count("### ")
    rows = list(csv.DictReader(io.StringIO(call("tables", "out", "--format", "csv", cwd=tmp_path).out)))
    assert "| birds | 2 | 6 | 65 | 65 | 65 |" in call("tables", "out", "--table", "statistics", cwd=tmp_path).out
    ranges = call("tables", "out", "--table", "hyperparameters", "--format", "csv", cwd=tmp_path).out
    assert "ours,birds,alpha,10,-4,0" in ranges
    assert {row["table"] for row in rows} == {"main", "standard", "scenarios", "ablations"}


def test_a_dry_run_rejects_a_damaged_record(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    arguments = ["bench", "birds.npz", *SOLVED, "--drop", "none", "-o", "out"]
    assert call(*arguments, cwd=tmp_path).returncode == 0
    (record, *_) = (tmp_path / "out" / "jobs").iterdir()
    record.write_text("{")
    result = call(*arguments, "--dry-run", cwd=tmp_path)
    assert result.returncode == 2
    assert "is damaged" in result.err


def test_training_with_all_groups_has_a_separate_table(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    result = call("bench", "birds.npz", *SOLVED, "--drop", "none", "-o", "out", cwd=tmp_path)
    assert "No group dropped: birds" in result.out
    assert "balanced" in result.out
    assert "Compositional shift" not in result.out


def test_tables_of_an_unfinished_benchmark_say_so(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    assert call("bench", "birds.npz", *SOLVED, "-o", "out", cwd=tmp_path).returncode == 0
    for path in list((tmp_path / "out" / "jobs").iterdir())[:5]:
        path.unlink()
    assert "birds is not finished" in call("tables", "out", "--table", "main", cwd=tmp_path).out


def test_the_papers_tables_alone_and_beside(tmp_path, call):
    alone = call("tables", "--paper", "--table", "ablations", cwd=tmp_path).out
    assert "| waterbirds | CRM | 87.1 (0.7) | **87.8 (0.1)** | **78.7 (1.6)** |" in alone
    sizes = call("tables", "--paper", "--table", "statistics", cwd=tmp_path).out
    assert "| waterbirds | 2 | 4 | 4795 | 1199 | 5794 |" in sizes
    write_birds(tmp_path / "birds.npz")
    assert call("bench", "birds.npz", *SOLVED, "-o", "out", cwd=tmp_path).returncode == 0
    result = call("tables", "out", "--paper", cwd=tmp_path)
    assert result.returncode == 2
    assert "the paper has no results to compare with birds" in result.err


@pytest.mark.slow
def test_fine_tuning(tmp_path, call):
    """Each job trains a network, removes its checkpoints, and records all predictors."""
    pytest.importorskip("torch")
    options = ["--methods", "erm,crm", "--drop", "3,stripes", "--draws", "1", "--seeds", "1", "--steps", "4"]
    result = call("bench", "digits-backgrounds", *options, "--jobs", "1", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.err
    records = [json.loads(path.read_text()) for path in (tmp_path / "out" / "jobs").glob("*.json")]
    assert {record["config"]["method"]: len(record["right"]["test"]) for record in records} == {"erm": 1, "crm": 4}
    for record in records:
        assert record["config"]["protocol"]["backbone"] == "small-cnn"
        assert set(record["config"]["common"]) == {"learning_rate", "weight_decay", "batch_size"}
        assert sum(record["rows"]["test"]) == 2195
        assert record["detail"]["steps"] == 4
        assert record["versions"]["torch"]
    assert list((tmp_path / "out" / "runs").iterdir()) == []


def test_features_of_a_download_are_computed_once(tmp_path, call):
    pytest.importorskip("transformers")
    from tests.data.trees import waterbirds
    from tests.nn.models import resnet

    resnet(tmp_path / "resnet")
    waterbirds(tmp_path / "root" / "waterbirds", "wilds")  # in the subfolder of the root named after the data set
    options = ["--methods", "crm", "--drop", "each", "--draws", "1", "--seeds", "1", "--jobs", "1"]
    arguments = ["bench", "waterbirds", "--features", "--root", "root", "--backbone", "resnet", *options, "-o", "out"]
    result = call(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.err
    shards = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "features" / "waterbirds").glob("*.parquet")
    }
    assert shards
    assert "0 jobs run, 4 already stored" in call(*arguments, cwd=tmp_path).out
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    beside = call("tables", "out", "--paper", "--table", "scenarios", cwd=tmp_path)
    assert "(landbird, land)" in beside.out, beside.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["waterbird"], "did you mean 'waterbirds'?"),
        (["waterbirds"], "must be downloaded: pass the folder that holds it as --root"),
        (["waterbirds", "--features", "--root", "nowhere"], "there is no folder 'nowhere'"),
        (["birds.npz", "--methods", "crmm"], "method 'crmm' is not known"),
        (["birds.npz", "--methods", "erm,,"], None),
        (["birds.npz", "--methods", ","], "--methods is empty"),
        (["birds.npz", "--draws", "0"], "draws is 0: pass an integer ≥ 1"),
        (["birds.npz", "--seeds", "0"], "seeds is 0: pass an integer ≥ 1"),
        (["birds.npz", "--steps", "0"], "steps is 0: pass an integer ≥ 1"),
        (["birds.npz", "--seed", "-1"], "the seed of the plan is -1"),
        (["birds.npz", "--select", "test"], "selection 'test' is not known"),
        (
            ["digits-backgrounds", "--select", "combinations"],
            "--select is 'combinations', which chooses CRM's ridge on frozen features, but a network is fine-tuned: "
            "use frozen features (--features in a benchmark)",
        ),
        (["birds.npz", "--drop", "moon,sea"], "bird has no value 'moon'"),
        (["birds.npz", "--drop", "random:2"], "the share must be a number between 0 and 1"),
        (["birds.npz", "--strict"], "strict needs a data set with origin"),
        (["birds.npz", "--target", "wing"], "attribute 'wing' is not known"),
        (["birds.npz", "--attributes", "wing"], "attribute 'wing' is not known"),
        (["birds.npz", "--shares", "0.5,0.2,0.3"], "which already has splits"),
        (["penguins", "--target", "sex"], "--target is for feature files: leave it out"),
        (["birds.npz", "--backend", "spark"], "backend 'spark' is not known"),
        (["birds.npz", "--scheduler", "a:1"], "scheduler is for the backend 'dask'"),
        (["birds.npz", "birds.npz"], "2 data sets are called 'birds'"),
        (["absent.npz"], "there is no file 'absent.npz'"),
        (
            ["table.csv"],
            "is a table, but a benchmark needs features: compute features of images or texts with `compshift features`",
        ),
        (["torn.npz"], "cannot be read as .npz"),
        (["birds.npz", "--backbone", "minilm"], "every data set already has features: leave it out"),
        (["birds.npz", "--plugin", "absent.py"], "the plugin 'absent.py' cannot be read"),
        (["birds.npz", "-o", "birds.npz"], "'birds.npz' is the input: choose another path to write to"),
        (["birds.npz", "-o", "table.csv"], "is a file: pass a folder for the results"),
        (["birds.npz", "-o", "."], "holds files that are not of a benchmark"),
        (["birds.npz", "-o", "old"], "has benchmark format 0, written by compshift 0.0.1"),
    ],
)
def test_bad_input(tmp_path, call, arguments, sentence):
    if {"--plugin", "crmm", "digits-backgrounds"} & {*arguments}:
        pytest.importorskip("torch")
    write_birds(tmp_path / "birds.npz")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "birds.npz").read_bytes()[:500])
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "bench.json").write_text('{"version": 0, "compshift": "0.0.1"}')
    given = [*arguments]
    for option, value in (("--methods", "erm"), ("-o", "out"), ("--jobs", "1")):
        given += [] if option in arguments else [option, value]
    if sentence is None:
        given.append("--dry-run")
    result = call("bench", *given, cwd=tmp_path)
    if sentence is None:
        assert result.returncode == 0
        return
    assert (result.returncode, result.out) == (2, ""), result.err
    assert sentence in result.err
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1


def test_bad_tables(tmp_path, call):
    for arguments, sentence in (
        ([], "pass the folder of a benchmark, or --paper"),
        (["--table", "statistics"], "pass the folder of a benchmark, or --paper"),
        (["."], "holds no benchmark"),
        ([".", "--format", "html"], "format 'html' is not known"),
        ([".", "--table", "best"], "table 'best' is not known"),
        (["--paper", "-o", "."], "is a folder: pass the path of a file"),
    ):
        result = call("tables", *arguments, cwd=tmp_path)
        assert (result.returncode, result.out) == (2, "")
        assert sentence in result.err


def test_records_store_integer_counts_of_rows(tmp_path, call):
    """Counts of correct rows are stored instead of accuracies, so no precision is lost."""
    write_birds(tmp_path / "birds.npz")
    assert call("bench", "birds.npz", *SOLVED, "-o", "out", cwd=tmp_path).returncode == 0
    records = [json.loads(path.read_text()) for path in (tmp_path / "out" / "jobs").glob("*.json")]
    assert records
    for record in records:
        for split, predictors in record["right"].items():
            for right in predictors.values():
                assert all(type(hits) is int for hits in right)
                assert all(0 <= hits <= rows for hits, rows in zip(right, record["rows"][split], strict=True))
        assert record["seconds"] > 0
        assert record["config"]["protocol"]["ranges"]["alpha"]["low"] == -4
        assert np.isclose(sum(record["rows"]["test"]), 65)


def test_a_dry_run_shows_what_the_plan_has_and_what_decides_numbers_on_features(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    options = ["--protocol-set", "solver_tolerance=0.01", "--protocol-set", "seeds=2", "--drop", "none", "-o", "out"]
    plan = call("bench", "birds.npz", *SOLVED[:-4], *options, "--dry-run", cwd=tmp_path)
    rows = dict(line.split() for line in plan.out.splitlines() if len(line.split()) == 2)
    assert {name: rows[name] for name in ("draws*", "seeds*", "scenarios*", "solver_tolerance*")} == {
        "draws*": "2",
        "seeds*": "2",
        "scenarios*": "none",
        "solver_tolerance*": "0.01",
    }
    assert "range of mixup.alpha" in plan.out
    for unused in ("schedule", "clip", "precision", "pooling", "balanced_classes", "lc.epsilon", "crm.init"):
        assert unused not in plan.out
    shown = json.loads(call("bench", "birds.npz", *SOLVED[:-4], *options, "--dry-run", "--json", cwd=tmp_path).out)
    assert shown["protocols"]["birds"].items() >= {"draws": "2", "seeds": "2", "scenarios": "none"}.items()
    result = call("bench", "birds.npz", *SOLVED[:-4], *options, "--jobs", "1", cwd=tmp_path)
    assert "linear heads on fixed features, protocol compshift with another solver_tolerance, " in (
        call("tables", "out", cwd=tmp_path).out
    ), result.err


def test_combinations_choose_the_ridge_of_crm(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    arguments = ["bench", "birds.npz", *SOLVED, "--drop", "each", "--select", "combinations", "-o", "out"]
    plan = call(*arguments, "--dry-run", cwd=tmp_path)
    assert "birds: 6 scenarios × 2 methods, 2 draws, 1 seed, 18 jobs (features)" in plan.out
    rows = dict(line.split() for line in plan.out.splitlines() if len(line.split()) == 2)
    assert (rows["select"], rows["draws*"]) == ("combinations", "2")
    rule = "CRM's ridge is chosen by held-out combinations of the training rows"
    assert f"birds: {rule}" in plan.out
    shown = json.loads(call(*arguments, "--dry-run", "--json", cwd=tmp_path).out)
    assert shown["protocols"]["birds"].items() >= {"select": "combinations", "draws": "2"}.items()
    outcome = json.loads(call(*arguments, "--json", cwd=tmp_path).out)
    assert (outcome["new"], outcome["failed"]) == (18, 0)
    records = [json.loads(path.read_text()) for path in (tmp_path / "out" / "jobs").glob("*.json")]
    assert {record["config"]["method"] for record in records if "alpha" in record["detail"]} == {"crm"}
    for arguments in (["tables", "out", "--table", "main"], ["tables", "out", "--table", "hyperparameters"]):
        assert call(*arguments, cwd=tmp_path).out.count(rule) == 1
    again = call("bench", "birds.npz", *SOLVED, "-o", "out", cwd=tmp_path)
    assert again.returncode == 2
    assert "has results of birds with select 'combinations', not 'balanced'" in again.err


def test_networks_that_cannot_be_used_are_refused_before_any_job(tmp_path, call, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    trees.civilcomments(tmp_path, "authors")
    texts = ["civilcomments", "--root", "."]
    paper = ["--protocol", "paper", "--methods", "erm", "--drop", "none", "--draws", "1", "-o", "out"]
    for arguments, sentence in (
        ([*texts, *paper, "--backbone", "minilm"], "protocol 'paper': pooling is 'pooler', but the backbone 'minilm'"),
        ([*texts, *paper, "--backbone", "small-cnn"], "backbone of text 'small-cnn' is not known"),
        ([*texts, *paper, "--backbone", "no/such-model"], "backbone 'no/such-model' is not known"),
        (["digits-backgrounds", *paper], "needs torchvision's file 'resnet50-0676ba61.pth', which is not in torch's"),
        (["digits-backgrounds", "--protocol-set", "scenarios=", "-o", "out"], "there is nothing to run: name at least"),
    ):
        result = call("bench", *arguments, cwd=tmp_path)
        assert (result.returncode, result.err.count("\n")) == (2, 1), result.err
        assert sentence in result.err
        assert not (tmp_path / "out").exists()
    assert call("bench", "digits-backgrounds", *paper, "--dry-run", cwd=tmp_path).returncode == 0


def test_a_pool_of_unlabelled_test_rows_has_a_row_of_its_own(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    options = ["--methods", "erm,crm", "--draws", "1", "--seeds", "1", "--jobs", "1", "--drop", "water,sea"]
    result = call("bench", "birds.npz", *options, "--unlabelled", "0.5", "--json", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.err
    outcome = json.loads(result.out)
    names = {entry["method"] for entry in outcome["results"] if entry["table"] == "main"}
    assert names == {"ERM", "CRM", "CRM + unlabelled"}
    assert any("50% of the test rows" in note for note in outcome["notes"])
    assert "| CRM + unlabelled |" in call("tables", "out", "--table", "main", cwd=tmp_path).out
    sizes = call("tables", "out", "--table", "statistics", cwd=tmp_path).out
    assert re.search(r"\| birds \| 2 \| 6 \| 65 \| .* \| 65 \|", sizes)


def test_a_pool_that_nothing_can_use_is_refused(tmp_path, call):
    pytest.importorskip("torch")
    write_birds(tmp_path / "birds.npz")
    for arguments, sentence in (
        (["birds.npz", "--methods", "erm", "--unlabelled", "test"], "used by the method 'crm' alone, but the methods"),
        (["digits-backgrounds", "--methods", "crm", "--unlabelled", "test"], "for frozen features, but a network is"),
        (["birds.npz", "--methods", "crm", "--unlabelled", "1.5"], "'1.5': pass 'test'"),
        (["birds.npz", "--methods", "crm", "--unlabelled", "half"], "'half': pass 'test' for all test rows"),
    ):
        result = call("bench", *arguments, "-o", "out", cwd=tmp_path)
        assert result.returncode == 2
        assert f"error: --unlabelled is {sentence}" in result.err
        assert len(result.err.strip().splitlines()) == 1
