"""
Pipelines, grid search and a worst-group scorer
===============================================

What sex is a penguin, whatever its species? Suppose that no male Adelie was ever measured. The classifier is a step of
a scikit-learn pipeline, and metadata routing brings the species to where it is needed: to the fit, to the scorer, and
to the splitter that holds out whole groups.
"""

import matplotlib.pyplot as plt
import numpy as np
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import compshift as cs

data = cs.data.benchmark("penguins").load()
birds = data.columns(["sex", "species"])
held = ((birds["species"] == "Adelie") & (birds["sex"] == "male")).to_numpy()
X, sex, species = data.X[~held], birds["sex"][~held], birds["species"][~held]
print(birds[~held].value_counts().sort_index())

# %%
# The search
# ----------
# ``CombinationKFold`` holds out whole groups, those that the others determine, and the scorer is the accuracy of the
# worst of them. Scaling is part of the pipeline: the four measurements have different units.

sklearn.set_config(enable_metadata_routing=True)
crm = cs.CRMClassifier().set_fit_request(attributes=True)
search = GridSearchCV(
    make_pipeline(StandardScaler(), crm),
    {"crmclassifier__alpha": [1e-4, 1e-3, 1e-2, 1e-1]},
    scoring=make_scorer(cs.metrics.worst_group_accuracy).set_score_request(attributes=True),
    cv=cs.CombinationKFold().set_split_request(attributes=True),
)
search.fit(X, sex, attributes=species)
sklearn.set_config(enable_metadata_routing=False)
for alpha, score in zip(search.cv_results_["param_crmclassifier__alpha"], search.cv_results_["mean_test_score"], strict=True):
    print(f"alpha {alpha:<8g}held-out worst group {score:.3f}")
print("chosen:", search.best_params_)

# %%
# The birds that were missing
# ---------------------------

erm = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, sex)
print("ERM", erm.score(data.X[held], birds["sex"][held]))
print("CRM", search.best_estimator_.score(data.X[held], birds["sex"][held]))
