"""How well, and how surely, groups are predicted that training lacks.

    python benchmarks/unseen_groups.py --features DIR [--draws 10] [--first 100] [--parts gap,simulation,…]

DIR holds feature files (.npz) whose first attribute is the class. Part ``sets`` needs MAPIE, of the extra ``bench``.
Every figure is a mean over draws with its standard error. Results of each part also go to out/unseen_groups.json.
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from unittest.mock import patch

import numpy as np
import transforms
import unlabelled
from joblib import Parallel, delayed
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from ridge_choice import ALPHAS, compare
from scipy.stats import spearmanr
from sklearn.ensemble import HistGradientBoostingClassifier
from unseen_protocol import Draw, erm, feature_sets, gaussian_draw, raw_draw, real_draw, with_lone_class

from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CombinationKFold,
    CRMClassifier,
    CRMClassifierCV,
    LogitAdjustedClassifier,
)
from compshift.core.posterior import marginal_log_posterior
from compshift.data.feature_files import load_features

console = Console(width=120)


def mean(values) -> str:
    """Mean and standard error."""
    values = np.asarray(values, dtype=float)
    return f"{values.mean():.3f} ± {values.std(ddof=1) / math.sqrt(len(values)):.3f}"


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print one table."""
    console.print(f"\n{title}")
    found = Table(*columns, box=SIMPLE)
    for row in rows:
        found.add_row(*row)
    console.print(found)


def gap(name: str, draws: list[Draw]) -> dict:
    """Worst group of each method, and how much of the way from ERM to the oracle it goes."""
    methods = {
        "ERM": lambda draw: erm(draw.X, draw.codes[:, 0]),
        "sLA": lambda draw: draw.fit(LogitAdjustedClassifier("sla", tol=1e-4)),
        "CRM, alpha 1e-2": lambda draw: draw.fit(CRMClassifier(1e-2, prior="hull", tol=1e-4)),
        "CRMClassifierCV": lambda draw: draw.fit(CRMClassifierCV(prior="hull")),
        "oracle": lambda draw: erm(draw.X_all, draw.codes_all[:, 0]),
    }
    found = {method: [] for method in methods}
    for draw in draws:
        for method, fit in methods.items():
            accuracy = draw.accuracy(fit(draw).predict(draw.X_test))
            found[method].append((accuracy.min(), accuracy[draw.unseen].mean(), accuracy[~draw.unseen].mean()))
    worst = {method: np.array(values)[:, 0] for method, values in found.items()}
    low, high = worst["ERM"].mean(), worst["oracle"].mean()
    rows = []
    for method, values in found.items():
        share = (worst[method].mean() - low) / (high - low)
        paired = "" if method == "CRM, alpha 1e-2" else mean(worst[method] - worst["CRM, alpha 1e-2"])
        unseen, seen = np.array(values)[:, 1], np.array(values)[:, 2]
        rows.append([method, mean(worst[method]), f"{share:.0%}", paired, mean(unseen), mean(seen)])
    columns = ["", "worst group", "of the gap", "less CRM 1e-2", "unseen groups", "seen groups"]
    table(f"{name}: {len(draws)} draws", columns, rows)
    return {method: np.array(values).tolist() for method, values in found.items()}


def biases(name: str, draws: list[Draw]) -> dict:
    """Each kind of bias at one ridge, and the bias by moments without its bound."""
    found: dict[str, list] = {"extrapolated": [], "shrunk": [], "cumulant": [], "cumulant, no bound": []}
    for draw in draws:
        clf = draw.fit(CRMClassifier(1e-2, prior="hull", tol=1e-4))
        with patch("compshift.crm.fit.no_lower_than_samples", lambda bias, _: bias):
            unbound = draw.fit(CRMClassifier(1e-2, prior="hull", tol=1e-4, bias="cumulant"))
        for kind, values in found.items():
            model = unbound if "no bound" in kind else clf.set_params(bias=kind)
            accuracy = draw.accuracy(model.predict(draw.X_test))
            values.append((accuracy.min(), accuracy[draw.unseen].mean(), accuracy[~draw.unseen].mean()))
    rows = [[kind, *(mean(column) for column in np.array(values).T)] for kind, values in found.items()]
    columns = ["bias", "worst group", "unseen groups", "seen groups"]
    table(f"{name}: alpha 1e-2, {len(draws)} draws", columns, rows)
    return found


