"""
Attributes that were not written down
=====================================
"""

import numpy as np
import compshift as cs
from sklearn.linear_model import LogisticRegression

rng = np.random.default_rng(0)


def birds(counts):
    z = np.repeat(list(counts), list(counts.values()), axis=0)
    X = rng.normal(size=(len(z), 10))
    X[:, :5] += np.outer(z[:, 0] == "waterbird", [0.7, 0.7, 0.7, 0, 0])
    X[:, 3:6] += 2.5*np.outer(z[:, 1] == "water", [1, 1, 1])
    X[:, 0] += 1.0*(z[:, 1] == "water")
    return X, z[:, 0], z[:, 1]
train = {("landbird", "land"): 950, ("landbird", "water"): 50, ("waterbird", "land"): 50, ("waterbird", "water"): 950}
X, bird, place = birds(train)
Xn, birdn, placen = birds({k: 1000 for k in train})
def rep(n, clf): 
    r = cs.metrics.group_report(birdn, clf.predict(Xn), placen); print(f"{n:20}", r.accuracy.round(2), round(r.balanced,3))
rep("erm", LogisticRegression().fit(X, bird))
rep("all", cs.CRMClassifier(1e-3).fit(X, bird, attributes=place))
inferred = cs.infer_attributes(X, bird)
print((inferred == np.where(place=="water","waterbird","landbird")).mean())
rep("infer", cs.CRMClassifier(1e-3).fit(X, bird, attributes=inferred))
for share in (0.9,0.97):
    partly = place.astype(object)
    gone = rng.random(len(place)) < share
    partly[gone] = None
    rep(f"complete {share}", cs.CRMClassifier(1e-3).fit(X[~gone], bird[~gone], attributes=place[~gone]))
    rep(f"partly {share}", cs.CRMClassifier(1e-3).fit(X, bird, attributes=partly))
