"""
Before training: what can be extrapolated, and what to collect
==============================================================

A table of penguins has a species, a sex and an island for each bird, and many combinations never occur. Before anything
is fitted, the counts show which of the missing combinations the others determine, and which are out of reach of any
additive model.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap

import compshift as cs

penguins = cs.data.benchmark("penguins").load()
birds = penguins.columns(["species", "island"])
print(pd.crosstab(birds["species"], birds["island"]))

# %%
# The whole table is enough
# -------------------------
# Adelie penguins live on all three islands and connect all species: each missing pair is a sum and difference of seen
# pairs.

space = cs.GroupSpace.from_table(birds)
hull = cs.AffineHull(space, space.encode(birds))
print(hull)
for code in hull.missing():
    print(hull.explain(code))
assert hull.is_complete

# %%
# A season without one colony
# ---------------------------
# Suppose that the Adelies on Biscoe were not counted. Gentoos were seen on Biscoe only, and now no other species was.

season = birds[(birds["species"] != "Adelie") | (birds["island"] != "Biscoe")]
hull = cs.AffineHull(space, space.encode(season))
print(hull)
print("within reach:", *(space.label(code) for code in hull.missing(inside=True)))
print("out of reach:", *(space.label(code) for code in hull.missing(inside=False)))

# %%
# A certificate proves that a group is out of reach. It has one number per attribute value; they cancel in every seen
# group but not in this one. Adding any multiple of it to the energies changes no seen group, so training cannot tell.

gentoo_on_dream = space.encode([("Gentoo", "Dream")])
certificate = hull.certificate(gentoo_on_dream)
print(dict(zip([value for values in space.values for value in values], certificate.tolist(), strict=True)))
assert not (space.one_hot(hull.observed) @ certificate).any()
assert (space.one_hot(gentoo_on_dream) @ certificate).all()

# %%
# What to collect
# ---------------
# One more combination completes the table, and any of those out of reach will do, so the prices decide. Only groups
# with a price can be collected.

price = {
    ("Adelie", "Biscoe"): 3.0,
    ("Gentoo", "Dream"): 2.0,
    ("Gentoo", "Torgersen"): 9.0,
    ("Chinstrap", "Biscoe"): 7.0,
}
plan = hull.plan(cost=price)
print("collect", *(space.label(code) for code in plan), f"at {plan.cost:g}; is there nothing cheaper? {plan.optimal}")
completed = cs.AffineHull(space, np.concatenate([hull.observed, plan]))
assert completed.is_complete

# %%
# If the target is Gentoos on Dream, and they cannot be collected themselves, the plan is different:

plan = hull.plan(cost=price, target=gentoo_on_dream, forbidden=gentoo_on_dream)
print("collect", *(space.label(code) for code in plan), f"at {plan.cost:g}")
assert space.decode(plan).tolist() == [["Adelie", "Biscoe"]]

# %%
# The grid of that season
# -----------------------

inside = hull.contains(space.codes(np.arange(space.n_groups))).reshape(space.cardinalities)
counts = pd.crosstab(season["species"], season["island"]).to_numpy()
figure, panel = plt.subplots(figsize=(6, 3), layout="constrained")
kind = np.where(counts > 0, 2, inside.astype(int))  # seen, within reach, out of reach
panel.imshow(kind, cmap=ListedColormap(["#d55e00", "#f0e442", "#56b4e9"]), alpha=0.7, aspect="auto")
for row, column in np.ndindex(kind.shape):
    words = ["out of reach", "can be\nextrapolated", f"{counts[row, column]} birds"]
    panel.text(column, row, words[kind[row, column]], ha="center", va="center")
panel.vlines([0.5, 1.5], -0.5, 2.5, color="white", lw=3)
panel.hlines([0.5, 1.5], -0.5, 2.5, color="white", lw=3)
panel.set_xticks(range(3), space.values[1])
panel.set_yticks(range(3), space.values[0])
plt.show()
