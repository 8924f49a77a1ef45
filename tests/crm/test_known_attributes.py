"""Attributes known in use: the equation as loops, properties, missing values, and every estimator."""

import math
from copy import copy

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import compshift
from compshift import AdditiveGaussian, AffineExtrapolation, CRMClassifier, CRMClassifierCV, InputError
from compshift.crm.model import OutOfFold
from tests import references
from tests.crm.stores import sightings, write_store
from tests.estimators.made_data import hide, make_data

BIRDS, PLACES, DEVICES = ["duck", "gull"], ["lake", "sea", "wood"], [1, 2]
ESTIMATORS = {
    "crm": CRMClassifier(cross_fit=True),
    "cv": CRMClassifierCV(alphas=[0.1, 1.0], bias="extrapolated", anchor="zero", unseen_offset=0.0),
    "shrunk": CRMClassifier(bias="shrunk", unseen_offset=-0.5, prior="hull"),
    "gaussian": AdditiveGaussian(),
    "per-value": AdditiveGaussian(covariance="per-value"),
    "affine": AffineExtrapolation(LogisticRegression(), cv=3, random_state=0),
}
METHODS = ("predict", "predict_proba", "predict_log_proba", "predict_group", "group_log_proba")


def named(codes):
    """Return codes of bird × place × device as a DataFrame of values."""
    values = (BIRDS, PLACES, DEVICES)
    names = ("bird", "place", "device")
    columns = zip(names, values, codes.T, strict=True)
    return pd.DataFrame({name: np.array(part)[column] for name, part, column in columns})


@pytest.fixture(scope="module")
def data():
    X, codes = make_data((2, 3, 2), n=600, missing=(0, 7))
    return X, named(codes)


@pytest.fixture(scope="module", params=ESTIMATORS)
def fitted(request, data):
    X, frame = data
    clf = sklearn.base.clone(ESTIMATORS[request.param])
    return clf.fit(X, frame["bird"], attributes=frame[["place", "device"]])


@pytest.fixture(scope="module")
def crm(data):
    X, frame = data
    return CRMClassifier(cross_fit=True).fit(X, frame["bird"], attributes=frame[["place", "device"]])


@pytest.fixture(scope="module")
def new():
    """Features of new rows, and their attributes with about half of the values missing."""
    X, codes = make_data((2, 3, 2), n=60, missing=(), seed=3)
    table = named(codes)[["place", "device"]].astype(object)
    return X, table.mask(np.random.default_rng(0).random(table.shape) < 0.5, None)


def by_loops(clf, X, table):
    """Group probabilities (n, g): mask the default posterior of every row, and normalise."""
    default = np.exp(clf.group_log_proba(X))
    result = np.zeros_like(default)
    for row, known in enumerate(table.to_dict("records")):
        for column, code in enumerate(clf.groups_):
            group = dict(zip(clf.space_.names, clf.space_.decode([code])[0], strict=True))
            if all(value is None or value != value or group[name] == value for name, value in known.items()):
                result[row, column] = default[row, column]
        result[row] /= result[row].sum()
    return result


def test_predictions_follow_the_masked_posterior_of_every_row(fitted, new):
    X, table = new
    expected = by_loops(fitted, X, table)
    found = fitted.group_log_proba(X, attributes=table)
    np.testing.assert_allclose(np.exp(found), expected, atol=1e-9)
    assert (np.isneginf(found) == (expected == 0)).all()
    birds = np.stack([expected[:, fitted.groups_[:, 0] == code].sum(axis=1) for code in range(2)], axis=1)
    np.testing.assert_allclose(fitted.predict_proba(X, attributes=table), birds, atol=1e-9)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X, attributes=table)), birds, atol=1e-9)
    assert (fitted.predict(X, attributes=table) == fitted.classes_[birds.argmax(axis=1)]).all()
    best = fitted.space_.decode(fitted.groups_[expected.argmax(axis=1)])
    assert (fitted.predict_group(X, attributes=table) == best).all()
    share = np.mean(fitted.predict(X, attributes=table) == "duck")
    assert fitted.score(X, ["duck"] * len(X), attributes=table) == pytest.approx(share)
    assert not np.array_equal(fitted.predict_proba(X, attributes=table), fitted.predict_proba(X))