def expected(name: str, draws: list[Draw]) -> dict:
    """Accuracy on unseen groups as CRMClassifierCV expects it, against what comes."""
    errors, hits, widths, ranks, pairs = [], [], [], [], []
    for draw in draws:
        clf = draw.fit(CRMClassifierCV(prior="hull", confidence=0.8))
        actual = draw.accuracy(clf.predict(draw.X_test))[draw.unseen]
        frame = clf.expected_group_accuracy_
        where = draw.space.locate(draw.scored[draw.unseen], frame.iloc[:, :-3].to_numpy(dtype=np.int64))
        frame = frame.iloc[where]
        errors.append(abs(frame.accuracy.mean() - actual.mean()))
        hits += ((frame.lower <= actual) & (actual <= frame.upper)).tolist()
        widths += (frame.upper - frame.lower).tolist()
        pairs += list(zip(frame.accuracy.tolist(), actual.tolist(), strict=True))
        if len(actual) > 2:
            ranks.append(spearmanr(frame.accuracy, actual)[0])
    pooled = spearmanr(*zip(*pairs, strict=True))[0]
    row = [mean(errors), f"{np.mean(hits):.0%}", f"{np.mean(widths):.2f}", f"{pooled:.2f}"]
    row.append(f"{np.nanmean(ranks):.2f}" if ranks else "(two groups a draw)")
    columns = ["error of the mean", "80 % intervals cover", "width", "rank correlation", "within draws"]
    table(f"{name}: expected accuracy on unseen groups, {len(draws)} draws", columns, [row])
    return {"errors": errors, "pairs": pairs, "cover": float(np.mean(hits)), "width": float(np.mean(widths))}


def lone(name: str, draws: list[Draw]) -> dict:
    """Expected accuracy on unseen groups of a class of which no group can be held out, as it has a single one."""
    found: dict[str, list] = {}
    rows = []
    for most in (8, 25, 1000):
        values = []
        for draw in filter(None, (with_lone_class(draw, most) for draw in draws)):
            clf = draw.fit(CRMClassifierCV(prior="hull", anchor="zero", bias="extrapolated"))
            actual = draw.accuracy(clf.predict(draw.X_test))[draw.unseen]
            groups, frame = draw.scored[draw.unseen], clf.expected_group_accuracy_
            frame = frame.iloc[draw.space.locate(groups, frame.iloc[:, :-3].to_numpy(dtype=np.int64))]
            own = np.bincount(draw.hull.observed[:, 0])[groups[:, 0]] == 1
            values += np.stack([actual, frame.accuracy, frame.lower, frame.upper], axis=1)[own].tolist()
        if values:
            actual, centre, lower, upper = np.array(values).T
            low, high = np.quantile(actual, [0.05, 0.95])
            cover = np.mean((lower <= actual) & (actual <= upper))
            row = [str(len(actual)), f"{actual.mean():.2f}", f"{low:.2f} to {high:.2f}", f"{centre.mean():.2f}"]
            rows.append([f"at most {most}", *row, f"{cover:.0%}", f"{np.mean(upper - lower):.2f}"])
            found[str(most)] = values
    columns = ["rows of the class", "groups", "accuracy", "5 % to 95 %", "expected", "intervals cover", "width"]
    if rows:
        table(f"{name}: a class with one seen group, {len(draws)} draws", columns, rows)
    return found


def missing(name: str, draws: list[Draw]) -> dict:
    """With half of the attribute labels removed at random."""
    worst = {"ERM": [], "CRM, all labels": [], "half of the labels": [], "rows with a label alone": []}
    for draw in draws:
        rng = np.random.default_rng([draw.seed, 2])
        attributes = draw.codes[:, 1:].astype(float)
        attributes[rng.random(len(attributes)) < 0.5] = np.nan
        known = ~np.isnan(attributes).any(axis=1)
        clf = CRMClassifier(3e-2, prior="hull", tol=1e-4)
        fits = {
            "ERM": erm(draw.X, draw.codes[:, 0]),
            "CRM, all labels": draw.fit(CRMClassifier(3e-2, prior="hull", tol=1e-4)),
            "half of the labels": draw.fit(clf, attributes=attributes),
            "rows with a label alone": draw.fit(
                CRMClassifier(3e-2, prior="hull", tol=1e-4),
                draw.codes[known, 0],
                draw.X[known],
                draw.codes[known, 1:],
            ),
        }
        for method, fitted in fits.items():
            worst[method].append(draw.accuracy(fitted.predict(draw.X_test)).min())
    low, high = np.mean(worst["ERM"]), np.mean(worst["CRM, all labels"])
    rows = [[method, mean(values), f"{(np.mean(values) - low) / (high - low):.0%}"] for method, values in worst.items()]
    table(f"{name}: attribute labels missing, {len(draws)} draws", ["", "worst group", "of the gain over ERM"], rows)
    return worst


