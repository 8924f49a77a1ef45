"""Fits to Dask collections, against fits to the same samples in memory."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("dask")
import dask.array as da
import dask.dataframe as dd

from compshift import CRMClassifier, CRMClassifierCV, InputError
from tests.crm.stores import agree, sightings


def frames(n=700, npartitions=4):
    X, bird, place = sightings(n)
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])]).assign(bird=bird, place=place)
    return X, bird, place, dd.from_pandas(frame, npartitions=npartitions)


class TestFit:
    def test_frames_equal_the_fit_in_memory(self):
        X, bird, place, frame = frames()
        names = [f"f{i}" for i in range(6)]
        clf = CRMClassifier(prior="hull", tol=1e-8).fit(frame[names], frame["bird"], attributes=frame[["place"]])
        plain = CRMClassifier(prior="hull", tol=1e-8).fit(X, bird, attributes=pd.DataFrame({"place": place}))
        agree(clf, plain, X)
        assert clf.space_.names == ("bird", "place")
        assert clf.classes_.tolist() == ["gull", "owl", "wren"]

    def test_arrays_with_weights_and_chunked_columns_equal_the_fit_in_memory(self):
        X, bird, place = sightings()
        codes = np.column_stack([np.unique(bird, return_inverse=True)[1], np.unique(place, return_inverse=True)[1]])
        weight = np.random.default_rng(1).integers(0, 4, size=len(X)).astype(float)
        lazy = (
            da.from_array(X, chunks=(200, 3)),
            da.from_array(codes, chunks=(200, 1)),
            da.from_array(weight, chunks=200),
        )
        clf = CRMClassifier(0.1, tol=1e-8).fit(lazy[0], lazy[1][:, 0], attributes=lazy[1][:, 1], sample_weight=lazy[2])
        plain = CRMClassifier(0.1, tol=1e-8).fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)
        agree(clf, plain, X)
        np.testing.assert_allclose(clf.group_weight_, plain.group_weight_)

    def test_columns_keep_their_own_types(self):
        """Integers in one column stay integers if another column has fractions."""
        X, bird, place = sightings(n=300)
        labels = pd.DataFrame({"kind": (bird == "owl") * 1, "size": np.where(place == "sea", 0.5, 2.0)})
        frame = dd.from_pandas(pd.concat([pd.DataFrame(X).rename(columns=str), labels], axis=1), npartitions=3)
        clf = CRMClassifier(tol=1e-8).fit(frame[list("012345")], frame["kind"], attributes=frame[["size"]])
        plain = CRMClassifier(tol=1e-8).fit(X, labels["kind"], attributes=labels[["size"]])
        assert clf.space_ == plain.space_
        agree(clf, plain, X)

    def test_several_targets_without_attributes_equal_the_fit_in_memory(self):
        X, bird, place, frame = frames()
        clf = CRMClassifier(tol=1e-8).fit(frame[[f"f{i}" for i in range(6)]], frame[["bird", "place"]])
        plain = CRMClassifier(tol=1e-8).fit(X, pd.DataFrame({"bird": bird, "place": place}))
        np.testing.assert_array_equal(clf.predict(X), plain.predict(X))

    @pytest.mark.slow
    def test_two_workers_equal_one_process(self):
        distributed = pytest.importorskip("distributed")
        X, bird, place, frame = frames()
        plain = CRMClassifier(prior="hull", tol=1e-8).fit(X, bird, attributes=pd.DataFrame({"place": place}))
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        with cluster, distributed.Client(cluster):
            clf = CRMClassifier(prior="hull", tol=1e-8)
            clf.fit(frame[[f"f{i}" for i in range(6)]], frame["bird"], attributes=frame[["place"]])
        agree(clf, plain, X)


def test_bad_input_raises_with_a_remedy():
    X, bird, _, frame = frames(n=100)
    features = frame[[f"f{i}" for i in range(6)]]
    with pytest.raises(InputError, match="X is a Dask collection but y is an ndarray: pass y as a Dask collection"):
        CRMClassifier().fit(features, bird)
    with pytest.raises(InputError, match="y has 1 partitions but X has 4: repartition y like X"):
        CRMClassifier().fit(features, frame["bird"].repartition(npartitions=1))
    with pytest.raises(InputError, match="CRMClassifierCV needs all samples in memory"):
        CRMClassifierCV().fit(features, frame["bird"], attributes=frame[["place"]])
    lazy = da.from_array(X, chunks=(25, 6))
    with pytest.raises(InputError, match="y has 50 rows but X has 25"):
        CRMClassifier().fit(lazy, da.from_array(np.repeat(bird, 2), chunks=50), attributes=None)
    message = r"X has values up to \S+e\+302, and sums of values above 1e\+302 may overflow: rescale the features"
    with pytest.raises(InputError, match=message):
        CRMClassifier().fit(lazy.astype(float) * 1e301, da.from_array((bird == "owl") * 1, chunks=25))
    X[3, 2] = np.nan
    with pytest.raises(InputError, match="NaN or infinite"):
        CRMClassifier().fit(da.from_array(X, chunks=(50, 6)), da.from_array((bird == "owl") * 1, chunks=50))
