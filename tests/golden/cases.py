"""Small fits and runs with fixed seeds. Each case returns arrays, numbers and texts by name."""

import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

import compshift as cs
from tests.golden.runs import bench_features, training, training_images

TIGHT = 1e-9
"""Tolerance of the fits: what is recorded depends little on where the search for the optimum stops."""


def make_rows(cardinalities=(2, 3), n=160, p=4, unseen=(0,), seed=0):
    """Features around additive means, and codes; the groups with the ``unseen`` flat indices have no rows."""
    rng = np.random.default_rng(seed)
    space = cs.GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.choice(np.setdiff1d(np.arange(space.n_groups), unseen), size=n))
    means = [rng.normal(size=(size, p)) for size in cardinalities]
    X = rng.normal(size=(n, p)) + sum(mean[column] for mean, column in zip(means, codes.T, strict=True))
    return X, codes


def probabilities(clf, X):
    """Predicted probabilities of the first rows, of classes and of groups."""
    found = clf.predict_proba(X[:8])
    return {
        "predict_proba": np.hstack(found) if isinstance(found, list) else found,
        "group_log_proba": clf.group_log_proba(X[:8]),
        "predict": [str(value) for value in clf.predict(X[:8])],
    }


def crm_numbers(clf, X):
    """Everything that a fitted CRM classifier says."""
    estimate = clf.estimate_prior(X[:60])
    return {
        **probabilities(clf, X),
        "bias": clf.bias_,
        "learned_bias": clf.learned_bias_,
        "cumulant_bias": clf.cumulant_bias_,
        "effective_sample_size": clf.effective_sample_size_,
        "pareto_k": clf.pareto_k_,
        "coef": clf.coef_,
        "feature_mean": clf.feature_mean_,
        "group_weight": clf.group_weight_,
        "groups": clf.groups_,
        "seen": clf.seen_,
        "inside_hull": clf.inside_hull_,
        "temperature": clf.temperature_,
        "n_iter": clf.n_iter_,
        "estimated_log_prior": estimate.log_prior,
        "estimated_lower": estimate.lower,
        "estimated_upper": estimate.upper,
    }


def crm_default():
    X, codes = make_rows()
    clf = cs.CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    explained = clf.explain(X[:8]).to_frame()
    return {
        **crm_numbers(clf, X),
        "score": clf.score(X, codes[:, 0]),
        "explained_probability": explained["probability"].to_numpy(),
        "explained_size": explained["effective_sample_size"].to_numpy(),
        "explained_columns": list(map(str, explained.columns[:6])),
        "group_columns": list(map(str, clf.group_frame().columns)),
        "hull_weights": [str(weight) for weight in clf.hull_.weights(clf.groups_[~clf.seen_][0])],
    }


def crm_three_attributes_weighted():
    X, codes = make_rows((2, 3, 2), n=240, unseen=(0, 5, 7), seed=1)
    weight = np.random.default_rng(2).integers(0, 4, size=len(X)) / 2
    clf = cs.CRMClassifier(3e-2, tol=TIGHT).fit(X, codes[:, 0], attributes=codes[:, 1:], sample_weight=weight)
    return crm_numbers(clf, X)


def crm_cross_fit():
    X, codes = make_rows(n=120, p=8, seed=3)
    clf = cs.CRMClassifier(1e-3, cross_fit=True, tol=TIGHT).fit(X, codes[:, 0], attributes=codes[:, 1])
    return crm_numbers(clf, X)


def crm_gaussian_anchor():
    X, codes = make_rows(seed=4)
    clf = cs.CRMClassifier(anchor="gaussian", tol=TIGHT).fit(X, codes[:, 0], attributes=codes[:, 1])
    return crm_numbers(clf, X)


