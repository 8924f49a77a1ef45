"""``--known`` of predict and evaluate: tables, feature files and data sets, with good and bad input."""

import json

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from compshift import CRMClassifier, CRMClassifierCV
from compshift.data.benchmarks import benchmark
from tests.estimators.made_data import make_data

FEATURES = ["f_one", "f_two", "f_three", "f_four"]
BIRDS, PLACES = np.array(["duck", "gull"]), np.array(["lake", "sea", "wood"])


@pytest.fixture
def birds(tmp_path):
    """A model of bird × place × device, and a table with its columns."""
    X, codes = make_data((2, 3, 2), n=300, missing=(0,))
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["bird"], frame["place"], frame["device"] = BIRDS[codes[:, 0]], PLACES[codes[:, 1]], codes[:, 2] + 1
    frame.to_csv(tmp_path / "birds.csv", index=False)
    clf = CRMClassifier(cross_fit=True).fit(frame[FEATURES], frame["bird"], attributes=frame[["place", "device"]])
    clf.save(tmp_path / "m.safetensors")
    return tmp_path, frame, clf


def with_gaps(frame):
    """Return the attributes as objects with about half of the values missing."""
    table = frame[["place", "device"]].astype(object)
    return table.mask(np.random.default_rng(0).random(table.shape) < 0.5, None)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_predictions_use_known_columns_and_empty_cells_are_unknown(call, birds, ending):
    folder, frame, clf = birds
    table = with_gaps(frame)
    given = frame[FEATURES].join(table.astype({"device": "Int64"}))
    if ending == "parquet":
        given.to_parquet(folder / "new.parquet")
    else:
        given.to_csv(folder / f"new.{ending}", index=False, sep="\t" if ending == "tsv" else ",")
    for names, known in (("place,device", table), ("device", table[["device"]]), ("place", table[["place"]])):
        result = call("predict", "m.safetensors", f"new.{ending}", "--known", names, "-o", "p.parquet", cwd=folder)
        assert (result.returncode, result.err) == (0, "")
        said = f"300 predictions written to p.parquet (attributes known in use: {names.replace(',', ', ')})\n"
        assert result.out == said
        found = pd.read_parquet(folder / "p.parquet")
        expected = clf.predict_proba(frame[FEATURES], attributes=known)
        np.testing.assert_allclose(found[["P(bird=duck)", "P(bird=gull)"]], expected, atol=1e-6)
        assert found["bird"].tolist() == clf.predict(frame[FEATURES], attributes=known).tolist()
    result = call("predict", "m.safetensors", f"new.{ending}", "-o", "p.parquet", cwd=folder)
    assert result.out == "300 predictions written to p.parquet\n"
    found = pd.read_parquet(folder / "p.parquet")["P(bird=duck)"]
    np.testing.assert_allclose(found, clf.predict_proba(frame[FEATURES])[:, 0], atol=1e-6)


def test_every_column_of_the_output_uses_them(call, birds):
    folder, frame, clf = birds
    options = ["--known", "place", "--groups", "--explain", "--sets", "0.8", "-o", "p.parquet"]
    assert call("predict", "m.safetensors", "birds.csv", *options, cwd=folder).returncode == 0
    found, known = pd.read_parquet(folder / "p.parquet"), frame[["place"]]
    assert (found["group place"] == frame["place"]).all()
    sets = ["|".join(part) for part in clf.predict_set(frame[FEATURES], 0.8, attributes=known)]
    assert found["bird set"].tolist() == sets
    at_sea = [name for name in found.columns if name.startswith("P(bird=") and "place=sea" in name]
    assert len(at_sea) == 4
    np.testing.assert_allclose(found[at_sea].sum(axis=1), frame["place"] == "sea", atol=1e-9)


