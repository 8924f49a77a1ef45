"""Records of others: what tables look at is checked before it is used."""

import json

import pytest

from compshift import InputError
from compshift.bench.results import stored_results
from compshift.bench.store import Store
from tests.report.records import Made, write_results


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("right", {"test": {}, "val": {}}),
        ("rows", {"test": [1]}),
        ("groups", [[9, 9]]),
        ("values", [["a"], ["b"]]),
        ("train_rows", [-1] * 6),
        ("seconds", None),
        ("versions", {}),
        ("config", []),
        ("detail", None),
    ],
)
def test_a_damaged_record_is_named(tmp_path, name, value):
    store = write_results(tmp_path / "out", Made())
    stored_results(store)
    path = sorted((store.path / "jobs").glob("*.json"))[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(InputError, match=rf"{path.stem}.*is damaged .*remove it, and its job runs again"):
        stored_results(store)


@pytest.mark.parametrize(
    "plans", [{"birds": [[[], "erm", 10**12, 1]]}, {"birds": [1]}, {"others": []}, [], {"birds": [[5, "erm", 1, 1]]}]
)
def test_plans_that_are_none(tmp_path, plans):
    store = write_results(tmp_path / "out", Made())
    store.about.write_text(json.dumps({**json.loads(store.about.read_text()), "plans": plans}))
    with pytest.raises(InputError, match="is not what a benchmark writes"):
        Store.open(store.path)


def test_results_that_are_links(tmp_path):
    store = write_results(tmp_path / "out", Made())
    path = sorted((store.path / "jobs").glob("*.json"))[0]
    path.rename(tmp_path / "secret.json")
    path.symlink_to(tmp_path / "secret.json")
    with pytest.raises(InputError, match="leads out of"):
        stored_results(store)
