"""Fits to feature stores, against fits to the same samples in memory."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import compshift
from compshift import CRMClassifier, CRMClassifierCV, InputError
from compshift.data.feature_store import FeatureStore
from tests.crm.stores import agree, sightings, write_store
from tests.processes import torchrun


def lists(table, length, path=None):
    """Return a table with features of another length, and write it if a path is given."""
    features = pa.array([[1.0] * length] * len(table), pa.list_(pa.float64()))
    found = table.drop([name for name in table.column_names if name == "features"]).append_column("features", features)
    if path is not None:
        pq.write_table(found, path)
    return found


@pytest.fixture
def stored(tmp_path):
    X, bird, place = sightings()
    return write_store(tmp_path / "store", X, bird, place), X, bird, place


class TestFit:
    @pytest.mark.parametrize("memory", [1, 1 << 30])
    def test_it_equals_the_fit_in_memory(self, stored, memory):
        store, X, bird, place = stored
        store = FeatureStore(store.path, memory=memory)
        clf = CRMClassifier(prior="hull", tol=1e-8).fit(store, "bird", attributes=["place"])
        plain = CRMClassifier(prior="hull", tol=1e-8).fit(X, bird, attributes=pd.DataFrame({"place": place}))
        agree(clf, plain, X)
        assert clf.classes_.tolist() == ["gull", "owl", "wren"]
        assert clf.space_.names == ("bird", "place")
        assert clf.n_features_in_ == 6
        assert clf.bias_gap_ < 1e-7
        assert np.isnan(clf.pareto_k_).all()

    def test_weights_and_several_targets_equal_the_fit_in_memory(self, stored):
        store, X, bird, place = stored
        weight = np.random.default_rng(1).integers(0, 4, size=len(X)).astype(float)
        both = pd.DataFrame({"bird": bird, "place": place})
        clf = CRMClassifier(0.1, tol=1e-8, support="hull").fit(store, ["bird", "place"], sample_weight=weight)
        plain = CRMClassifier(0.1, tol=1e-8, support="hull").fit(X, both, sample_weight=weight)
        np.testing.assert_allclose(clf.bias_, plain.bias_, atol=1e-6)
        np.testing.assert_array_equal(clf.predict(X), plain.predict(X))

    def test_one_split_alone_can_be_fitted(self, tmp_path):
        X, bird, place = sightings()
        split = np.where(np.arange(700) % 3 == 0, "val", "train")
        write_store(tmp_path / "s", X, bird, place, split=split)
        clf = CRMClassifier(tol=1e-8, prior="hull").fit(
            FeatureStore(tmp_path / "s", split="train"), "bird", attributes="place"
        )
        train = split == "train"
        plain = CRMClassifier(tol=1e-8, prior="hull").fit(X[train], bird[train], attributes=place[train])
        np.testing.assert_allclose(clf.predict_proba(X), plain.predict_proba(X), atol=1e-6)
        with pytest.raises(InputError, match="no rows of the split 'test': use one of 'train', 'val'"):
            CRMClassifier().fit(FeatureStore(tmp_path / "s", split="test"), "bird", attributes="place")

    def test_a_streamed_fit_can_be_saved(self, stored, tmp_path):
        store, X, *_ = stored
        clf = CRMClassifier(prior="hull").fit(store, "bird", attributes=["place"])
        clf.save(tmp_path / "m.safetensors")
        np.testing.assert_array_equal(compshift.load(tmp_path / "m.safetensors").predict(X), clf.predict(X))

    def test_names_of_an_earlier_fit_are_forgotten(self, stored):
        store, *_ = stored
        clf = CRMClassifier()
        clf.feature_names_in_ = np.array(["a", "b"], dtype=object)
        assert not hasattr(clf.fit(store, "bird", attributes="place"), "feature_names_in_")

    def test_constant_features_get_zero_weights(self, tmp_path):
        _, bird, place = sightings(n=60)
        store = write_store(tmp_path / "s", np.full((60, 2), 7.1, dtype=np.float32), bird, place)
        clf = CRMClassifier(prior="hull").fit(store, "bird", attributes=["place"])
        assert np.abs(clf.coef_).max() == 0


JOB = """
import sys
import numpy as np
from torch import distributed
from compshift import CRMClassifier
from compshift.data.feature_store import FeatureStore