def crm_biases_and_priors():
    X, codes = make_rows((3, 3), n=150, unseen=(0, 4), seed=5)
    found = {}
    for bias in ("extrapolated", "cumulant", "shrunk", "learned"):
        clf = cs.CRMClassifier(1e-2, bias=bias, tol=TIGHT).fit(X, codes[:, 0], attributes=codes[:, 1])
        found |= {f"{bias}_{name}": value for name, value in probabilities(clf, X).items()}
    clf = cs.CRMClassifier(1e-2, unseen_offset=0.7, tol=TIGHT).fit(X, codes[:, 0], attributes=codes[:, 1])
    found |= {f"offset_{name}": value for name, value in probabilities(clf, X).items()}
    mapping = {(0, 0): 0.5, (1, 2): 0.3, (2, 1): 0.2}
    for name, prior in {"train": "train", "hull": "hull", "mapping": mapping, "array": np.arange(1, 10) / 45}.items():
        clf.set_prior(prior)
        found |= {f"{name}_prior_{key}": value for key, value in probabilities(clf, X).items()}
    return found


def crm_missing_attributes():
    X, codes = make_rows((2, 3, 2), n=240, unseen=(0,), seed=6)
    table = codes[:, 1:].astype(float)
    table[np.random.default_rng(7).random(table.shape) < 0.2] = np.nan
    clf = cs.CRMClassifier(tol=TIGHT).fit(X, codes[:, 0], attributes=table)
    return {**crm_numbers(clf, X), "n_missing": clf.n_missing_}


def crm_supports():
    X, codes = make_rows((3, 3), n=120, unseen=(0, 1, 2, 3, 6), seed=8)  # a square, and the other groups outside
    codes[:15] = [0, 0]
    found = {}
    listed = [[0, 0], [1, 1], [1, 2], [2, 1], [2, 2], [0, 1]]
    for name, support in {"hull": "hull", "observed": "observed", "codes": listed, "all": "all"}.items():
        clf = cs.CRMClassifier(support=support, tol=TIGHT).fit(X, codes[:, 0], attributes=codes[:, 1])
        found |= {f"{name}_{key}": value for key, value in probabilities(clf, X).items()}
        found |= {f"{name}_groups": clf.groups_, f"{name}_bias": clf.bias_, f"{name}_inside": clf.inside_hull_}
    return found


def crm_two_targets():
    X, codes = make_rows((2, 3, 2), n=200, unseen=(3, 4), seed=9)
    clf = cs.CRMClassifier(tol=TIGHT).fit(X, codes[:, :2], attributes=codes[:, 2])
    return {**crm_numbers(clf, X), "score": clf.score(X, codes[:, :2])}


def crm_space_with_unseen_value():
    X, codes = make_rows(seed=10)
    kinds, places = np.array(["gull", "owl"]), np.array(["land", "sand", "sea"])
    space = cs.GroupSpace(("bird", "place"), (("gull", "owl"), ("land", "sand", "sea", "sky")))
    bird = pd.Series(kinds[codes[:, 0]], name="bird")
    place = pd.DataFrame({"place": places[codes[:, 1]]})
    clf = cs.CRMClassifier(prior="hull", tol=TIGHT).fit(X, bird, attributes=place, space=space)
    return crm_numbers(clf, X)


TRIED = ("param_alpha", "param_anchor", "param_cross_fit", "param_bias")
"""Columns of ``cv_results_`` that name a setting."""


def crm_cv():
    X, codes = make_rows((3, 3), n=220, p=6, unseen=(0, 8), seed=11)
    clf = cs.CRMClassifierCV(alphas=[1e-3, 1e-2, 1e-1], cv=4, confidence=0.8).fit(
        X, codes[:, 0], attributes=codes[:, 1]
    )
    results = clf.cv_results_
    expected = clf.expected_group_accuracy_
    return {
        **crm_numbers(clf, X),
        "alpha": clf.alpha_,
        "offset": clf.unseen_offset_,
        "chosen": [clf.selected_bias_, clf.anchor_, str(clf.cross_fit_)],
        "n_splits": clf.n_splits_,
        "tried": [f"{a:g} {n} {c} {b}" for a, n, c, b in zip(*(results[k] for k in TRIED), strict=True)],
        "points": results["mean_test_score"],
        "unseen_accuracy": results["unseen_accuracy"],
        "seen_accuracy": results["seen_accuracy"],
        "group_accuracy": results["group_accuracy"],
        "expected_group_accuracy": expected[["accuracy", "lower", "upper"]].to_numpy(),
        "expected_groups": expected.iloc[:, :2].to_numpy(),
    }


