"""
A prior that changes in use
===========================

A classifier of X-ray images was trained on two kinds of findings from two clinics. Clinic B had no sick patients in
the training data. In use it has some, and their number is unknown at first. The prior can be set, or estimated from
unlabelled inputs, without another fit.
"""

import matplotlib.pyplot as plt
import numpy as np

import compshift as cs

rng = np.random.default_rng(0)
finding_shift, clinic_shift = rng.normal(size=(2, 8))


def patients(counts):
    """Features and labels of patients; ``counts`` maps each (finding, clinic) to a number of patients."""
    z = np.repeat(list(counts), list(counts.values()), axis=0)
    X = rng.normal(size=(len(z), 8)) + np.outer(z[:, 0] == "sick", finding_shift)
    return X + np.outer(z[:, 1] == "B", clinic_shift), z[:, 0], z[:, 1]


X, finding, clinic = patients({("healthy", "A"): 900, ("sick", "A"): 600, ("healthy", "B"): 900})
clf = cs.CRMClassifier(alpha=1e-3).fit(X, finding, attributes=clinic)

# %%
# A season at clinic B
# --------------------
# Nine of ten patients now come to clinic B, and a fifth of these are sick.

now = {("healthy", "A"): 240, ("sick", "A"): 60, ("healthy", "B"): 2160, ("sick", "B"): 540}
X_now, finding_now, clinic_now = patients(now)
truth = {group: count / len(X_now) for group, count in now.items()}

accuracy = {"training prior": clf.set_prior("train").score(X_now, finding_now)}
accuracy["uniform prior"] = clf.set_prior("uniform").score(X_now, finding_now)
accuracy["the true prior"] = clf.set_prior(truth).score(X_now, finding_now)

# %%
# The true prior is unknown in practice, but the unlabelled inputs carry information about it: EM finds the group
# frequencies under which they are most likely. The intervals assume that the classifier is right.

estimate = clf.estimate_prior(X_now)
accuracy["an estimated prior"] = clf.set_prior(estimate).score(X_now, finding_now)
table = estimate.to_frame().assign(truth=[truth[tuple(group)] for group in clf.space_.decode(clf.groups_)])
print(table.round(3).to_string(index=False), end="\n\n")
for name, value in accuracy.items():
    print(f"{name:20}{value:.3f}")

assert accuracy["the true prior"] > max(accuracy["training prior"], accuracy["uniform prior"]) + 0.03
assert abs(accuracy["an estimated prior"] - accuracy["the true prior"]) < 0.01
assert table["truth"].between(table["lower"], table["upper"]).all()

# %%
# The training prior gives (sick, B) probability zero: a patient of clinic B is predicted sick only if mistaken for one
# of clinic A. The uniform prior expects too many sick patients. The estimate does about as well as the true prior.
#
# An estimated prior is never used by default: where groups are about as frequent as the current prior says, the noise
# in the estimate costs more than it gains.

figure, panel = plt.subplots(figsize=(6, 3), layout="constrained")
rows = np.arange(len(table))
panel.hlines(rows, table["lower"], table["upper"], color="#0072b2", lw=6, alpha=0.4, label="interval of 90 %")
panel.plot(table["probability"], rows, "o", color="#0072b2", label="estimate, without labels")
panel.plot(table["truth"], rows, "|", color="#d55e00", ms=18, mew=2.5, label="truth")
panel.set_yticks(rows, [f"{finding}, {clinic}" for finding, clinic in clf.space_.decode(clf.groups_)])
panel.set(xlabel="share of the patients", xlim=(0, 1), ylim=(-0.6, len(rows) - 0.4))
panel.legend(loc="upper right")
plt.show()