def test_without_known_values_nothing_changes(fitted, new):
    X, table = new
    for nothing in (table.assign(place=None, device=np.nan), np.full((len(X), 2), None), table[[]].assign(place=pd.NA)):
        for method in METHODS:
            default, found = getattr(fitted, method)(X), getattr(fitted, method)(X, attributes=nothing)
            assert np.array_equal(default, found)
    before = vars(fitted).copy()
    fitted.predict(X, attributes=table)
    assert all(vars(fitted)[name] is value for name, value in before.items())


def test_total_probability(fitted, new):
    """Σ_a q(a|x) q(y|x, a) = q(y|x), over all places and devices."""
    X, _ = new
    log_groups, total = fitted.group_log_proba(X), np.zeros((len(X), 2))
    for place_code, place in enumerate(PLACES):
        for device_code, device in enumerate(DEVICES):
            context = (fitted.groups_[:, 1:] == [place_code, device_code]).all(axis=1)
            if not context.any():
                continue
            table = pd.DataFrame({"device": [device] * len(X), "place": [place] * len(X)})
            known = fitted.predict_proba(X, attributes=table)
            np.testing.assert_allclose(known.sum(axis=1), 1)
            total += np.exp(log_groups[:, context]).sum(axis=1, keepdims=True) * known
    np.testing.assert_allclose(total, fitted.predict_proba(X), atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), spread=st.sampled_from([1.0, 1e2, 1e4]))
def test_all_attributes_known_is_a_softmax_over_the_class(seed, spread):
    rng = np.random.default_rng(seed)
    X, codes = make_data((3, 2, 2), n=60, seed=1)
    clf = CRMClassifier(alpha=1.0, max_iter=5, tol=1.0).fit(X, codes[:, 0], attributes=codes[:, 1:])
    X_new, context = spread * rng.normal(size=(5, 4)), rng.integers(0, 2, size=(5, 2))
    score, energies = clf._log_score().tolist(), clf._model.energies(X_new).tolist()
    for row, known in enumerate(context.tolist()):
        logits = [
            value - references.group_energy(energies[row], (3, 2, 2), code)
            for code, value in zip(clf.groups_.tolist(), score, strict=True)
            if code[1:] == known
        ]
        total = references.log_sum_exp(logits)
        expected = [logit - total for logit in logits]
        found = clf.predict_log_proba(X_new, attributes=context)[row]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-8 * spread)


def test_tables_may_have_any_order_and_only_some_attributes(crm, new):
    pa = pytest.importorskip("pyarrow")
    X, table = new
    expected = crm.predict_proba(X, attributes=table)
    filled = [[place, device] for place, device in table.itertuples(index=False)]
    masked = np.ma.masked_array(table["device"].fillna(0).to_numpy(dtype=int), mask=table["device"].isna())
    for same in (
        table[["device", "place"]],
        dict(table.items()),
        filled,
        np.array(filled, dtype=object),
        table.astype({"place": "category", "device": "Int64"}),
        table.astype({"device": float}),
        {"device": masked, "place": table["place"]},
        pa.table({"place": table["place"].tolist(), "device": table["device"].tolist()}),
        table.set_axis(range(100, 160)),
    ):
        assert np.array_equal(crm.predict_proba(X, attributes=same), expected)
    place = crm.predict_proba(X, attributes=table.assign(device=None))
    assert not np.array_equal(place, expected)
    assert np.array_equal(crm.predict_proba(X, attributes=table[["place"]]), place)
    assert np.array_equal(crm.predict_proba(X, attributes=table["place"]), place)
    assert np.array_equal(crm.predict_proba(X, attributes={"place": table["place"].tolist()}), place)


