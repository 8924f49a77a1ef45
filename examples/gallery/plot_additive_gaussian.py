"""
Densities and samples of a group without data
=============================================

Suppose that no female Gentoo was ever measured, but females of the other two species and males of all three were. If
the effects of species and sex on the measurements are additive, the distribution of the missing birds is known.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import compshift as cs

data = cs.data.benchmark("penguins").load()
names = ["bill length, mm", "bill depth, mm", "flipper length, mm", "body mass, kg"]
X = data.X / [1, 1, 1, 1000]
birds = data.columns(["species", "sex"])
held = ((birds["species"] == "Gentoo") & (birds["sex"] == "female")).to_numpy()

model = cs.AdditiveGaussian().fit(X[~held], birds["species"][~held], attributes=birds["sex"][~held])
missing = model.space_.encode([("Gentoo", "female")])[0]
position = model.space_.locate(missing, model.groups_)[0]

table = pd.DataFrame({"predicted": model.means_[position], "real birds": X[held].mean(axis=0)}, index=names)
males = ((birds["species"] == "Gentoo") & (birds["sex"] == "male")).to_numpy()
table["Gentoo males"] = X[males].mean(axis=0)
table["deviation"] = X[held].std(axis=0)
print(table.round(2))


# %%
# The means
# ---------
# The predicted means are within one standard deviation of those of the held-out birds; the means of the males are about
# two or three deviations away. Flippers and body mass are predicted a little too large: Gentoos differ more between the
# sexes than the other species, so the effects are not exactly additive.

off = (table["predicted"] - table["real birds"]).abs() / table["deviation"]
off_males = (table["Gentoo males"] - table["real birds"]).abs() / table["deviation"]
print(pd.DataFrame({"predicted": off, "Gentoo males": off_males}).round(1))
assert (off < 1).all()
assert (off_males > off + 1).all()

# %%
# As a density
# ------------
# ``predict_group`` returns the group under which a bird is most likely (the prior is uniform). For nearly all held-out
# birds it is the group without a single training row.

found = model.predict_group(X[held])
right = (found == ["Gentoo", "female"]).all(axis=1).mean()
print(f"{right:.0%} of {held.sum()} female Gentoos are recognised; the model has seen none")
assert right > 0.9

# %%
# As samples
# ----------
# The ellipses contain 39 % and 86 % of the density predicted for female Gentoos. Birds drawn from it have the same
# mean.

sample = model.sample(1000, missing, random_state=0)
print(f"mean of 1000 drawn birds: {np.round(sample.mean(axis=0), 1)}")
assert np.allclose(sample.mean(axis=0), model.means_[position], rtol=0.01)

figure, panel = plt.subplots(figsize=(6, 4.6), layout="constrained")
bill, mass = 0, 3
panel.scatter(X[~held & ~males, bill], X[~held & ~males, mass], s=14, c="0.75", label="Adelie and Chinstrap")
panel.scatter(X[males, bill], X[males, mass], s=18, c="#0072b2", marker="s", label="Gentoo, male")
panel.scatter(X[held, bill], X[held, mass], s=22, c="#d55e00", label="Gentoo, female: never seen")
circle = np.stack([np.cos(np.linspace(0, 2 * np.pi, 100)), np.sin(np.linspace(0, 2 * np.pi, 100))])
root = np.linalg.cholesky(model.covariance_[np.ix_([bill, mass], [bill, mass])])
for radius, style in ((1, "-"), (2, "--")):
    ellipse = model.means_[position, [bill, mass], None] + radius * root @ circle
    panel.plot(*ellipse, color="black", ls=style, lw=1.8, label=f"predicted for them, {radius} σ")
panel.set(xlabel=names[bill], ylabel=names[mass])
figure.legend(loc="outside upper center", ncols=2)
plt.show()
