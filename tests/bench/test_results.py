"""Numbers of tables, computed from records."""

import csv
import io
import json
import math

import numpy as np
import pytest

from compshift.bench.records import scores
from compshift.bench.results import Score, group_results, stored_results
from compshift.bench.selection import chosen_records
from compshift.report.tables import make_tables, to_csv
from tests.bench.small import birds, run
from tests.report.records import Made, write_results

FEATURES = "b: linear heads on fixed features, 1 scenario, 2 draws."


ALL = "b: linear heads on fixed features, 6 scenarios, 2 draws."


def test_mean_and_standard_error():
    score = Score.over([0.5, 0.6, 0.7])
    assert score.mean == pytest.approx(60)
    assert score.error == pytest.approx(10 / math.sqrt(3))
    assert Score.over([0.5]) == Score(50.0, None, 1)
    assert Score(60, 3).distance(Score(50, 4)) == pytest.approx(2)
    assert Score(60).distance(Score(50)) is None


@pytest.mark.parametrize("metric", ["balanced", "worst"])
def test_results_match_a_loop_over_records(tmp_path, metric):
    store, _, _ = run(
        tmp_path / "out", [birds(tmp_path / "b.npz")], ("subg", "crm"), ("each", "none"), seeds=3, select=metric
    )
    records = list(store.records())
    results = stored_results(store)
    for method, name in (("subg", "SUBG"), ("crm", "CRM")):
        by_seed = {}
        for scenario in {tuple(map(tuple, record["config"]["dropped"])) for record in records}:
            own = [
                record
                for record in records
                if record["config"]["method"] == method and tuple(map(tuple, record["config"]["dropped"])) == scenario
            ]
            first = {
                record["config"]["draw"]: scores(record, "val")[metric]
                for record in own
                if not record["config"]["seed"]
            }
            best = min(draw for draw in first if first[draw] == max(first.values()))
            chosen = {
                record["config"]["seed"]: scores(record)["worst"] for record in own if record["config"]["draw"] == best
            }
            found = results.scenarios["b", scenario, name] if scenario else results.standard["b", name]
            assert found["worst"].mean == pytest.approx(100 * np.mean(list(chosen.values())))
            if scenario:
                for seed, value in chosen.items():
                    by_seed.setdefault(seed, []).append(value)
        means = [100 * np.mean(values) for values in by_seed.values()]
        score = results.main["b", name]["worst"]
        assert score.mean == pytest.approx(np.mean(means))
        if method == "subg":
            assert len(means) == score.seeds == 3
            assert score.error == pytest.approx(np.std(means, ddof=1) / np.sqrt(3))
        else:
            assert score.error is None
    assert set(results.ablations) == {
        ("b", variant) for variant in ("CRM", "B* + Emp Prior", "B_hat + Unf Prior", "B_hat + Emp Prior")
    }
    assert results.ablations["b", "CRM"]["worst"] == results.main["b", "CRM"]["worst"]
    assert results.notes == [ALL]
    assert results.extent == {("b", "SUBG"): (6, 2), ("b", "CRM"): (6, 2)}


def _edit(store, key, **change):
    path = store.record_path(key)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def test_diverged_seeds_are_noted_and_never_marked_best(tmp_path):
    source = birds(tmp_path / "b.npz")
    store, _, ran = run(tmp_path / "out", [source], ("subg", "erm"), ("water,sea", "land,sand"), seeds=3)
    lost = next(job for job in ran if job.seed == 2)
    _edit(store, lost.key, status="diverged")
    results = stored_results(store)
    assert f"SUBG on b {lost.scenario}: 1 of 3 seeds diverged and are left out" in results.notes
    assert results.partial == {("b", "SUBG")}
    assert results.main["b", "SUBG"]["worst"].seeds == 2
    main = make_tables(results)[0]
    assert [row[1].text for row in main.rows] == ["ERM", "SUBG*"]
    assert not any(cell.best for cell in main.rows[1])
    assert any(cell.best for cell in main.rows[0])


def test_notes_mention_missing_seeds(tmp_path):
    source = birds(tmp_path / "b.npz")
    store, _, ran = run(tmp_path / "out", [source], ("subg",), ("water,sea",), seeds=3)
    assert stored_results(store).notes == [FEATURES]
    (store.path / "jobs" / f"{ran[-1].key}.json").unlink()
    assert stored_results(store).notes == [
        FEATURES,
        "b is not finished: draws or seeds are missing for 1 of 1 pairs of scenario and method.",
    ]


def test_results_of_other_settings_are_left_out(tmp_path):
    """Two runners that start at the same time with different options can write to one folder; only one counts."""
    source = birds(tmp_path / "b.npz")
    store, _, ran = run(tmp_path / "out", [source], ("erm",), ("water,sea",))
    record = store.read(ran[0].key)
    strange = {**record["config"], "protocol": {**record["config"]["protocol"], "steps": 99}}
    _edit(store, ran[0].key, config=strange)
    results = stored_results(store)
    assert "1 results with other data, settings or versions of a method are left out" in results.notes


