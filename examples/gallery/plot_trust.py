"""
How far to trust a prediction
=============================

Three questions to ask about a fitted model: how many samples does the bias of each group rest on, was the predicted
group seen or is it determined by seen groups, and are the energies additive?
"""

import matplotlib.pyplot as plt
import numpy as np

import compshift as cs

rng = np.random.default_rng(0)
shape, shade = np.array([[0, 0], [2, 0], [4, 0]]), np.array([[0, 0], [0, 2], [0, 4]])
seen = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]  # the first row and the first column of a 3 × 3 grid


def rows(groups, n, interaction=0.0):
    """Features and codes; an interaction moves (1, 1) away from its additive position."""
    z = np.array(groups)[rng.integers(len(groups), size=n)]
    X = rng.normal(size=(n, 2)) + shape[z[:, 0]] + shade[z[:, 1]]
    return X + interaction * np.outer((z == 1).all(axis=1), [1, -1]), z


X, z = rows(seen, 2000)
clf = cs.CRMClassifier(alpha=1e-3).fit(X, z[:, 0], attributes=z[:, 1])

# %%
# What each bias rests on
# -----------------------
# The bias of an unseen group is a mean over training samples, weighted by their similarity to that group. Its effective
# sample size is the number of samples that count; if k̂ is above 0.7, even this number cannot be trusted.

table = clf.group_frame()[["y", "a", "train_rows", "inside_hull", "effective_sample_size"]].assign(k=clf.pareto_k_)
print(table.round(2).to_string(index=False))

# %%
# No seen group is near (2, 2), and its bias rests on fewer than thirty samples. It is still inside the hull: with
# unlimited data it would be determined.

far = table.set_index(["y", "a"]).loc[(2, 2)]
assert far["inside_hull"]
assert far["effective_sample_size"] < 30
assert far["k"] > 0.7
assert table.set_index(["y", "a"]).loc[(1, 1), "k"] < 0.7

# %%
# ``plot_reliability`` draws it, for the unseen groups:

display = clf.plot_reliability()

# %%
# ``explain`` reports the same for the predicted group of each row, and the terms of its log-odds against a rival:

explanation = clf.explain([[0, 0], [2, 2], [4, 4]])
print(explanation.to_frame().iloc[:, :6].round(2).to_string(index=False))
print(explanation)

# %%
# Do energies add up?
# -------------------
# Additivity is an assumption about the data. ``diagnose`` looks for evidence against it among seen groups, on rows that
# the model was not fitted to: first with additive data, then with an interaction that moves (1, 1).

for interaction in (0.0, 1.0):
    X_train, z_train = rows([*seen, (1, 1)], 2000, interaction)
    X_held, z_held = rows([*seen, (1, 1)], 2000, interaction)
    fitted = cs.CRMClassifier(alpha=1e-3).fit(X_train, z_train[:, 0], attributes=z_train[:, 1])
    diagnosis = cs.diagnose(fitted, X_held, z_held[:, 0], attributes=z_held[:, 1])
    print(f"interaction {interaction:g}: {diagnosis.additivity_verdict}\n")
    assert diagnosis.additive == (interaction == 0)

# %%
# Effective sample size of every group
# ------------------------------------

figure, panel = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
size = table["effective_sample_size"].to_numpy()
colours = np.where(clf.seen_, "#0072b2", np.where(clf.pareto_k_ > 0.7, "#d55e00", "#e69f00"))
panel.barh(range(len(size)), size, color=colours)
panel.axvline(30, color="black", ls=":", lw=1.5)
panel.set_yticks(range(len(size)), [f"({shape}, {shade})" for shape, shade in clf.groups_])
panel.set(xscale="log", xlim=(1, 2000), xlabel="effective sample size of the bias (dotted: 30)", ylabel="group")
panel.invert_yaxis()
names = {"seen": "#0072b2", "unseen": "#e69f00", "unseen, k̂ above 0.7": "#d55e00"}
figure.legend(
    [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in names.values()], names, loc="outside upper center", ncols=3
)
plt.show()