def crm_cv_worst_cross_fit():
    X, codes = make_rows((3, 3), n=200, p=5, unseen=(2,), seed=12)
    options = {"bias": "extrapolated", "anchor": "zero", "cross_fit": "auto", "confidence": 0.8}
    clf = cs.CRMClassifierCV(alphas=[1e-2, 1e-1], cv=3, scoring="worst", random_state=4, **options)
    clf.fit(X, codes[:, 0], attributes=codes[:, 1])
    return {
        **probabilities(clf, X),
        "alpha": clf.alpha_,
        "offset": clf.unseen_offset_,
        "chosen": [clf.selected_bias_, clf.anchor_, str(clf.cross_fit_)],
        "points": clf.cv_results_["mean_test_score"],
        "expected_group_accuracy": clf.expected_group_accuracy_[["accuracy", "lower", "upper"]].to_numpy(),
    }


def combination_folds():
    X, codes = make_rows((4, 3, 2), n=150, unseen=(0, 5, 11), seed=13)
    found = {}
    for n_splits, seed in ((3, 0), (5, 1)):
        fold = np.full(len(X), -1)
        splitter = cs.CombinationKFold(n_splits, random_state=seed)
        for number, (_, test) in enumerate(splitter.split(X, codes[:, 0], codes[:, 1:])):
            fold[test] = number
        found[f"fold_of_{n_splits}"] = fold
    return found


def feature_store_fit():
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, codes = make_rows(n=200, seed=14)
    X = X.astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for number, rows in enumerate(np.array_split(np.arange(len(X)), 3)):
            features = pa.FixedSizeListArray.from_arrays(pa.array(X[rows].ravel()), X.shape[1])
            split = np.where(rows % 5 == 0, "test", "train")
            columns = {"bird": codes[rows, 0], "place": codes[rows, 1], "split": split, "features": features}
            pq.write_table(pa.table(columns), Path(folder) / f"part-{number:05d}.parquet", row_group_size=30)
        store = cs.data.FeatureStore(folder, "train")
        clf = cs.CRMClassifier(tol=TIGHT).fit(store, "bird", attributes=["place"])
        return crm_numbers(clf, X)


def dask_fit():
    import dask.array as da

    X, codes = make_rows(n=200, seed=15)
    lazy, labels = da.from_array(X, chunks=(70, 4)), da.from_array(codes, chunks=(70, 1))
    clf = cs.CRMClassifier(tol=TIGHT).fit(lazy, labels[:, 0], attributes=labels[:, 1])
    return crm_numbers(clf, X)


def energy_head():
    import torch

    rng = np.random.default_rng(16)
    found = {}
    seen = np.array([[0, 0], [0, 1], [0, 2], [1, 1], [1, 2]])
    for name, hidden in {"linear": None, "hidden": 5}.items():
        head = cs.nn.AdditiveEnergyHead(4, [2, 3], hidden).double()
        codes = seen[rng.integers(len(seen), size=40)]
        head.set_train_groups(codes)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.copy_(torch.as_tensor(rng.normal(size=tuple(parameter.shape))))
        features = torch.as_tensor(rng.normal(size=(40, 4)))
        loss = head.loss(features, torch.as_tensor(codes))
        loss.backward()
        found[f"{name}_loss"] = loss.item()
        found[f"{name}_gradients"] = np.array([p.grad.sum().item() for p in head.parameters()])
        found[f"{name}_squared_gradients"] = np.array([(p.grad**2).sum().item() for p in head.parameters()])
        head.extrapolate(features.split(15))
        found[f"{name}_bias"] = head.bias.numpy()
        found[f"{name}_effective_sample_size"] = head.effective_sample_size.numpy()
        found[f"{name}_bias_gap"] = head.bias_gap
        with torch.no_grad():
            for prior in ("uniform", "hull", "train"):
                found[f"{name}_{prior}_log_prob"] = head.log_prob(features[:8], prior).numpy()
            found[f"{name}_learned_log_prob"] = head.log_prob(features[:8], bias="learned").numpy()
            for attribute in (0, 1):
                marginal = head.marginal_log_prob(features[:8], attribute)
                found[f"{name}_marginal_log_prob_{attribute}"] = marginal.numpy()
    return found