def boosting(name: str, draws: list[Draw]) -> dict:
    """A booster on the class, on groups summed over attributes, and on groups with affine extrapolation."""
    worst = {"booster on y": [], "on groups, summed": [], "AffineExtrapolation": []}
    for draw in draws:
        booster = HistGradientBoostingClassifier(random_state=0)
        clf = draw.fit(AffineExtrapolation(booster, prior="hull", random_state=0))
        proba = clf.estimator_.predict_proba(draw.X_test)
        classes = clf.hull_.observed[clf.estimator_.classes_, 0]
        summed = np.stack([proba[:, classes == y].sum(axis=1) for y in range(draw.space.cardinalities[0])], axis=1)
        alone = HistGradientBoostingClassifier(random_state=0).fit(draw.X, draw.codes[:, 0])
        predictions = [alone.predict(draw.X_test), summed.argmax(axis=1), clf.predict(draw.X_test)]
        for method, predicted in zip(worst, predictions, strict=True):
            worst[method].append(draw.accuracy(predicted).min())
        console.print(f"{name} {draw.seed}: " + ", ".join(f"{values[-1]:.3f}" for values in worst.values()))
    ours = np.array(worst["AffineExtrapolation"])
    rows = [[method, mean(values), mean(ours - np.array(values))] for method, values in worst.items()]
    table(f"{name}: a booster, {len(draws)} draws", ["", "worst group", "AffineExtrapolation less it"], rows)
    return worst


def priors(name: str, draws: list[Draw]) -> dict:
    """How often 90 % intervals of ``estimate_prior`` hold a group's share of 1000 test rows of a skewed prior."""
    models = {
        "CRM, alpha 1e-3": lambda: CRMClassifier(1e-3, prior="hull", tol=1e-4),
        "CRM, alpha 1e-2": lambda: CRMClassifier(1e-2, prior="hull", tol=1e-4),
        "CRMClassifierCV": lambda: CRMClassifierCV(prior="hull"),
        "AdditiveGaussian": lambda: AdditiveGaussian(prior="hull"),
    }
    held, before, after = ({model: [] for model in models} for _ in range(3))
    for draw in draws:
        rng = np.random.default_rng([draw.seed, 3])
        position = draw.space.locate(draw.codes_test, draw.scored)
        share = rng.dirichlet(np.ones(len(draw.scored)))
        chosen = rng.choice(len(share), size=1000, p=share)
        rows = np.array([rng.choice(np.flatnonzero(position == group)) for group in chosen])
        for model, make in models.items():
            clf = draw.fit(make())
            before[model].append(clf.score(draw.X_test[rows], draw.codes_test[rows, 0]))
            found = clf.estimate_prior(draw.X_test[rows])
            truth = np.zeros(len(clf.groups_))
            truth[clf.space_.locate(draw.scored, clf.groups_)] = share
            asked = clf.log_prior_ > -np.inf
            held[model].append(((found.lower <= truth) & (truth <= found.upper))[asked].mean())
            after[model].append(clf.set_prior(found).score(draw.X_test[rows], draw.codes_test[rows, 0]))
    rows = [
        [model, mean(held[model]), mean(before[model]), mean(np.array(after[model]) - before[model])]
        for model in models
    ]
    columns = ["", "90 % intervals hold", "accuracy, uniform prior", "under the estimate: more"]
    table(f"{name}: estimate_prior on rows of a skewed prior, {len(draws)} draws", columns, rows)
    return {"held": held, "before": before, "after": after}


def cost(name: str, draws: list[Draw]) -> dict:
    """CRMClassifierCV with eight alphas, against as many separate fits as it stands for."""
    ratios = []
    for draw in draws[:3]:
        clf = CRMClassifierCV(prior="hull", cv=CombinationKFold(1000))
        start = time.perf_counter()
        draw.fit(clf)
        whole = time.perf_counter() - start
        separate = 0.0
        for alpha in clf.alphas:
            start = time.perf_counter()
            draw.fit(CRMClassifier(alpha, prior="hull"))
            separate += time.perf_counter() - start
        fits = len(clf.alphas) * clf.n_splits_ + 1
        ratios.append(whole / (separate / len(clf.alphas) * fits))
    table(f"{name}: time of CRMClassifierCV over that of (alphas × folds + 1) fits", ["ratio"], [[mean(ratios)]])
    return {"ratios": ratios}