def test_a_single_attribute_may_have_any_name():
    X, codes = make_data()
    clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    expected = clf.predict_proba(X, attributes=codes[:, 1])
    for same in (pd.Series(codes[:, 1], name="place"), codes[:, 1:], codes[:, 1].tolist(), {"a": codes[:, 1]}):
        assert np.array_equal(clf.predict_proba(X, attributes=same), expected)
    with pytest.raises(InputError, match=r"^'y' is a target, which the model predicts: as known attributes pass only"):
        clf.predict(X, attributes=pd.Series(codes[:, 1], name="y"))


def test_several_targets(data, new):
    (X, frame), (X_new, table) = data, new
    clf = CRMClassifier().fit(X, frame[["bird", "device"]], attributes=frame["place"])
    known = table[["place"]]
    expected = by_loops(clf, X_new, known)
    found = clf.predict_proba(X_new, attributes=known)
    for target, part in enumerate(found):
        shares = [expected[:, clf.groups_[:, target] == code].sum(axis=1) for code in range(2)]
        np.testing.assert_allclose(part, np.stack(shares, axis=1), atol=1e-9)
    assert clf.predict(X_new, attributes=known).shape == (len(X_new), 2)
    truth = clf.predict(X_new, attributes=known)
    assert clf.score(X_new, truth, attributes=known) == 1


def test_explain_and_chosen_groups(crm, new):
    X, table = new
    expected = by_loops(crm, X, table)
    frame = crm.explain(pd.DataFrame(X, index=range(5, 65)), attributes=table).to_frame()
    assert frame.index.tolist() == list(range(5, 65))
    np.testing.assert_allclose(frame["probability"], expected.max(axis=1))
    known = table.notna()
    assert (frame[["place", "device"]].to_numpy()[known] == table.to_numpy()[known]).all()
    codes = crm.groups_[[3, 0]]
    found = np.exp(crm.group_log_proba(X, codes, attributes=table))
    np.testing.assert_allclose(found, expected[:, [3, 0]], atol=1e-9)


def test_a_prior_is_restricted_and_a_loaded_model_does_the_same(crm, new, tmp_path):
    X, table = new
    prior = np.random.default_rng(0).dirichlet(np.ones(12))
    crm.save(tmp_path / "m.safetensors")
    loaded = compshift.load(tmp_path / "m.safetensors")
    assert np.array_equal(loaded.predict_proba(X, attributes=table), crm.predict_proba(X, attributes=table))
    loaded.set_prior(prior)
    expected = by_loops(loaded, X, table)
    np.testing.assert_allclose(np.exp(loaded.group_log_proba(X, attributes=table)), expected, atol=1e-9)


def test_sets_are_those_of_the_restricted_prior(crm, data):
    X, frame = data
    X, frame = X[:40], frame[:40]
    found = crm.predict_set(X, attributes=frame[["place"]])
    for code, place in enumerate(PLACES):
        rows = np.flatnonzero(frame["place"] == place)
        inside = crm.groups_[:, 1] == code
        prior = np.where(inside, 1 / inside.sum(), 0.0)
        other = copy(crm).set_prior(prior)
        expected = other.predict_set(X[rows])
        np.testing.assert_allclose(found.p_values[rows], expected.p_values, atol=1e-12)
        assert (found.contains[rows] == expected.contains).all()
        which = crm.space_.locate(expected.groups, found.groups)
        np.testing.assert_allclose(found.effective_sample_size[which], expected.effective_sample_size)
    default = crm.predict_set(X)
    unknown = crm.predict_set(X, attributes=np.full((40, 2), None))
    assert np.array_equal(default.p_values, unknown.p_values)
    assert np.array_equal(default.groups, unknown.groups)
    only_lake = crm.predict_set(X[:1], attributes={"place": ["lake"]})
    assert (only_lake.groups[:, 1] == 0).all()
    assert len(only_lake.groups) == 4