def logit_adjustment():
    X, codes = make_rows((3, 2), n=160, unseen=(0,), seed=17)
    found = {}
    for adjustment in ("none", "lc", "sla"):
        clf = cs.LogitAdjustedClassifier(adjustment, tol=TIGHT).fit(X, codes[:, 0], attributes=codes[:, 1])
        found[f"{adjustment}_predict_proba"] = clf.predict_proba(X[:8])
        found[f"{adjustment}_coef"] = clf.coef_
        found[f"{adjustment}_intercept"] = clf.intercept_
        found[f"{adjustment}_n_iter"] = clf.n_iter_
    return found


def affine_extrapolation():
    from sklearn.linear_model import LogisticRegression

    X, codes = make_rows((3, 3), n=240, unseen=(0, 4), seed=18)
    found = {}
    for weights, calibration in (("minimum-norm", "additive"), ("minimum-variance", "temperature"), ("sparse", None)):
        clf = cs.AffineExtrapolation(
            LogisticRegression(tol=1e-10, max_iter=1000), weights=weights, calibration=calibration, random_state=0
        )
        clf.fit(X, codes[:, 0], attributes=codes[:, 1])
        found |= {f"{weights}_{name}": value for name, value in probabilities(clf, X).items()}
        found[f"{weights}_affine_weights"] = clf.affine_weights_
        found[f"{weights}_log_partition"] = clf.log_partition_
        found[f"{weights}_effective_sample_size"] = clf.effective_sample_size_
        found[f"{weights}_floor"] = clf.floor_
    return found


def additive_gaussian():
    X, codes = make_rows((2, 3), n=200, unseen=(0,), seed=19)
    found = {}
    for name, options in {
        "shared": {},
        "shrunk": {"shrinkage": 0.3},
        "per_value": {"covariance": "per-value"},
        "pulled": {"covariance": "per-value", "penalty": 0.5},
    }.items():
        clf = cs.AdditiveGaussian(**options).fit(X, codes[:, 0], attributes=codes[:, 1])
        found |= {f"{name}_{key}": value for key, value in probabilities(clf, X).items()}
        found |= {f"{name}_means": clf.means_, f"{name}_covariance": clf.covariance_, f"{name}_proper": clf.proper_}
        found[f"{name}_shrinkage"] = clf.shrinkage_
        found[f"{name}_outlier_score"] = clf.outlier_score(X[:8])
        found[f"{name}_sample"] = clf.sample(4, [0, 0], random_state=0)
        if hasattr(clf, "precisions_"):
            found[f"{name}_precisions"] = clf.precisions_
    return found


def inferred_attributes():
    rng = np.random.default_rng(20)
    bird = rng.integers(0, 2, size=300)
    water = np.where(rng.random(300) < 0.85, bird, 1 - bird)
    X = np.stack([bird + rng.normal(size=300), 5 * water + rng.normal(size=300)], axis=1)
    return {"attribute": cs.infer_attributes(X, bird), "other_seed": cs.infer_attributes(X, bird, random_state=1)}


def diagnosis():
    X, codes = make_rows((2, 3), n=600, unseen=(0,), seed=21)
    X[(codes == [1, 2]).all(axis=1), 0] += 1.5  # an interaction
    half = np.arange(len(X)) % 2 == 0
    clf = cs.CRMClassifier(1e-3, tol=TIGHT).fit(X[half], codes[half, 0], attributes=codes[half, 1])
    found = cs.diagnose(clf, X[~half], codes[~half, 0], attributes=codes[~half, 1])
    return {
        "log_likelihood": found.log_likelihood,
        "correction": np.array([found.correction.mean, found.correction.error]),
        "interaction": np.array([found.interaction.mean, found.interaction.error]),
        "interaction_by_group": found.interaction_by_group,
        "interaction_error_by_group": found.interaction_error_by_group,
        "rows": found.rows,
        "effective_sample_size": found.effective_sample_size,
        "pareto_k": found.pareto_k,
        "few_samples": found.few_samples,
        "shift": np.array([found.shift, found.shift_limit]),
        "calibration": np.array([list(part) for part in found.calibration.values()]),
        "additive": float(found.additive),
    }


