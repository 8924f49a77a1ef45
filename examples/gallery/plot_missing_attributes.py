"""
Attributes known in few rows or none
====================================

Nineteen of twenty landbirds were photographed on land, and nineteen of twenty waterbirds on water. A classifier of
birds then learns the places. CRM corrects this if it knows the place of each training row. What if most places were not
recorded?
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import compshift as cs

rng = np.random.default_rng(0)
groups = [("landbird", "land"), ("landbird", "water"), ("waterbird", "land"), ("waterbird", "water")]


def photographs(counts):
    """Ten features, some of which depend more on the place than on the bird; ``counts`` has the rows of each group."""
    z = np.repeat(groups, counts, axis=0)
    X = rng.normal(size=(len(z), 10))
    X += np.outer(z[:, 0] == "waterbird", [0.7, 0.7, 0.7, 0, 0, 0, 0, 0, 0, 0])
    return X + np.outer(z[:, 1] == "water", [1.0, 0, 0, 2.5, 2.5, 2.5, 0, 0, 0, 0]), z[:, 0], z[:, 1]


X, bird, place = photographs([950, 50, 50, 950])
X_new, bird_new, place_new = photographs([1000, 1000, 1000, 1000])

# %%
# In some rows
# ------------
# The place is known for one row in ten; the others have None. CRM still uses those rows, through their bird. The
# alternative is to leave them out.

known = rng.random(len(X)) < 0.1
partly = np.where(known, place, None)
print(pd.crosstab(bird, np.where(known, place, "unknown"), rownames=["bird"], colnames=["place"]))

fitted = {
    "LogisticRegression": LogisticRegression().fit(X, bird),
    "CRM, known rows alone": cs.CRMClassifier(1e-3).fit(X[known], bird[known], attributes=place[known]),
    "CRM, a tenth known": cs.CRMClassifier(1e-3).fit(X, bird, attributes=partly),
    "CRM, all known": cs.CRMClassifier(1e-3).fit(X, bird, attributes=place),
}

# %%
# In no row
# ---------
# ``infer_attributes`` returns for each row the class that a biased model predicts. If something easier than the class
# is correlated with it, as the place is here, the result is close to the attribute itself.

inferred = cs.infer_attributes(X, bird)
agree = np.mean((inferred == "waterbird") == (place == "water"))
print(f"inferred and true place agree in {agree:.0%} of the rows")
fitted["CRM, inferred"] = cs.CRMClassifier(1e-3).fit(X, bird, attributes=inferred)

# %%
# Comparison
# ----------

reports = {name: cs.metrics.group_report(bird_new, clf.predict(X_new), place_new) for name, clf in fitted.items()}
table = pd.DataFrame({name: report.accuracy for name, report in reports.items()}, index=map(", ".join, groups)).T
table["worst"] = table.min(axis=1)
print(table.round(2).to_string())

# %%
# Logistic regression is nearly always wrong on birds in unusual places. A tenth of the places is as good as all of them
# if the other rows are kept; without those, the unusual groups have only a handful of rows each. Inferred attributes
# close most of the gap without a single known place, but known places are better.

worst = table["worst"]
assert worst["LogisticRegression"] < 0.2
assert worst["CRM, known rows alone"] < 0.6
assert abs(worst["CRM, a tenth known"] - worst["CRM, all known"]) < 0.03
assert worst["CRM, known rows alone"] < worst["CRM, inferred"] < worst["CRM, all known"]

figure, panel = plt.subplots(figsize=(6.5, 3), layout="constrained")
panel.barh(worst.index, worst, color=["0.6", "#56b4e9", "#0072b2", "#009e73", "#e69f00"])
panel.bar_label(panel.containers[0], fmt="%.2f", padding=3)
panel.set(xlabel="accuracy of the worst group", xlim=(0, 1))
panel.invert_yaxis()
plt.show()
