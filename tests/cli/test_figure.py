"""``compshift figure``: pictures, with their numbers beside them."""

import json

import numpy as np
import pandas as pd
import pytest

from compshift import AffineHull, GroupSpace
from compshift.studies.growth import GrowthCase


def test_figure(tmp_path, call):
    pytest.importorskip("matplotlib")
    result = call("figure", "gaussian2d", "-o", "out.png", "--samples", "300", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    for word in ("ERM", "CRM (B̂)", "CRM (B*)", "Bayes", "never seen", "worst group"):
        assert word in result.out
    numbers = pd.read_csv(tmp_path / "out.csv").set_index(["predicting", "method", "z1", "z2"])
    assert len(numbers) == 2 * 4 * 4
    assert (~numbers["seen"]).sum() == 8
    assert f"{numbers.loc[('z1', 'ERM', -1, -1), 'accuracy']:.3f}" in result.out
    content = json.loads(call("figure", "gaussian2d", "-o", "out.svg", "--samples", "300", "--json", cwd=tmp_path).out)
    assert content["z1"]["ERM"]["worst"] < content["z1"]["CRM (B*)"]["worst"]


def test_the_hull_growth_figure_has_its_numbers_beside_it(tmp_path, call):
    pytest.importorskip("matplotlib")
    result = call("figure", "hull-growth", "-o", "growth.png", "--trials", "3", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    numbers = pd.read_csv(tmp_path / "growth.csv")
    assert (numbers["mean"] >= numbers["least"]).all()
    assert max(map(len, result.out.splitlines())) <= 80


def test_the_growth_figure_resumes_from_its_store(tmp_path, call, monkeypatch):
    pytest.importorskip("matplotlib")
    cases = [GrowthCase(2, 3, share, seed, n_train=200) for share in (0.7, 1.0) for seed in range(2)]
    monkeypatch.setattr("compshift.studies.growth.plan_cases", lambda **_: cases)
    first = call("figure", "growth", "-o", "growth.png", "--quick", cwd=tmp_path)
    assert first.returncode == 0, first.err
    assert len((tmp_path / "growth.jsonl").read_text().splitlines()) == 4
    assert len(pd.read_csv(tmp_path / "growth.csv")) == 4
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, first.out.splitlines())) <= 80
    monkeypatch.setattr("compshift.studies.growth.run_case", lambda _: pytest.fail("a finished case ran again"))
    again = call("figure", "growth", "-o", "growth.png", "--quick", "--json", cwd=tmp_path)
    assert [row["share"] for row in json.loads(again.out)] == [0.7, 0.7, 1.0, 1.0]


def test_the_hull_figure_has_every_cell_beside_it(tmp_path, call):
    pytest.importorskip("matplotlib")
    result = call("figure", "hull", "-o", "hull.svg", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert "18 cells are outside the affine hull" in result.out
    cells = pd.read_csv(tmp_path / "hull.csv", keep_default_na=False)
    assert len(cells) == 36
    assert cells.groupby("state").size().to_dict() == {"extrapolable": 8, "out of reach": 18, "seen": 10}
    hull = AffineHull(GroupSpace.from_cardinalities([6, 6]), cells.loc[cells["state"] == "seen", ["z1", "z2"]] - 1)
    inside = hull.contains((cells[["z1", "z2"]] - 1).to_numpy())
    np.testing.assert_array_equal(inside, cells["component"] > 0)
    first = cells.loc[cells["component"] == 1, ["z1", "z2"]]
    assert set(map(tuple, first.to_numpy().tolist())) == {(i, j) for i in (1, 2, 3) for j in (1, 2, 3)}
    assert cells.loc[1, "witness"] == "(1, 2) = (1, 3) − (3, 3) + (3, 2)"
    assert (tmp_path / "hull.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("name", "rows"), [("architecture", None), ("three-groups", 4), ("marginals", 32), ("hull-steps", 16)]
)
def test_diagrams_in_every_format(tmp_path, call, name, rows):
    pytest.importorskip("matplotlib")
    few = ["--samples", "300"] if name == "marginals" else []
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for ending, start in starts.items():
        result = call("figure", name, "-o", f"out.{ending}", *few, cwd=tmp_path)
        assert result.returncode == 0, result.err
        assert (tmp_path / f"out.{ending}").read_bytes().startswith(start)
        assert max(map(len, result.out.splitlines())) <= 80
    assert (tmp_path / "out.csv").exists() == (rows is not None)
    if rows:
        assert len(pd.read_csv(tmp_path / "out.csv")) == rows
    json.loads(call("figure", name, "-o", "out.svg", *few, "--json", cwd=tmp_path).out)


def test_a_caption_makes_the_figure_taller_and_can_be_left_out(tmp_path, call):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    assert call("figure", "hull-steps", "-o", "with.png", cwd=tmp_path).returncode == 0
    assert call("figure", "hull-steps", "-o", "without.png", "--no-caption", cwd=tmp_path).returncode == 0
    tall, short = (imread(tmp_path / f"{name}.png") for name in ("with", "without"))
    assert tall.shape[0] > short.shape[0] + 40
    assert tall.shape[1] == short.shape[1]
    foot = tall[short.shape[0] :]
    assert (foot[..., :3] < 0.5).any()  # the text
    assert (foot[:, -5:, :3] == 1).all()  # which ends before the edge


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["hull", "--samples", "9"], "--samples is for the figures gaussian2d and marginals"),
        (["gaussian2d", "--trials", "9"], "--trials is for the figure hull-growth"),
        (["hull-growth", "--quick", "--rows-per-group", "9"], "--quick and --rows-per-group are for the figure growth"),
        (["growth", "--seed", "0"], "--seed is for the figures gaussian2d, marginals and hull-growth"),
        (["growth", "--rows-per-group", "0"], "--rows-per-group is '0'"),
        (["pie"], "figure 'pie' is not known"),
    ],
)
def test_options_of_another_figure_are_rejected(tmp_path, call, arguments, sentence):
    result = call("figure", *arguments, "-o", "out.png", cwd=tmp_path)
    assert (result.returncode, result.out) == (2, "")
    assert sentence in result.err
    assert list(tmp_path.iterdir()) == []