def test_sets_with_known_attributes_cover():
    """About nine in ten sets contain the class, in groups of which one is unseen, and they are smaller."""
    X, codes = make_data((2, 3), n=3000, missing=(0,), p=2, seed=5)
    clf = CRMClassifier(cross_fit=True).fit(X, codes[:, 0], attributes=codes[:, 1])
    rng = np.random.default_rng(5)  # the same means as those of the fit
    rng.choice(5, size=3000)
    means = [rng.normal(size=(size, 2)) for size in (2, 3)]
    truth = np.repeat(clf.groups_, 500, axis=0)
    rng = np.random.default_rng(6)
    X_new = rng.normal(size=(len(truth), 2)) + means[0][truth[:, 0]] + means[1][truth[:, 1]]
    known, default = clf.predict_set(X_new, attributes=truth[:, 1]), clf.predict_set(X_new)
    hit = known.contains[np.arange(len(truth)), truth[:, 0]].reshape(-1, 500).mean(axis=1)
    assert (hit > 0.85).all()
    assert known.sizes.mean() < default.sizes.mean()


def test_out_of_fold_energies_are_needed(data, new):
    (X, frame), (X_new, table) = data, new
    clf = CRMClassifier().fit(X, frame["bird"], attributes=frame[["place", "device"]])
    assert not isinstance(clf._model.out_of_fold, OutOfFold)
    with pytest.raises(InputError, match="predict_set needs out-of-fold energies"):
        clf.predict_set(X_new, attributes=table)


@pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")
def test_sets_say_nothing_about_groups_outside_the_hull():
    X, codes = make_data((2, 3), n=400, missing=(1, 2))
    X, codes = X[codes[:, 1] < 2], codes[codes[:, 1] < 2]
    space = compshift.GroupSpace(("y", "a"), ((0, 1), (0, 1, 2)))
    clf = CRMClassifier(cross_fit=True).fit(X, codes[:, 0], attributes=codes[:, 1], space=space)
    assert clf.predict(X[:1], attributes=[2]).shape == (1,)
    with pytest.raises(
        InputError, match=r"known attributes of a row, \(0, 2\) for example, are all outside .*\(None\)"
    ):
        clf.predict_set(X[:2], attributes=[0, 2])


@pytest.mark.parametrize("pool", [False, True])
def test_fits_with_missing_attributes_or_with_a_pool(data, new, pool):
    (X, frame), (X_new, _) = data, new
    codes = np.stack([pd.factorize(frame[name], sort=True)[0] for name in frame], axis=1)
    attributes = codes[:, 1:] if pool else hide(codes, 0.1)
    clf = CRMClassifier().fit(X, codes[:, 0], attributes=attributes, unlabelled=X_new if pool else None)
    known = np.stack([codes[:60, 1], np.full(60, np.nan)], axis=1)
    expected = by_loops(clf, X[:60], pd.DataFrame({"a1": known[:, 0]}))
    np.testing.assert_allclose(np.exp(clf.group_log_proba(X[:60], attributes=known)), expected, atol=1e-9)


def test_dask_collections(crm, new):
    dask = pytest.importorskip("dask.dataframe")
    X, table = new
    known = dask.from_pandas(table.astype({"device": float}), npartitions=3)
    features = dask.from_pandas(pd.DataFrame(X), npartitions=2).to_dask_array(lengths=True)
    assert np.array_equal(crm.predict(features, attributes=known), crm.predict(X, attributes=table))


def test_stores_are_for_fits_only(tmp_path):
    X, bird, place = sightings()
    store = write_store(tmp_path, X, bird, place)
    clf = CRMClassifier().fit(store, "bird", attributes="place")
    with pytest.raises(InputError, match="X is a FeatureStore, which only fit accepts"):
        clf.predict(store, attributes=place)
    known = clf.predict_proba(X, attributes=place)
    assert not np.array_equal(known, clf.predict_proba(X))


