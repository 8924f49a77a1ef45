"""Messages of the library name parameters; the command line shows them as options."""

import json
import warnings

import numpy as np
import pytest
import typer

from compshift.cli.main import app
from compshift.cli.option_names import as_options, command_options
from tests.cli.commands import skip_without_extra
from tests.estimators.made_data import make_data

FIT = ("fit", "birds.npz", "--target", "bird", "--attributes", "place", "-o", "x")
TRAIN = ("train", "birds.npz", "--target", "bird", "--attributes", "place", "--backbone", "linear", "-o", "run")
TABLE = ("fit", "birds.csv", "--target", "bird", "--attributes", "place", "-o", "x")
BENCH = ("bench", "birds.npz", "--features", "-o", "out")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Features with splits, tables with an identifier and with numbers, a model, and a prior that does not fit it."""
    folder = tmp_path_factory.mktemp("names")
    X, codes = make_data(n=400, missing=(2,))[:2]
    arrays = {"X": X, "Z": codes, "attribute_names": ["bird", "place"]}
    values = json.dumps({"bird": ["landbird", "waterbird"], "place": ["land", "water", "sky"]})
    np.savez(folder / "birds.npz", **arrays, value_names=values, split=np.repeat([0, 2], [300, 100]))
    np.savez(folder / "whole.npz", **arrays, value_names=values)
    rows = [f"{i},{i / 7},{'ab'[i % 2]},{'xyz'[i % 3]},p{i}.png" for i in range(60)]
    (folder / "birds.csv").write_text("\n".join(["id,size,bird,place,photo", *rows]) + "\n")
    lines = [f"{bird},{place},{1 / 6}" for bird in ("landbird", "waterbird") for place in ("land", "water", "sky")]
    (folder / "sixths.csv").write_text("\n".join(["bird,place,prior", *lines]) + "\n")
    (folder / "steps.toml").write_text('steps = "5"\n')
    return folder


MESSAGES = [
    ((*FIT, "--alpha", "-1"), "error: --alpha is -1.0: pass a finite number ≥ 0"),
    ((*FIT, "--alpha", "0,1"), "error: --alpha contains 0: without a ridge"),
    ((*FIT, "--tol", "0"), "error: --tol is 0.0: pass"),
    ((*FIT, "--max-iter", "0"), "error: --max-iter is 0: pass"),
    ((*FIT, "--max-iter", "1"), "raise --max-iter (now 1), raise --alpha, or loosen --tol"),
    ((*FIT, "--unseen-offset", "some"), "error: --unseen-offset is 'some'"),
    ((*FIT, "--prior", "sixths.csv", "--support", "observed"), "error: --prior gives 0.167 to (landbird, sky)"),
    (("audit", "birds.csv", "--attributes", "bird,id", "--max-values", "9"), "or raise --max-values (now 9)"),
    (("audit", "birds.csv", "--attributes", "bird,size"), "or pass --max-values 60 if its values are categories"),
    (("audit", "birds.npz", "--attributes", "bird", "--count", "n"), "error: --count cannot be used with an .npz"),
    (("audit", "whole.npz", "--attributes", "bird", "--split", "train"), "has no splits: leave out --split"),
    (("features", "waterbirds", "-o", "x"), "pass the folder that holds it as --root"),
    ((*TABLE, "--path", "photo"), "pass as --root the folder that the paths are relative to"),
    ((*TABLE, "--text", "id,size,photo"), "error: --text names 3 columns"),
    ((*TRAIN, "--steps", "0"), "error: --steps is 0"),
    ((*TRAIN, "--lr", "0"), "error: --lr is 0.0"),
    ((*TRAIN, "--batch-size", "99999999"), "error: --batch-size is 99999999"),
    ((*TRAIN, "--weight-decay", "-1"), "error: --weight-decay is -1.0"),
    ((*TRAIN, "--momentum", "1"), "error: --momentum is 1.0"),
    ((*TRAIN, "--patience", "3"), "error: --patience is 3, but there are no validation rows"),
    ((*TRAIN, "--patience", "3"), "or pass --patience 0"),
    ((*TRAIN, "--drop", "owl"), "error: --drop is 'owl': name one value of each attribute"),
    ((*TRAIN, "--drop", "owl,sky"), "error: --drop: bird has no value 'owl'"),
    ((*TRAIN, "--shares", "0.5,0.5"), "error: --shares cannot be used with 'birds.npz', which already has splits"),
    ((*TRAIN, "--shares", "0.5,0.5"), ": leave --shares out"),
    ((*TRAIN, "--config", "steps.toml"), "error: steps is '5': pass an integer"),  # the name in the file
    ((*TRAIN, "--set", "alpha=-1", "--method", "mixup"), "error: alpha is -1"),  # train has no --alpha
    ((*BENCH, "--draws", "0"), "error: --draws is 0"),
    ((*BENCH, "--draws", "2000000", "--seeds", "2"), "error: --draws is 2000000: pass at most 100000"),
    (("bench", "whole.npz", "--features", "-o", "x"), "split the file at random with --shares such as"),
    ((*BENCH, "--strict"), "birds: --strict needs a data set with origin: leave out --strict if"),
]


@pytest.mark.parametrize(("arguments", "message"), MESSAGES)
def test_the_command_line_names_options(folder, call, arguments, message):
    skip_without_extra(arguments[0])
    if "--path" in arguments:
        pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = call(*arguments, cwd=folder)
    assert message in result.err
    assert "_" not in result.err.replace("steps.toml", "")


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        ("fit", "prior='hull' cannot be used: use another prior", "--prior hull cannot be used: use another prior"),
        ("fit", 'outside the hull: use prior="hull" to give', "outside the hull: use --prior hull to give"),
        (
            "fit",
            "cross_fit=True cannot be used: use cross_fit=False",
            "--cross-fit cannot be used: leave out --cross-fit",
        ),
        ("fit", "the features again with overwrite", "the features again with --overwrite"),
        (
            "fit",
            "pass another folder, or overwrite to replace them",
            "pass another folder, or --overwrite to replace them",
        ),
        ("fit", "read with skip_broken", "read with --skip-broken"),
        ("fit", "num_workers is -1", "--workers is -1"),
        ("fit", "birds: drop is 'x'", "birds: drop is 'x'"),
        ("bench", "birds: drop is 'x'", "birds: --drop is 'x'"),
        ("predict", "groups and explain need a model", "--groups and --explain need a model"),
        ("features", "or try dtype='float32'", "or try --dtype float32"),
        ("predict", "or try dtype='float32'", "or try dtype='float32'"),
        ("fit", "split has 2 dimensions: pass one split per row", "split has 2 dimensions: pass one split per row"),
        ("fit", "'a max_iter b' lacks 'max_iter' and max_iter", "'a max_iter b' lacks 'max_iter' and --max-iter"),
        ("fit", "the model's max_iter isn't 'max_iter'", "the model's --max-iter isn't 'max_iter'"),
        ("fit", "the attributes have a prior; drop fewer groups", "the attributes have a prior; drop fewer groups"),
        ("fit", "pass Store(a, split='train') or f(tol=g(1))", "pass Store(a, split='train') or f(tol=g(1))"),
        ("datasets check", "pass it as root", "pass it as --root"),
    ],
)
def test_forms_of_a_message(command, before, after):
    options = command_options(typer.main.get_command(app), command.split())
    assert as_options(before, options) == after


def test_a_command_without_options_changes_nothing():
    assert as_options("alpha is 1: pass max_values", {}) == "alpha is 1: pass max_values"