distributed.init_process_group("gloo")
clf = CRMClassifier(prior="hull", tol=1e-8).fit(FeatureStore(sys.argv[1]), "bird", attributes=["place"])
np.savez(f"{sys.argv[2]}-{distributed.get_rank()}.npz", coef=clf.coef_, bias=clf.bias_, mean=clf.feature_mean_)
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_equal_one(stored, tmp_path):
    pytest.importorskip("torch")
    store, X, bird, place = stored
    (tmp_path / "job.py").write_text(JOB)
    torchrun(tmp_path / "job.py", store.path, tmp_path / "found")
    first, second = (np.load(tmp_path / f"found-{rank}.npz") for rank in (0, 1))
    alone = CRMClassifier(prior="hull", tol=1e-8).fit(X, bird, attributes=place)
    for name, expected in (("coef", alone.coef_), ("bias", alone.bias_), ("mean", alone.feature_mean_)):
        np.testing.assert_array_equal(first[name], second[name])  # to the bit, or their searches would diverge
        np.testing.assert_allclose(first[name], expected, atol=1e-6)


class TestStore:
    def test_the_blocks_of_all_processes_cover_the_samples_once(self, stored):
        store, X, *_ = stored
        found = np.full_like(X, np.nan)
        for rank in range(3):
            for start, features in store.blocks(50, rank, 3):
                assert 0 < len(features) <= 50
                assert np.isnan(found[start : start + len(features)]).all()
                found[start : start + len(features)] = features
        np.testing.assert_array_equal(found, X)
        assert store.n_rows == 700

    @pytest.mark.parametrize(
        ("rank", "size", "message"), [(0, 0, "size is 0"), (5, 2, "rank is 5 but size is 2: pass")]
    )
    def test_a_rank_outside_the_job_raises(self, stored, rank, size, message):
        with pytest.raises(InputError, match=message):
            list(stored[0].blocks(50, rank, size))

    def test_a_store_with_splits_warns_unless_one_is_chosen(self, tmp_path):
        X, bird, place = sightings()
        write_store(tmp_path / "s", X, bird, place, split=np.array(["train", "test"])[np.arange(len(X)) % 2])
        with pytest.warns(
            UserWarning, match=r"rows of all splits are used for the fit: pass FeatureStore\(…, split='train'\)"
        ):
            clf = CRMClassifier().fit(FeatureStore(tmp_path / "s"), "bird", attributes="place")
        every = CRMClassifier().fit(FeatureStore(tmp_path / "s", "all"), "bird", attributes="place")
        np.testing.assert_array_equal(clf.coef_, every.coef_)
        assert FeatureStore(tmp_path / "s", "all").n_rows == 700
        assert FeatureStore(tmp_path / "s", "train").n_rows == 350

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda table: table.drop(["features"]), "part-00001.parquet' has no column 'features'"),
            (
                lambda table: table.drop(["place"]),
                "part-00001.parquet' has no column 'place' but 'part-00000.parquet'",
            ),
            (lambda table: lists(table, 5), "part-00001.parquet': the lists in column 'features' have 5 numbers"),
            (lambda table: lists(table, 0), "part-00001.parquet': the lists in column 'features' have 0 numbers"),
        ],
    )
    def test_shards_that_differ_raise(self, stored, change, message):
        store = stored[0]
        path = store.files[1]
        pq.write_table(change(pq.read_table(path)), path)
        with pytest.raises(InputError, match=message):
            CRMClassifier().fit(FeatureStore(store.path), "bird", attributes="place")

    def test_empty_feature_lists_and_splits_of_lists_raise(self, tmp_path):
        lists(pa.table({"bird": ["a", "b"], "split": [["train"], ["val"]]}), 0, tmp_path / "s.parquet")
        with pytest.raises(InputError, match="the lists in column 'features' are empty: each must contain numbers"):
            FeatureStore(tmp_path / "s.parquet").n_features  # noqa: B018
        with pytest.raises(InputError, match=r"the column 'split' has type list<.*: it needs one value per row"):
            FeatureStore(tmp_path / "s.parquet", "train").n_rows  # noqa: B018

    @pytest.mark.parametrize(
        "change",
        [
            lambda table: pa.concat_tables([table, table]),
            lambda table: table.slice(0, 40),
            lambda table: table.drop(["features"]),
            lambda table: table,  # written again
        ],
    )
    def test_a_shard_that_changes_during_the_fit_raises(self, stored, change):
        store = stored[0]
        path = store.files[1]

        class Changing(FeatureStore):
            passes = 0

            def blocks(self, *arguments):
                type(self).passes += 1
                if self.passes == 3:
                    pq.write_table(change(pq.read_table(path)), path)
                yield from super().blocks(*arguments)

        with pytest.raises(InputError, match=r"part-00001.parquet' changed while it was read: wait until no process"):
            CRMClassifier().fit(Changing(store.path), "bird", attributes="place")
        path.unlink()
        with pytest.raises(InputError, match=r"part-00001.parquet' changed while it was read"):
            store.frame(["bird"])

    def test_bad_input_raises_with_a_remedy(self, stored, tmp_path):
        store, X, bird, place = stored
        clf = CRMClassifier()
        for columns, message in (
            (("brid", ["place"]), "did you mean 'bird'"),
            ((bird, ["place"]), "y is an ndarray: with a FeatureStore, pass a column name"),
            (("bird", []), "attributes is \\[\\]: with a FeatureStore"),
        ):
            with pytest.raises(InputError, match=message):
                clf.fit(store, columns[0], attributes=columns[1])
        with pytest.raises(
            InputError, match="CRMClassifierCV needs all samples in memory, but X is a FeatureStore: use a CRM"
        ):
            CRMClassifierCV().fit(store, "bird", attributes=["place"])
        for options in ({"anchor": "gaussian"}, {"cross_fit": True}):
            with pytest.raises(InputError, match="anchor='zero' and cross_fit=False"):
                CRMClassifier(**options).fit(store, "bird", attributes=["place"])
        with pytest.raises(InputError, match="there is no file or folder"):
            clf.fit(FeatureStore(tmp_path / "none"), "bird")
        with pytest.raises(InputError, match="memory is '1G': pass an integer"):
            FeatureStore(store.path, memory="1G")
        with pytest.raises(InputError, match="X is a FeatureStore, which only fit accepts"):
            CRMClassifier().fit(store, "bird", attributes=["place"]).predict(store)
        X[3, 2] = np.nan
        broken = write_store(tmp_path / "broken", X, bird, place)
        with pytest.raises(InputError, match="X has 1 NaN or infinite"):
            clf.fit(broken, "bird", attributes=["place"])
        huge = write_store(tmp_path / "huge", np.where(np.isnan(X), 1e308, X.astype(float)), bird, place)
        message = r"X has values up to 1e\+308, and sums of values above 1e\+302 may overflow: rescale the features"
        with pytest.raises(InputError, match=message):
            clf.fit(huge, "bird", attributes=["place"])
        with pytest.raises(InputError, match="overflows: divide sample_weight by its mean"):
            clf.fit(store, "bird", attributes=["place"], sample_weight=np.full(700, 1e305))
        (tmp_path / "broken" / "part-00001.parquet").write_bytes(b"PAR1 and no more")
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            clf.fit(FeatureStore(tmp_path / "broken"), "bird", attributes=["place"])
        pq.write_table(pa.table({"bird": bird, "place": place}), tmp_path / "plain.parquet")
        with pytest.raises(InputError, match="has no column 'features'"):
            clf.fit(FeatureStore(tmp_path / "plain.parquet"), "bird", attributes=["place"])