def simulation(count: int) -> dict:
    """Additive Gaussians, a fifth of 100 groups seen, 4000 rows."""
    methods = {
        "CRM, alpha 1e-4": lambda: CRMClassifier(1e-4, tol=1e-4),
        "CRM, alpha 5e-2": lambda: CRMClassifier(5e-2, tol=1e-4),
        "CRMClassifierCV(bias='auto')": lambda: CRMClassifierCV(bias="auto"),
        "AdditiveGaussian": AdditiveGaussian,
    }
    found = {method: [] for method in methods}
    for seed in range(count):
        draw = gaussian_draw(seed)
        for method, make in methods.items():
            accuracy = draw.accuracy(draw.fit(make()).predict(draw.X_test))
            found[method].append((accuracy[~draw.unseen].mean(), accuracy[draw.unseen].mean()))
    rows = [[method, *(mean(column) for column in np.array(values).T)] for method, values in found.items()]
    table(f"simulation, Bayes .98: {count} seeds", ["", "seen groups", "unseen groups"], rows)
    return found


def choice(name: str, draws: list[Draw]) -> dict:
    """The ridge as CRMClassifierCV chooses it, against fixed ones, on draws with several groups dropped."""
    fixed = [f"CRM {alpha:.2g}" for alpha in ALPHAS]
    found: dict[str, list] = {method: [] for method in ("CRMClassifierCV", "the same, unseen_offset 0", *fixed)}
    for draw in draws:
        makers = [CRMClassifierCV(prior="hull"), CRMClassifierCV(prior="hull", unseen_offset=0.0)]
        makers += [CRMClassifier(alpha, prior="hull", tol=1e-4) for alpha in ALPHAS]
        for method, clf in zip(found, makers, strict=True):
            accuracy = draw.accuracy(draw.fit(clf).predict(draw.X_test))
            found[method].append((accuracy.min(), accuracy[draw.unseen].mean(), accuracy[~draw.unseen].mean()))
    best = max(fixed, key=lambda method: np.mean(found[method], axis=0)[0])
    rows = []
    for method in ["CRMClassifierCV", "the same, unseen_offset 0", best]:
        paired = mean(np.array(found[method])[:, 0] - np.array(found[best])[:, 0])
        label = f"{best}, best fixed ridge in hindsight" if method == best else method
        rows.append([label, *(mean(column) for column in np.array(found[method]).T), paired])
    columns = ["", "worst group", "unseen groups", "seen groups", "worst less the best fixed"]
    table(f"{name}: {len(draws)} draws", columns, rows)
    return found


def sets(name: str, draws: list[Draw]) -> dict:
    """Sets that should contain the class of nine rows in ten: coverage and size, beside conformal sets without weights.

    Without weights there is one threshold for all rows or one per class, either on the same out-of-fold scores or, as
    is usual, on a fifth of the training rows that the classifier was not fitted to. MAPIE does the latter, for ERM and
    CRM. Draws without an unseen group are left out.
    """
    from mapie.classification import SplitConformalClassifier

    found: dict[str, list] = {}
    for draw in draws:
        if not draw.unseen.any():
            continue
        clf = draw.fit(CRMClassifierCV(prior="hull"))
        known = clf._model.out_of_fold
        score = -marginal_log_posterior(known.energies, clf._model.candidates.table, clf._log_score(), 0)
        new_score = -clf.predict_log_proba(draw.X_test)
        y = clf._model.candidates.seen_groups[known.position, 0]
        fitted = np.random.default_rng([draw.seed, 4]).random(len(draw.X)) < 0.8
        plain = erm(draw.X[fitted], draw.codes[fitted, 0])
        plain_score, plain_new = -plain.predict_log_proba(draw.X[~fitted]), -plain.predict_log_proba(draw.X_test)
        plain_y = draw.codes[~fitted, 0]
        contains = {
            "CRM, predict_set": clf.predict_set(draw.X_test).contains,
            "CRM, no weights": conformal(score, y, new_score, np.zeros_like(y)),
            "CRM, no weights, by class": conformal(score, y, new_score, y),
            "ERM, no weights": conformal(plain_score, plain_y, plain_new, np.zeros_like(plain_y)),
            "ERM, no weights, by class": conformal(plain_score, plain_y, plain_new, plain_y),
        }
        part = draw.fit(CRMClassifierCV(prior="hull"), draw.codes[fitted, 0], draw.X[fitted], draw.codes[fitted, 1:])
        for label, prefit in (("ERM", plain), ("CRM", part)):
            mapie = SplitConformalClassifier(prefit, confidence_level=0.9, prefit=True)
            mapie.conformalize(draw.X[~fitted], plain_y)
            contains[f"{label}, MAPIE"] = mapie.predict_set(draw.X_test)[1][:, :, 0]
        for method, chosen in contains.items():
            cover = draw.by_group(chosen[np.arange(len(chosen)), draw.codes_test[:, 0]])
            size = draw.by_group(chosen.sum(axis=1))
            parts = [values[which].mean() for values in (cover, size) for which in (draw.unseen, ~draw.unseen)]
            found.setdefault(method, []).append((*parts[:2], cover.min(), *parts[2:]))
    columns = ["coverage .9", "unseen groups", "seen groups", "worst group", "size, unseen", "size, seen"]
    if found:
        rows = [[method, *(mean(column) for column in np.array(values).T)] for method, values in found.items()]
        table(f"{name}: {len(next(iter(found.values())))} draws", columns, rows)
    return found


