"""The whole command line: exit codes, messages, fit, evaluate and predict; the first of each in its own process."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import compshift
from compshift import CRMClassifier, GroupSpace, InputError
from compshift.data.dataset import GroupedDataset
from compshift.data.feature_files import write_features
from tests.estimators.made_data import make_data

VALUES = {"bird": ["landbird", "waterbird"], "place": ["land", "[b]water[/b]", "sky"]}


def run(*arguments, cwd=None):
    """Run a command in its own process."""
    command = [sys.executable, "-m", "compshift", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A feature file whose train rows lack (landbird, sky), and a model fitted to it."""
    folder = tmp_path_factory.mktemp("cli")
    train, test = make_data(n=400, missing=(2,)), make_data(n=300, missing=())
    np.savez(
        folder / "birds.npz",
        X=np.concatenate([train[0], test[0]]),
        Z=np.concatenate([train[1], test[1]]),
        attribute_names=["bird", "place"],
        value_names=json.dumps(VALUES),
        split=np.repeat([0, 2], [400, 300]),
    )
    result = run("fit", "birds.npz", "--target", "bird", "--attributes", "place", "-o", "m.safetensors", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "5 seen, 1 extrapolated, 0 outside the hull" in result.stdout
    assert "converged" in result.stdout
    return folder


def test_version_and_help(tmp_path, call):
    assert run("--version").stdout == f"compshift {compshift.__version__}\n"
    result = call("--help", cwd=tmp_path)
    assert result.returncode == 0
    for command in ("fit", "predict", "evaluate", "figure"):
        assert command in result.out
        assert call(command, "--help", cwd=tmp_path).returncode == 0


def test_without_arguments_the_help_is_printed(tmp_path, call):
    result = call(cwd=tmp_path)
    assert result.returncode == 2
    assert "Usage: compshift" in result.out + result.err


@pytest.mark.parametrize(
    ("words", "completed"),
    [("compshift pre", {"predict"}), ("compshift fit --al", {"--alpha"}), ("compshift datasets g", {"get"})],
)
def test_words_are_completed_for_a_shell(words, completed, tmp_path, call, monkeypatch):
    monkeypatch.setenv("_COMPSHIFT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    result = call(cwd=tmp_path)
    assert (result.returncode, set(result.out.split())) == (0, completed)


def test_evaluate_prints_every_group(folder):
    result = run("evaluate", "m.safetensors", "birds.npz", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "extrapolated" in result.stdout
    assert "[b]water[/b]" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "\x1b" not in result.stdout


def test_evaluate_as_json_equals_the_library(folder, call):
    content = json.loads(call("evaluate", "m.safetensors", "birds.npz", "--json", cwd=folder).out)
    clf = compshift.load(folder / "m.safetensors")
    with np.load(folder / "birds.npz") as archive:
        test = archive["split"] == 2
        X, codes = archive["X"][test], archive["Z"][test]
    y, place = (np.array(values)[column] for values, column in zip(VALUES.values(), codes.T, strict=True))
    report = compshift.metrics.group_report(y, clf.predict(X), place, clf.group_log_proba(X), space=clf.space_)
    assert content["worst"] == report.worst
    assert content["compositional_risk"] == pytest.approx(report.compositional_risk)
    assert [group["count"] for group in content["groups"]] == report.count.tolist()
    assert (content["split"], content["rows"]) == ("test", 300)
    assert {group["in_training"] for group in content["groups"]} >= {"extrapolated"}
    assert all(group["effective_sample_size"] >= 1 for group in content["groups"])


def test_an_infinite_risk_is_valid_json_and_printed_in_words(folder, call):
    result = call("evaluate", "m.safetensors", "birds.npz", "--prior", "train", "--json", cwd=folder)
    assert json.loads(result.out)["compositional_risk"] is None
    result = call("evaluate", "m.safetensors", "birds.npz", "--prior", "train", cwd=folder)
    assert "compositional risk infinite: a group with rows has probability 0" in result.out


@pytest.mark.parametrize("width", ["120", "80", "64", "45"])
def test_narrow_terminals_keep_the_groups(folder, call, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    lines = call("evaluate", "m.safetensors", "birds.npz", cwd=folder).out.splitlines()
    assert sum(line.startswith(("landbird", "waterbir")) for line in lines) == 6
    assert max(map(len, lines[:9])) <= int(width)
    assert ("90% interval" in lines[1]) == (int(width) >= 64)
    notes = [line for line in lines if line.startswith("not shown")]
    lost = {"120": [], "80": [], "64": ["ESS"], "45": ["90% interval, ESS"]}[width]
    assert notes == [f"not shown at this width: {names}; use a wider terminal or --json" for names in lost]


def test_tables_in_files_and_pipes_are_not_wrapped(folder, call, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    call("fit", "birds.npz", "--target", "bird", "--attributes", "place", "--alpha", "auto", "-o", "a", cwd=folder)
    heading = " ".join(call("evaluate", "a", "birds.npz", cwd=folder).out.splitlines()[1].split())
    assert heading == "bird place rows accuracy 90% interval expected ESS in training"
    monkeypatch.setenv("COLUMNS", "80")
    heading = " ".join(call("evaluate", "a", "birds.npz", cwd=folder).out.splitlines()[1].split())
    assert heading == "bird place rows accuracy 90% interval expected ESS in training"
    monkeypatch.setenv("COLUMNS", "64")
    result = call("evaluate", "a", "birds.npz", cwd=folder).out
    assert "not shown at this width: expected, ESS; use a wider terminal or --json" in result
    groups = json.loads(call("evaluate", "a", "birds.npz", "--json", cwd=folder).out)["groups"]
    assert all("effective_sample_size" in group for group in groups)
    assert sum("expected_accuracy" in group for group in groups) == 1  # the unseen group


def test_values_unknown_to_the_model_raise(folder, call):
    with np.load(folder / "birds.npz") as archive:
        arrays = dict(archive)
    arrays["value_names"] = json.dumps({"bird": ["landbird", "duck"], "place": VALUES["place"]})
    np.savez(folder / "ducks.npz", **arrays)
    result = call("evaluate", "m.safetensors", "ducks.npz", cwd=folder)
    assert result.returncode == 2
    assert "attribute 'bird' has the unknown value 'duck'" in result.err


def test_values_of_other_splits_stay_out_of_the_model(folder, call):
    frame = pd.DataFrame(
        {"y": list("abab") * 20, "place": ["land", "land", "lake", "lake"] * 20, "f0": np.arange(80.0)}
    )
    frame["split"] = "train"
    frame.loc[78:, ["place", "split"]] = ["sea", "test"]
    frame.to_parquet(folder / "sea.parquet")
    assert (
        call("fit", "sea.parquet", "--target", "y", "--attributes", "place", "-o", "sea.st", cwd=folder).returncode == 0
    )
    assert compshift.load(folder / "sea.st").space_.values[1] == ("lake", "land")


def test_fit_on_the_command_line_equals_the_library(folder):
    with np.load(folder / "birds.npz") as archive:
        X, Z = archive["X"][:400], archive["Z"][:400]
    direct = CRMClassifier().fit(X, Z[:, 0], attributes=Z[:, 1])
    loaded = compshift.load(folder / "m.safetensors")
    np.testing.assert_allclose(loaded.predict_proba(X), direct.predict_proba(X), atol=1e-12)


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_predict(folder, call, name):
    result = call(
        "predict", "m.safetensors", "birds.npz", "-o", name, "--groups", "--explain", "--split", "test", cwd=folder
    )
    assert result.returncode == 0, result.err
    frame = pd.read_csv(folder / name) if name.endswith("csv") else pd.read_parquet(folder / name)
    clf = compshift.load(folder / "m.safetensors")
    with np.load(folder / "birds.npz") as archive:
        X = archive["X"][400:]
    assert frame["bird"].tolist() == clf.predict(X).tolist()
    np.testing.assert_allclose(frame["P(bird=waterbird)"], clf.predict_proba(X)[:, 1])
    own = clf.group_log_proba(X, clf.space_.encode([("landbird", "sky")]))[:, 0]
    np.testing.assert_allclose(frame["P(bird=landbird, place=sky)"], np.exp(own))
    reasons = clf.explain(X).to_frame()
    assert frame["group bird"].tolist() == reasons["bird"].tolist()
    assert frame["group seen"].tolist() == reasons["seen"].tolist()
    np.testing.assert_allclose(frame["group effective sample size"], reasons["effective_sample_size"])
    terms = frame[["group energy bird", "group energy place", "group bias", "group prior"]].sum(axis=1)
    np.testing.assert_allclose(frame["group log-odds"], terms)
    assert (frame["group rival bird"] != frame["group bird"]).all()
    assert frame["group main features"].str.fullmatch(r"x\d+ [+−]\d+\.\d\d(, x\d+ [+−]?\d+\.\d\d)*").all()


def test_predict_sets(folder, call):
    fit = ["fit", "birds.npz", "--target", "bird", "--attributes", "place", "--cross-fit", "-o", "folds.safetensors"]
    assert call(*fit, cwd=folder).returncode == 0
    assert call("predict", "folds.safetensors", "birds.npz", "-o", "s.csv", "--sets", "0.9", cwd=folder).returncode == 0
    found = pd.read_csv(folder / "s.csv", keep_default_na=False)["bird set"]
    with np.load(folder / "birds.npz") as archive:
        sets = compshift.load(folder / "folds.safetensors").predict_set(archive["X"], 0.9)
    assert found.tolist() == ["|".join(classes) for classes in sets]
    assert set(found) >= {"landbird", "waterbird"}
    result = call("predict", "folds.safetensors", "birds.npz", "-o", "s.csv", "--sets", "1.5", cwd=folder)
    assert result.returncode == 2
    assert "--sets is 1.5" in result.err
    result = call("predict", "m.safetensors", "birds.npz", "-o", "s.csv", "--sets", "0.9", cwd=folder)
    assert result.returncode == 2
    assert "on the command line: --alpha auto" in " ".join(result.err.split())


def test_predict_features_without_labels(folder, call):
    with np.load(folder / "birds.npz") as archive:
        np.savez(folder / "plain.npz", X=archive["X"][:5])
    assert call("predict", "m.safetensors", "plain.npz", "-o", "plain.csv", cwd=folder).returncode == 0
    assert len(pd.read_csv(folder / "plain.csv")) == 5


def test_prior_from_a_file(folder, call):
    (folder / "prior.csv").write_text("bird,place,prior\nlandbird,land,0.5\nwaterbird,sky,0.5\n")
    assert call("predict", "m.safetensors", "birds.npz", "-o", "p.csv", "--groups", "--prior", "prior.csv",
               cwd=folder).returncode == 0  # fmt: skip
    frame = pd.read_csv(folder / "p.csv")
    np.testing.assert_allclose(frame["P(bird=landbird, place=land)"] + frame["P(bird=waterbird, place=sky)"], 1)


def test_two_targets(folder, call):
    result = call("fit", "birds.npz", "--target", "bird,place", "-o", "two.safetensors", "--json", cwd=folder)
    assert json.loads(result.out)["converged"] is True
    assert call("evaluate", "two.safetensors", "birds.npz", cwd=folder).returncode == 0
    assert call("predict", "two.safetensors", "birds.npz", "-o", "two.csv", cwd=folder).returncode == 0
    assert pd.read_csv(folder / "two.csv").columns[:2].tolist() == ["bird", "place"]


FIT = ("fit", "birds.npz", "--target", "bird", "--attributes", "place", "-o", "x.safetensors")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "nothing.npz", "--target", "bird", "-o", "x"), "there is no file or folder 'nothing.npz'"),
        (("fit", "birds.npz", "--target", "brid", "-o", "x"), "did you mean 'bird'"),
        (("fit", "birds.npz", "--target", ",", "-o", "x"), "--target is empty"),
        ((*FIT, "--alpha", "-1"), "--alpha is -1.0: pass a finite number ≥ 0"),
        ((*FIT, "--alpha", "much"), "--alpha is 'much': pass a number, several numbers separated by commas, or auto"),
        ((*FIT, "--alpha", "1,,2"), "--alpha is '1,,2'"),
        ((*FIT, "--anchor", "gausian"), "did you mean 'gaussian'"),
        ((*FIT, "--bias", "cumulative"), "bias"),
        (
            (*FIT, "--unseen-offset", "some"),
            "--unseen-offset is 'some': pass a number between ±1e+06 (0 for no offset)",
        ),
        ((*FIT, "--prior", "unifrom"), "did you mean 'uniform'"),
        ((*FIT, "--split", "val"), "there are no val rows"),
        ((*FIT[:-1], "no/where"), "there is no folder 'no'"),
        (
            ("evaluate", "birds.npz", "birds.npz"),
            "is a feature file, not a model: pass the file of a saved model",
        ),
        (
            ("evaluate", "m.safetensors", "plain.npz"),
            "lacks the labels 'bird', 'place', which an evaluation needs: add",
        ),
        (("predict", "m.safetensors", "birds.npz", "-o", "out.txt"), "written as .csv or .parquet"),
        (
            ("predict", "m.safetensors", "narrow.npz", "-o", "out.csv"),
            "X has 1 features, but CRMClassifier is expecting 4",
        ),
        (("predict", "m.safetensors", "birds.npz", "-o", "out.csv", "--prior", "none.csv"), "none.csv"),
        (("fit", "birds.npz", "--target", "bird", "-o", "birds.npz"), "'birds.npz' is the input"),
        (("predict", "m.safetensors", "birds.npz", "-o", "birds.parquet"), "'birds.parquet' is a folder"),
        ((*FIT, "--prior", "blank.csv"), "cannot be read as CSV"),
        (("evaluate", "m.safetensors", "birds.npz", "--prior", "foo"), "'FILE.csv'"),
        (("predict", "m.safetensors", "spoilt.npz", "-o", "out.csv"), "'spoilt.npz' has 1 NaN or infinite (inf) value"),
        (("fit", "empty", "--target", "bird", "-o", "x"), "the folder 'empty' contains no .parquet file"),
        (("fit", "continuous.npz", "--target", "y", "-o", "x"), "target 'y' is continuous"),
        (("figure", "gausian2d", "-o", "x.png"), "did you mean 'gaussian2d'"),
        (("figure", "gaussian2d", "-o", "x.doc"), ".png, .svg, .pdf"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(folder, call, arguments, message):
    np.savez(folder / "narrow.npz", X=np.zeros((2, 1)))
    np.savez(folder / "plain.npz", X=np.zeros((2, 4)))
    np.savez(folder / "spoilt.npz", X=np.full((2, 4), [[np.nan, 0, 0, 0]] * 1 + [[0] * 4]))
    rng = np.random.default_rng(0)
    np.savez(folder / "continuous.npz", X=rng.normal(size=(9, 2)), Z=np.arange(9)[:, None], attribute_names=["y"],
             value_names=json.dumps({"y": rng.normal(size=9).tolist()}))  # fmt: skip
    (folder / "blank.csv").write_text("")
    for name in ("empty", "birds.parquet"):
        (folder / name).mkdir(exist_ok=True)
    result = call(*arguments, cwd=folder)
    assert result.returncode == 2
    assert message in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_debug_shows_the_traceback(folder, call):
    arguments = ("fit", "nothing.npz", "--target", "bird", "-o", "x")
    assert "Traceback" not in call(*arguments, cwd=folder).err
    assert "Traceback" in run("--debug", *arguments, cwd=folder).stderr
    with pytest.raises(InputError, match=r"there is no file or folder 'nothing\.npz'"):
        call(*arguments, "--debug", cwd=folder)


def test_internal_errors_have_their_own_exit_code(folder, call, monkeypatch):
    monkeypatch.setattr("compshift.training.load.load_file", lambda *_: 1 / 0)
    result = call("evaluate", "m.safetensors", "birds.npz", cwd=folder)
    assert result.returncode == 1
    assert "ZeroDivisionError; run again with --debug" in result.err


def test_usage_errors(folder, call):
    for arguments in (("fit",), ("nonsense",), ("fit", "birds.npz", "--target", "bird", "-o", "x", "--tol", "much")):
        result = call(*arguments, cwd=folder)
        assert result.returncode == 2
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1
        assert "(see `compshift" in result.err


def test_warnings_are_one_line(folder):
    result = run(*FIT, "--max-iter", "2", cwd=folder)
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: the fit stopped after 2 iterations")
    assert "NOT converged" in result.stdout


def test_columns_of_different_scales_are_named(folder, call, tmp_path):
    with np.load(folder / "birds.npz", allow_pickle=False) as stream:
        arrays = dict(stream)
    arrays["X"] = arrays["X"] * np.where(np.arange(arrays["X"].shape[1]) == 1, 1e3, 1.0)
    np.savez(tmp_path / "scaled.npz", **arrays)
    result = call("fit", "scaled.npz", "--target", "bird", "--attributes", "place", "-o", "m", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert "warning: the standard deviation of 'f1' is" in result.err
    assert result.err.count("standard deviation of") == 1


def test_alpha_by_held_out_groups(tmp_path, call):
    """The chosen alpha and the expected accuracy are printed, saved, and shown beside the measured accuracy."""
    rng = np.random.default_rng(0)
    space = GroupSpace(("bird", "place"), (("gull", "owl", "wren"), ("land", "sea", "town", "air")))
    codes = space.codes(np.repeat(np.arange(12), 40))
    X = np.random.default_rng(1).normal(size=(7, 6))[codes + space.offsets].sum(axis=1) * 2 + rng.normal(size=(480, 6))
    for name, kept in (("some", np.repeat(np.arange(12), 40) != 5), ("all", np.ones(480, dtype=bool))):
        write_features(tmp_path / f"{name}.npz", GroupedDataset(X[kept], space, codes[kept]))
    fit = ("fit", "some.npz", "--target", "bird", "--attributes", "place", "--prior", "hull", "-o", "m.safetensors")
    result = call(*fit, "--alpha", "auto", cwd=tmp_path)
    assert result.returncode == 0
    assert "chosen on held-out groups (5 folds): alpha" in result.out
    assert "expected accuracy on 1 unseen group:" in result.out
    assert "(owl, sea)" in result.out
    fitted = json.loads(call(*fit, "--unseen-offset", "0.5", "--json", cwd=tmp_path).out)
    assert fitted["unseen_offset"] == 0.5
    fitted = json.loads(call(*fit, "--alpha", "1e-3,1e-1", "--jobs", "2", "--json", cwd=tmp_path).out)
    assert fitted["unseen_offset"] != 0
    assert fitted["alpha"] in (1e-3, 1e-1)
    assert [group["bird"] for group in fitted["expected_accuracy"]] == ["owl"]
    table = call("evaluate", "m.safetensors", "all.npz", cwd=tmp_path).out
    assert "expected" in table
    groups = json.loads(call("evaluate", "m.safetensors", "all.npz", "--json", cwd=tmp_path).out)["groups"]
    foretold = [group for group in groups if "expected_accuracy" in group]
    assert [(group["bird"], group["place"]) for group in foretold] == [("owl", "sea")]
    assert foretold[0]["expected_lower"] <= foretold[0]["expected_accuracy"] <= foretold[0]["expected_upper"]
    plain = call(*fit, "--alpha", "1e-2", cwd=tmp_path).out
    assert "held-out" not in plain
