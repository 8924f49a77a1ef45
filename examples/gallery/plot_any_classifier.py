"""
Any classifier: unseen combinations by gradient boosting
========================================================

``CRMClassifier`` is linear in the features. Where that is not enough, ``AffineExtrapolation`` trains any classifier
with probabilities to distinguish the *seen* groups, and computes the probabilities of the unseen groups from its
output.

Here every sensor reading has mean zero. The states of a machine differ in the variance of the readings, which also
depends on the site of the machine.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import compshift as cs

rng = np.random.default_rng(0)
precision = {  # of twelve readings; precisions are additive, and so are the energies
    "fine": np.repeat([4.0, 4.0, 1.0, 0.2], 3),
    "worn": np.repeat([0.4, 1.0, 1.0, 1.0], 3),
    "hall": np.repeat([3.0, 0.3, 3.0, 0.3], 3),
    "yard": np.repeat([0.3, 0.3, 0.3, 2.0], 3),
}


def readings(groups, n):
    """Rows of readings, with states and sites."""
    z = np.array(groups)[rng.integers(len(groups), size=n)]
    scale = np.array([precision[state] + precision[site] for state, site in z]) ** -0.5
    return scale * rng.normal(size=scale.shape), z[:, 0], z[:, 1]


seen = [("fine", "hall"), ("fine", "yard"), ("worn", "hall")]
X, state, site = readings(seen, 3000)
X_new, state_new, site_new = readings([*seen, ("worn", "yard")], 4000)

# %%
# Three classifiers of the state
# ------------------------------
# ``AffineExtrapolation`` clones its estimator, so the same booster can be used twice. It computes and calibrates
# out-of-fold probabilities, so the booster need not be calibrated.

booster = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=0)
fitted = {
    "linear CRM": cs.CRMClassifier(1e-3).fit(X, state, attributes=site),
    "boosting": booster.fit(X, state),
    "boosting, extrapolated": cs.AffineExtrapolation(booster, cv=3, random_state=0).fit(X, state, attributes=site),
}
predicted = {name: clf.predict(X_new) for name, clf in fitted.items()}
density = {  # log p(x | state, site), up to a constant: the best possible classifier
    (a, b): 0.5 * (np.log(precision[a] + precision[b]) - (precision[a] + precision[b]) * X_new**2).sum(axis=1)
    for a in ("fine", "worn")
    for b in ("hall", "yard")
}
fine, worn = (np.logaddexp(density[a, "hall"], density[a, "yard"]) for a in ("fine", "worn"))
predicted["Bayes"] = np.where(worn > fine, "worn", "fine")
reports = {name: cs.metrics.group_report(state_new, found, site_new) for name, found in predicted.items()}
table = pd.DataFrame({name: report.to_frame().set_index(["y", "a"])["accuracy"] for name, report in reports.items()}).T
print(table.round(2))

# %%
# Linear energies cannot represent the variance of a reading, so linear CRM guesses. The booster classifies two of five
# worn machines in the yard as fine; extrapolated, it is right on about nine of ten, like the Bayes classifier. The
# Bayes classifier loses some accuracy on fine machines in the yard in return, and the extrapolated booster loses more.

assert table.loc["linear CRM"].max().max() < 0.6
assert table.loc["boosting", ("worn", "yard")] < 0.65
assert table.loc["boosting, extrapolated", ("worn", "yard")] > 0.85
balanced = {name: report.balanced for name, report in reports.items()}
print({name: round(value, 2) for name, value in balanced.items()})
assert balanced["boosting"] + 0.03 < balanced["boosting, extrapolated"] < balanced["Bayes"]

# %%
# Very small probabilities cannot be extrapolated, because a negative weight turns them into large ones. They are
# floored, and ``floored_`` is the share of floored probabilities.

extrapolated = fitted["boosting, extrapolated"]
print(f"floor {extrapolated.floor_:g}, below it {extrapolated.floored_:.1%} of the probabilities")

figure, panel = plt.subplots(figsize=(7, 3.2), layout="constrained")
colours = ["0.7", "#56b4e9", "#0072b2", "#e69f00"]
for offset, (name, colour) in enumerate(zip(table.index, colours, strict=True)):
    panel.bar(np.arange(4) + 0.2 * (offset - 1.5), table.loc[name], width=0.18, color=colour, label=name)
labels = [f"{state}, {site}" for state, site in table.columns]
panel.set_xticks(range(4), [*labels[:3], f"{labels[3]}\nnever seen"])
panel.set(ylabel="accuracy", ylim=(0, 1))
figure.legend(loc="outside right upper")
plt.show()