class TestScikitLearn:
    @pytest.fixture
    def routing(self):
        with sklearn.config_context(enable_metadata_routing=True):
            yield

    @pytest.mark.usefixtures("routing")
    def test_requested_attributes_reach_every_prediction_of_a_pipeline(self, data):
        X, frame = data
        known = frame[["place", "device"]]
        clf = CRMClassifier().set_fit_request(attributes=True).set_predict_request(attributes=True)
        clf.set_predict_proba_request(attributes=True).set_score_request(attributes=True)
        clf.set_predict_log_proba_request(attributes=True)
        pipeline = make_pipeline(StandardScaler(), clf).fit(X, frame["bird"], attributes=known)
        scaled, inner = pipeline[:-1].transform(X), pipeline[-1]
        for method in ("predict", "predict_proba", "predict_log_proba"):
            found = getattr(pipeline, method)(X, attributes=known)
            assert np.array_equal(found, getattr(inner, method)(scaled, attributes=known))
        score = pipeline.score(X, frame["bird"], attributes=known)
        assert score == inner.score(scaled, frame["bird"], attributes=known)
        assert score != pipeline.score(X, frame["bird"])

    @pytest.mark.usefixtures("routing")
    def test_attributes_of_a_fit_are_unknown_in_use_unless_requested(self, data):
        X, frame = data
        known = frame[["place", "device"]]
        clf = CRMClassifier().set_fit_request(attributes=True)
        scores = cross_val_score(clf, X, frame["bird"], cv=3, params={"attributes": known})
        requested = clf.set_score_request(attributes=True)
        others = cross_val_score(requested, X, frame["bird"], cv=3, params={"attributes": known})
        assert not np.array_equal(scores, others)

    def test_a_pipeline_without_routing_passes_attributes_on(self, data):
        X, frame = data
        known = frame[["place", "device"]]
        pipeline = make_pipeline(StandardScaler(), CRMClassifier())
        pipeline.fit(X, frame["bird"], crmclassifier__attributes=known)
        found = pipeline.predict_proba(X, attributes=known)
        assert not np.array_equal(found, pipeline.predict_proba(X))


def test_networks_take_known_attributes():
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    from compshift.training import train
    from tests.training.small_runs import QUICK, gaussians

    data = gaussians()
    clf = train(data, "crm", "linear", settings=QUICK, device="cpu")
    X, known = data.X[:30], data.columns(["place"])[:30]
    expected = by_loops(clf.head_, clf.features(X), known)
    birds = np.stack([expected[:, clf.head_.groups_[:, 0] == code].sum(axis=1) for code in range(2)], axis=1)
    np.testing.assert_allclose(clf.predict_proba(X, attributes=known), birds, atol=1e-9)
    assert (clf.predict(X, attributes=known) == clf.classes_[birds.argmax(axis=1)]).all()
    assert not np.allclose(clf.predict_proba(X), birds)
    plain = train(data, "erm", "linear", settings=QUICK, device="cpu")
    for method in (plain.predict, plain.predict_proba):
        with pytest.raises(
            InputError, match="'erm' has no prior over groups: train with the method 'crm' to use known"
        ):
            method(X, attributes=known)


def test_the_likeliest_agreeing_group_may_be_hopeless(crm):
    """Far from the data, agreeing groups have probabilities that underflow; their ratio is still right."""
    X = 1e4 * np.random.default_rng(0).normal(size=(20, 4))
    for place in PLACES:
        log_proba = crm.predict_log_proba(X, attributes={"place": [place] * 20})
        assert np.isfinite(log_proba).all()
        np.testing.assert_allclose(np.exp(log_proba).sum(axis=1), 1)
        assert not any(math.isnan(value) for value in log_proba.ravel())