def test_evaluations_say_which_use_it_is(call, birds):
    folder, frame, clf = birds
    result = call("evaluate", "m.safetensors", "birds.csv", "--known", "device,place", "--json", cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    known, plain = (
        json.loads(result.out),
        json.loads(call("evaluate", "m.safetensors", "birds.csv", "--json", cwd=folder).out),
    )
    assert known["attributes_known_in_use"] == ["device", "place"]
    assert plain["attributes_known_in_use"] == []
    score = clf.score(frame[FEATURES], frame["bird"], attributes=frame[["place", "device"]])
    assert known["average"] == pytest.approx(score)
    assert plain["average"] == pytest.approx(clf.score(frame[FEATURES], frame["bird"]))
    assert known["compositional_risk"] < plain["compositional_risk"]
    lines = call("evaluate", "m.safetensors", "birds.csv", "--known", "place", cwd=folder).out.splitlines()
    assert "attributes known in use: place" in lines
    lines = call("evaluate", "m.safetensors", "birds.csv", cwd=folder).out.splitlines()
    assert "attributes unknown in use" in lines


def test_expected_accuracy_is_that_of_unknown_attributes(call, birds):
    folder, frame, _ = birds
    clf = CRMClassifierCV(alphas=[0.1, 1.0]).fit(frame[FEATURES], frame["bird"], attributes=frame[["place", "device"]])
    assert len(clf.expected_group_accuracy_)
    clf.save(folder / "cv.safetensors")
    plain = call("evaluate", "cv.safetensors", "birds.csv", "--json", cwd=folder).out
    known = call("evaluate", "cv.safetensors", "birds.csv", "--known", "place", "--json", cwd=folder).out
    assert "expected_accuracy" in plain
    assert "expected_accuracy" not in known


@pytest.mark.parametrize("split", [None, "test"])
def test_feature_files_have_known_attributes(call, birds, split):
    folder, frame, _ = birds
    X, codes = (
        frame[FEATURES].to_numpy(),
        np.stack([frame["place"].factorize(sort=True)[0], frame["device"] - 1], axis=1),
    )
    clf = CRMClassifier().fit(X, frame["bird"], attributes=frame[["place", "device"]])
    clf.save(folder / "plain.safetensors")
    splits = np.random.default_rng(0).integers(0, 3, size=len(X))
    values = json.dumps({"place": PLACES.tolist(), "device": [1, 2]})
    np.savez(folder / "f.npz", X=X, Z=codes, attribute_names=["place", "device"], value_names=values, split=splits)
    gaps = with_gaps(frame)
    pd.DataFrame({"features": list(X), "split": splits}).join(gaps).to_parquet(folder / "f.parquet")
    rows = slice(None) if split is None else splits == 2
    chosen = [] if split is None else ["--split", split]
    for name, known in (("f.npz", frame[["place", "device"]]), ("f.parquet", gaps)):
        options = ["--known", "device,place", *chosen, "-o", "p.parquet"]
        result = call("predict", "plain.safetensors", name, *options, cwd=folder)
        assert (result.returncode, result.err) == (0, "")
        expected = clf.predict_proba(X[rows], attributes=known[rows].reset_index(drop=True))
        np.testing.assert_allclose(pd.read_parquet(folder / "p.parquet")["P(bird=duck)"], expected[:, 0], atol=1e-6)


def test_values_that_are_written_alike_are_the_same(call, birds):
    """The device of the model is the integer 1; a file in which another row has text has the text "1"."""
    folder, frame, clf = birds
    given = frame[FEATURES].assign(device=np.where(frame["device"] == 1, "1", "2.0"))
    given.to_parquet(folder / "new.parquet")
    result = call("predict", "m.safetensors", "new.parquet", "--known", "device", "-o", "p.parquet", cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    expected = clf.predict_proba(frame[FEATURES], attributes=frame[["device"]])[:, 0]
    np.testing.assert_allclose(pd.read_parquet(folder / "p.parquet")["P(bird=duck)"], expected, atol=1e-6)


def test_data_sets_have_known_attributes(call, tmp_path):
    pytest.importorskip("accelerate")
    options = ["--steps", "20", "--device", "cpu", "-o", "run"]
    result = call("train", "penguins", *options, cwd=tmp_path)
    assert result.returncode == 0, result.err
    clf = cs.load(tmp_path / "run")
    (name, *_) = clf.space_.names[1:]
    result = call("predict", "run", "penguins", "--known", name, "--explain", "-o", "p.csv", cwd=tmp_path)
    assert result.returncode == 0, result.err
    known = benchmark("penguins").load().columns([name])[name]
    assert (pd.read_csv(tmp_path / "p.csv")[f"group {name}"].astype(str) == known.astype(str)).all()
    result = call("evaluate", "run", "penguins", "--known", name, "--json", cwd=tmp_path)
    assert json.loads(result.out)["attributes_known_in_use"] == [name]


@pytest.mark.slow
def test_broken_images_keep_values_with_their_rows(call, tmp_path):
    """Rows that cannot be read are left out of the features and of the known attributes alike."""
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(24):
        bird, place = number % 2, number // 2 % 2
        pixels = rng.integers(0, 60, size=(32, 32, 3)) + np.array([120 * bird, 120 * place, 0])
        image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{number}.png")
        rows.append({"photo": f"{number}.png", "bird": BIRDS[bird], "place": PLACES[place]})
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "images.csv", index=False)
    labels = ["--path", "photo", "--target", "bird", "--attributes", "place"]
    result = call("fit", "images.csv", *labels, "-o", "images.safetensors", cwd=tmp_path)
    assert result.returncode == 0, result.err
    (tmp_path / "3.png").write_bytes(b"no image")
    options = ["--known", "place", "--skip-broken", "--explain", "-o", "p.csv"]
    result = call("predict", "images.safetensors", "images.csv", *options, cwd=tmp_path)
    assert result.returncode == 0, result.err
    found = pd.read_csv(tmp_path / "p.csv")
    assert found["group place"].isna().tolist() == [number == 3 for number in range(24)]
    others = found["group place"].notna()
    assert (found["group place"][others] == frame["place"][others]).all()


@pytest.mark.parametrize("command", [["evaluate"], ["predict", "-o", "p.csv"]])
@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ("plaice", "attribute 'plaice' is not known: use one of 'place', 'device'; did you mean 'place'?"),
        ("bird", "'bird' is a target, which the model predicts: as known attributes pass only 'place', 'device'"),
        ("place,bird", "'bird' is a target, which the model predicts: as known attributes pass only 'place', 'device'"),
        ("place,place", "--known is 'place,place': name each attribute once"),
        (",", "--known is empty: pass one or more names separated by commas"),
        ("", "--known is empty: pass a value, or leave it out"),
        ("all", "attribute 'all' is not known: use one of 'place', 'device'"),
    ],
)
def test_wrong_names_are_one_sentence(call, birds, command, known, sentence):
    folder, *_ = birds
    result = call(command[0], "m.safetensors", "birds.csv", "--known", known, *command[1:], cwd=folder)
    assert (result.returncode, result.err) == (2, f"error: {sentence}\n")
    assert not (folder / "p.csv").exists()


