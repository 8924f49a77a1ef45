"""
Ship it: one ONNX file, any prior
=================================

A fitted model becomes one file that needs neither compshift nor scikit-learn. The prior is an optional input of the
file, so each user can pass the group frequencies that apply to them.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

import compshift as cs

rng = np.random.default_rng(0)
effect = {name: rng.normal(size=6) for name in ("cat", "dog", "fox", "day", "night")}


def pictures(groups, n):
    """Rows of six features, with animals and times."""
    z = np.array(groups)[rng.integers(len(groups), size=n)]
    return np.array([effect[animal] + effect[time] for animal, time in z]) + rng.normal(size=(n, 6)), z[:, 0], z[:, 1]


seen = [("cat", "day"), ("cat", "night"), ("dog", "day"), ("fox", "day"), ("dog", "night")]
X, animal, time = pictures(seen, 2000)
clf = cs.CRMClassifier(alpha=1e-3).fit(X, animal, attributes=time)

# %%
# Export, and run with onnxruntime
# --------------------------------

with tempfile.TemporaryDirectory() as folder:
    written = cs.export_onnx(clf, Path(folder) / "animals.onnx")
    print(f"{written.size / 1024:.1f} kB, inputs {dict(written.inputs)}, outputs {dict(written.outputs)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # silence a warning: `prior` has a default value and is an input, as intended
    session = onnxruntime.InferenceSession(written.path, options)

X_new, animal_new, _ = pictures([("fox", "night"), ("cat", "night"), ("dog", "night")], 3000)
features = X_new.astype(np.float32)
label, probabilities = session.run(["label", "probabilities"], {"X": features})
assert (label == clf.predict(X_new)).mean() > 0.999
assert np.abs(probabilities - clf.predict_proba(X_new)).max() < 1e-4

# %%
# The file stores the order of the groups in the prior:

about = json.loads(session.get_modelmeta().custom_metadata_map["compshift"])
print(about["names"], about["values"], about["groups"])

# %%
# Another prior
# -------------
# A camera that runs at night sees no animal by day. The prior passed to the file need not sum to 1. The result is the
# same as with ``set_prior``, which requires probabilities.

prior = np.zeros([len(values) for values in about["values"]], dtype=np.float32)
prior[:, about["values"][1].index("night")] = 1
label_at_night, at_night = session.run(["label", "probabilities"], {"X": features, "prior": prior.ravel()})
clf.set_prior(prior / prior.sum())
assert np.abs(at_night - clf.predict_proba(X_new)).max() < 1e-4

accuracy = {"uniform": (label == animal_new), "night only": (label_at_night == animal_new)}
fox = animal_new == "fox"
for name, right in accuracy.items():
    print(f"{name:12}all {right.mean():.3f}   foxes at night, never seen in training {right[fox].mean():.3f}")
assert min(right[fox].mean() for right in accuracy.values()) > 0.9
assert accuracy["night only"].mean() > accuracy["uniform"].mean()

# %%
# Training had no fox at night, yet the file recognises more than nine of ten under either prior. Knowing that it is
# night helps with cats, by more than it costs elsewhere.

figure, panel = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for offset, (name, colour) in enumerate({"uniform": "#56b4e9", "night only": "#0072b2"}.items()):
    shares = [accuracy[name][animal_new == value].mean() for value in clf.classes_]
    bars = panel.bar(np.arange(3) + 0.4 * (offset - 0.5), shares, width=0.38, color=colour, label=f"prior: {name}")
    panel.bar_label(bars, fmt="%.2f")
panel.set_xticks(range(3), ["cat", "dog", "fox\nnever seen at night"])
panel.set(ylabel="accuracy at night", ylim=(0, 1.08))
figure.legend(loc="outside right upper")
plt.show()