def test_a_group_is_trusted_as_its_least_reliable_fit(tmp_path):
    drops = ("water,sea", "water,sea;land,sand", "land,sand")
    store, _, _ = run(tmp_path / "out", [birds(tmp_path / "b.npz")], ("crm",), drops, draws=1)
    (found,) = group_results(chosen_records(store))
    entries = [entry for record in store.records() for entry in record["detail"]["extrapolated"]]
    for code, (size, tail) in zip(found.groups.tolist(), found.trust, strict=True):
        own = [(size, tail) for group, size, tail in entries if group == code]
        if code in ([1, 1], [0, 2]):
            assert len({size for size, _ in own}) == 2
            assert (size, tail) == (min(size for size, _ in own), max(tail for _, tail in own))
        else:
            assert np.isnan([size, tail]).all()


def test_notes_mention_unequal_numbers_of_draws(tmp_path):
    source = birds(tmp_path / "b.npz")
    run(tmp_path / "out", [source], ("erm",), ("water,sea",), draws=1)
    store, _, _ = run(tmp_path / "out", [source], ("crm",), ("water,sea",), draws=3)
    (note,) = stored_results(store).notes
    assert note.endswith("methods had different numbers of draws to choose from: ERM 1, CRM 3.")


def test_notes_mention_groups_outside_the_hull(tmp_path):
    store, _, _ = run(tmp_path / "out", [birds(tmp_path / "b.npz")], ("crm",), ("land,sand;water,sand", "water,sea"))
    assert (
        "b: in 1 of 2 scenarios some tested groups lie outside the affine hull of the seen groups"
        in stored_results(store).notes[1]
    )


def test_a_note_says_which_methods_combinations_chose_for(tmp_path):
    source = birds(tmp_path / "b.npz")
    store, _, ran = run(tmp_path / "out", [source], ("crm", "erm"), ("water,sea", "none"), select="combinations")
    results = stored_results(store)
    note = (
        "b: linear heads on fixed features, 1 scenario, 2 draws; CRM's ridge is chosen by held-out combinations of the "
        "training rows (if none can be held out, by the numbers of features and rows), and a draw of each other method "
        "by balanced validation accuracy."
    )
    assert results.notes == [note]
    assert results.extent == {("b", "CRM"): (1, 0), ("b", "ERM"): (1, 2)}
    assert sum(job.method.name == "crm" for job in ran) == 2
    assert sum(note in grid.notes for grid in make_tables(results)) == 2  # the main and the standard table
    rows = csv.DictReader(io.StringIO(to_csv(results, only="main")))
    assert {(row["method"], row["draws"]) for row in rows} == {("CRM", "0"), ("ERM", "2")}
    store, _, _ = run(tmp_path / "alone", [source], ("crm",), ("water,sea",), select="combinations")
    assert stored_results(store).notes == [note.replace(", 2 draws", "")]


TAILS = {  # Pareto k̂ of the unseen groups in each scenario; None if it is unknown
    "(duck, lake)": [0.71],
    "(gull, lake)": [0.7],
    "(owl, lake)": [None],
    "(hen, lake) (hen, sea)": [0.2, 2.5],
}


def _with_tails(path, mode="features", select="balanced", tails=TAILS):
    """Return the notes below the main table on made-up results in which CRM's biases have these tails."""
    dropped = {name: [(bird, place) for place, _ in enumerate(tails[name])] for bird, name in enumerate(tails)}
    settings = {"mode": mode, "select": select, "backbone": None, "steps": 20}
    made = Made(values=(("duck", "gull", "owl", "hen"), ("lake", "sea")), scenarios=dropped, settings=settings)

    def change(record):
        if record["config"]["method"] == "crm":
            codes, tail = record["config"]["dropped"], tails[record["config"]["scenario"]]
            record["detail"]["extrapolated"] = [[code, 9.0, k] for code, k in zip(codes, tail, strict=True)]
        return record

    main, *_ = make_tables(stored_results(write_results(path, made, change=change)))
    return [note for note in main.notes if "k̂" in note]


def test_a_note_counts_the_scenarios_in_which_validation_chose_a_weak_ridge_for_crm(tmp_path):
    (note,) = _with_tails(tmp_path / "out")
    assert note.startswith("birds: in 2 of 4 scenarios CRM's ridge, drawn at random and chosen by validation rows")
    assert "Pareto k̂ above 0.7" in note
    assert "--select combinations" in note


def test_no_note_on_the_ridge_where_there_is_nothing_to_say(tmp_path):
    assert _with_tails(tmp_path / "known", tails={"(duck, lake)": [0.6]}) == []
    assert _with_tails(tmp_path / "chosen", select="combinations") == []  # validation did not choose it
    assert _with_tails(tmp_path / "tuned", mode="fine-tuning") == []  # there is no ridge