def conformal(score: np.ndarray, y: np.ndarray, new_score: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Sets (n, c) by split-conformal prediction at .9 with one threshold per value of ``part``: 0, or the class."""
    own, contains = score[np.arange(len(y)), y], np.zeros(new_score.shape, dtype=bool)
    for column in range(new_score.shape[1]):
        scores = np.sort(own[part == (column if part.any() else 0)])
        rank = math.ceil(0.9 * (len(scores) + 1))
        contains[:, column] = True if rank > len(scores) else new_score[:, column] <= scores[rank - 1]
    return contains


def pools(name: str, draws: list[Draw], folder: Path) -> dict:
    """CRMClassifierCV with pools of unlabelled rows of several kinds, beside itself without them."""
    others = [path for path in feature_sets(folder) if path.stem != name]
    pairs = ((draw, real_draw(others[draw.seed % len(others)], draw.seed)) for draw in draws if draw.unseen.any())
    found = Parallel(n_jobs=2)(delayed(unlabelled.measure)(draw, other) for draw, other in pairs)
    if not found:
        return {}
    table(f"{name}: {len(found)} draws", unlabelled.COLUMNS, unlabelled.table_rows(found, mean))
    return {"draws": found}


def representation(path: Path, seeds: range) -> dict:
    """The transform that CRMClassifierCV chooses, beside fixed ones; draws without an unseen group are left out."""
    draws = (raw_draw(path, seed) for seed in seeds)
    found = [transforms.measure(draw) for draw in draws if draw.unseen.any()]
    if not found:
        return {}
    table(f"{path.stem}: {len(found)} draws", transforms.COLUMNS, transforms.table_rows(found, mean))
    times = transforms.seconds(raw_draw(path, seeds[0]))
    console.print(f"seconds of one fit: {times['none']:.0f}, with feature_transform='auto' {times['auto']:.0f}")
    return {"draws": found, "seconds": times}


PARTS = {
    "gap": gap,
    "choice": choice,
    "biases": biases,
    "expected": expected,
    "lone": lone,
    "missing": missing,
    "boosting": boosting,
    "priors": priors,
    "cost": cost,
    "sets": sets,
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, help="folder of feature files")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=100, help="seed of the first draw")
    parser.add_argument("--parts", default=",".join([*PARTS, "transforms", "unlabelled", "simulation"]))
    options = parser.parse_args()
    parts = {**PARTS, "unlabelled": lambda name, draws: pools(name, draws, options.features)}
    warnings.simplefilter("ignore")
    output = Path("out/unseen_groups.json")
    output.parent.mkdir(exist_ok=True)
    results = json.loads(output.read_text()) if output.exists() else {}
    for part in options.parts.split(","):
        if part == "simulation":
            results[part] = simulation(5)
        else:
            if options.features is None:
                parser.error(f"part {part} needs --features")
            for path in feature_sets(options.features):
                if part == "choice" and load_features(path).split is not None:
                    for title, (rows, found) in compare(path, options.first, 2 * options.draws).items():
                        table(title, ["", "worst group, %", "less the best fixed ridge of CRM"], rows)
                        results[f"choice {title}"] = found
                    if len(load_features(path).space.cardinalities) == 2:
                        continue
                if part == "transforms":
                    seeds = range(options.first, options.first + options.draws)
                    results[f"{part} {path.stem}"] = representation(path, seeds)
                    continue
                draws = [real_draw(path, seed) for seed in range(options.first, options.first + options.draws)]
                results[f"{part} {path.stem}"] = parts[part](path.stem, draws)
        output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