def hull():
    rng = np.random.default_rng(22)
    space = cs.GroupSpace.from_cardinalities([4, 4, 3])
    seen = space.codes(np.sort(rng.choice(space.n_groups, size=6, replace=False)))
    found_hull = cs.AffineHull(space, seen)
    every = space.codes(np.arange(space.n_groups))
    prices = {tuple(map(int, code)): float(price) for code, price in zip(every, rng.integers(1, 20, 48), strict=True)}
    target = every[[0, 13, 47]]
    inside, outside = found_hull.missing(inside=True), found_hull.missing(inside=False)
    coverage = found_hull.coverage()
    found = {
        "contains": found_hull.contains(every),
        "rank": found_hull.rank,
        "basis": found_hull.basis,
        "coverage": np.array([float(coverage), coverage.n_inside, coverage.lower, coverage.upper]),
        "coverage_method": [coverage.method],
        "certificates": np.array([found_hull.certificate(code) for code in outside[:5]]).astype(float),
        "shown": [repr(found_hull)],
    }
    plans = {
        "fewest": found_hull.plan(),
        "cheapest": found_hull.plan(prices),
        "target": found_hull.plan(prices, target=target),
        "forbidden": found_hull.plan(prices, target=target, forbidden=every[:8]),
    }
    for name, plan in plans.items():
        found[f"{name}_plan"] = np.asarray(plan)
        found[f"{name}_cost"] = np.array([plan.cost, plan.bound, float(plan.optimal)])
    wide = cs.AffineHull(space, space.codes(np.sort(rng.choice(space.n_groups, size=14, replace=False))))
    unseen = wide.missing(inside=True)[:4]
    found["weights"] = np.array([[float(Fraction(weight)) for weight in wide.weights(code)] for code in unseen])
    found["explained"] = [wide.explain(code) for code in unseen]
    found["n_inside"] = np.array([len(inside), len(outside), len(wide.missing(inside=True))])
    two = cs.AffineHull(cs.GroupSpace.from_cardinalities([5, 4]), [[0, 0], [0, 1], [1, 1], [1, 2], [2, 2], [3, 3]])
    found["path"] = [two.explain([0, 2]), two.explain([2, 0])]
    found["components"] = [f"{part.left.tolist()} {part.right.tolist()}" for part in two.components()]
    return found


METHODS = (
    "erm", "groupdro", "lc", "sla", "irm", "vrex", "mixup", "crm", "rwg", "subg", "dfr",
)  # fmt: skip

CASES = {
    "crm_default": crm_default,
    "crm_three_attributes_weighted": crm_three_attributes_weighted,
    "crm_cross_fit": crm_cross_fit,
    "crm_gaussian_anchor": crm_gaussian_anchor,
    "crm_biases_and_priors": crm_biases_and_priors,
    "crm_missing_attributes": crm_missing_attributes,
    "crm_supports": crm_supports,
    "crm_two_targets": crm_two_targets,
    "crm_space_with_unseen_value": crm_space_with_unseen_value,
    "crm_cv": crm_cv,
    "crm_cv_worst_cross_fit": crm_cv_worst_cross_fit,
    "combination_folds": combination_folds,
    "feature_store_fit": feature_store_fit,
    "dask_fit": dask_fit,
    "energy_head": energy_head,
    "logit_adjustment": logit_adjustment,
    "affine_extrapolation": affine_extrapolation,
    "additive_gaussian": additive_gaussian,
    "inferred_attributes": inferred_attributes,
    "diagnosis": diagnosis,
    "hull": hull,
    **{f"training_{name}": training(name) for name in METHODS},
    "training_crm-resolved": training("crm-resolved", alpha=0.1),  # without a ridge rounding would show
    "training_images": training_images,
    "bench_features": bench_features,
}

NEEDS = {"dask_fit": ["dask"], "energy_head": ["torch"]} | {
    name: ["torch", "accelerate"] for name in CASES if name.startswith(("training_", "bench_"))
}
"""Packages beyond the base install."""