def test_bad_tables_are_one_sentence(call, birds):
    folder, frame, _ = birds
    predict = ["--known", "place", "-o", "p.csv"]
    frame.drop(columns="place").to_csv(folder / "absent.csv", index=False)
    result = call("predict", "m.safetensors", "absent.csv", *predict, cwd=folder)
    assert result.returncode == 2
    assert result.err.startswith(
        "error: 'absent.csv' lacks the column 'place', which --known names: add it, or leave it "
    )
    frame.assign(place=["moon", *frame["place"][1:]]).to_csv(folder / "new.csv", index=False)
    result = call("predict", "m.safetensors", "new.csv", *predict, cwd=folder)
    assert (result.returncode, result.err) == (
        2,
        "error: attribute 'place' is 'moon' in row 0, a value that training lacks: known values are 'lake', 'sea', "
        "'wood'; leave the value missing (None, or an empty cell) in rows where it is new (rows are counted from 0, "
        "without the header)\n",
    )
    frame.assign(device=["new", *frame["device"][1:]]).to_csv(folder / "new.csv", index=False)
    result = call("predict", "m.safetensors", "new.csv", "--known", "device", "-o", "p.csv", cwd=folder)
    assert "attribute 'device' is 'new' in row 0, a value that training lacks: known values are 1, 2;" in result.err
    frame.assign(place=[None, *frame["place"][1:]]).to_csv(folder / "gap.csv", index=False)
    result = call("evaluate", "m.safetensors", "gap.csv", "--known", "place", cwd=folder)
    assert (result.returncode, result.err.count("\n")) == (2, 1)
    assert "attribute 'place' has 1 missing" in result.err
    np.savez(folder / "f.npz", X=frame[FEATURES].to_numpy())
    result = call("predict", "m.safetensors", "f.npz", *predict, cwd=folder)
    assert (result.returncode, result.err.count("\n")) == (2, 1)
    assert "'f.npz' lacks the column 'place', which --known names" in result.err
    clf = CRMClassifier().fit(frame[FEATURES], frame["bird"])
    clf.save(folder / "alone.safetensors")
    result = call("predict", "alone.safetensors", "birds.csv", *predict, cwd=folder)
    assert result.err == (
        "error: the model has no attributes besides its target 'bird', so none can be known: leave --known out\n"
    )
    assert not (folder / "p.csv").exists()


def test_networks_without_groups_take_no_known_attributes(call, birds):
    pytest.importorskip("accelerate")
    folder, *_ = birds
    options = ["--target", "bird", "--attributes", "place,device", "--method", "erm", "--steps", "10"]
    columns = ["--columns", ",".join(FEATURES), "--shares", "0.7,0.1,0.2", "--device", "cpu"]
    result = call("train", "birds.csv", *options, *columns, "-o", "run", cwd=folder)
    assert result.returncode == 0, result.err
    for command in (["evaluate"], ["predict", "-o", "p.csv"]):
        result = call(command[0], "run", "birds.csv", "--known", "place", *command[1:], cwd=folder)
        sentence = "error: --known is for models of groups, but 'run' predicts only classes: leave it out\n"
        assert (result.returncode, result.err) == (2, sentence)
