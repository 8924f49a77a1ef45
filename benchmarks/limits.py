"""Hard data for a fit, one case a line: does it converge, what do its diagnostics say, how well does it do?

Two attributes of two values; the group (1, 0) is never seen. Of p features (5, unless it is said) one moves with the
first attribute, one with the second, one with both. ``python benchmarks/limits.py`` prints the table of docs/limits.md.
"""

import numpy as np

import compshift as cs

SEEN = [(0, 0), (0, 1), (1, 1)]
EVERY = [*SEEN, (1, 0)]


def rows(groups, counts, rng, shift=2.0, p=5):
    z = np.repeat(groups, counts, axis=0)
    X = rng.normal(size=(len(z), p))
    X[:, 0] += shift * z[:, 0]
    X[:, 1] += shift * z[:, 1]
    X[:, 2] += shift * z.sum(axis=1)
    return X, z


def case(name, alpha, counts=500, transform=lambda X: X, balanced=False, **data):
    rng = np.random.default_rng(0)
    X, z = rows(SEEN, counts, rng, **data)
    X_test, z_test = rows(EVERY, 1000, rng, **data)
    weight = None
    if balanced:
        weight = 1 / np.bincount(2 * z[:, 0] + z[:, 1], minlength=4)[2 * z[:, 0] + z[:, 1]]
    clf = cs.CRMClassifier(alpha).fit(transform(X), z[:, 0], attributes=z[:, 1], sample_weight=weight)
    report = cs.metrics.group_report(z_test[:, 0], clf.predict(transform(X_test)), z_test[:, 1])
    unseen = int(np.flatnonzero(~clf.seen_)[0])
    print(
        f"| {name} | {alpha:g} | {'yes' if clf.converged_ else 'no'} | {clf.effective_sample_size_[unseen]:.0f} "
        f"| {clf.pareto_k_[unseen]:.2f} | {report.average:.3f} | {report.worst:.3f} |"
    )


def interaction(size, missing):
    """Attributes that interact: one feature depends on both at once, and additive energies cannot say how."""
    rng = np.random.default_rng(0)
    every = [(first, second) for first in range(size) for second in range(size)]
    seen = [group for group in every if group not in missing]

    def interacting(groups, count):
        z = np.repeat(groups, count, axis=0)
        X = rng.normal(size=(len(z), 5)) + 2 * np.pad(z, [(0, 0), (0, 3)])
        X[:, 2] += 3 * ((z[:, 0] + z[:, 1]) % 2)
        return X, z

    (X, z), (held, z_held), (X_test, z_test) = interacting(seen, 500), interacting(seen, 500), interacting(every, 1000)
    clf = cs.CRMClassifier(1e-3).fit(X, z[:, 0], attributes=z[:, 1])
    frame = cs.metrics.group_report(z_test[:, 0], clf.predict(X_test), z_test[:, 1]).to_frame()
    unseen = ~clf.seen_
    diagnosis = cs.diagnose(clf, held, z_held[:, 0], attributes=z_held[:, 1])
    print(
        f"\n{len(seen)} of {size} × {size} groups seen, rank {clf.hull_.rank}: accuracy on seen groups "
        f"{frame['accuracy'][~unseen].mean():.2f}, on unseen ones {frame['accuracy'][unseen].mean():.2f}. "
        f"{diagnosis.additivity_verdict}"
    )


def main():
    print("| case | alpha | converged | ESS of (1, 0) | k̂ of (1, 0) | average | worst group |")
    print("|---|---|---|---|---|---|---|")
    case("as it should be", 1e-3)
    for alpha in (1e-2, 1e-5, 0.0):
        case("separable: shifts of 20 deviations", alpha, shift=20.0)
    case("every feature twice", 1e-3, transform=lambda X: np.hstack([X, X]))
    case("every feature twice", 0.0, transform=lambda X: np.hstack([X, X]))
    case("all features × 1e8", 1e-3, transform=lambda X: 1e8 * X)
    case("all features + 1e6", 1e-3, transform=lambda X: X + 1e6)
    case("one informative feature × 1e-4", 1e-3, transform=lambda X: X * [1e-4, 1, 1, 1, 1])
    case("one feature of noise × 1e4", 1e-3, transform=lambda X: X * [1, 1, 1, 1, 1e4])
    for alpha in (1e-3, 1e-1):
        case("2000 features, 30 rows a group", alpha, counts=30, p=2000, shift=3.0)
    for alpha in (1e-2, 1e-3, 1e-4, 1e-6):
        case("one row of (1, 1), 500 of the others", alpha, counts=[500, 500, 1])
    for alpha in (1e-2, 1e-3, 1e-4, 1e-6):
        case("10 rows of (0, 1) and (1, 1), 100 000 of (0, 0)", alpha, counts=[100_000, 10, 10])
    for alpha in (1e-1, 1e-2):
        case("the same, groups weighted alike", alpha, counts=[100_000, 10, 10], balanced=True)
    interaction(2, missing=[(1, 0)])
    interaction(3, missing=[(0, 2), (2, 0)])


if __name__ == "__main__":
    main()
