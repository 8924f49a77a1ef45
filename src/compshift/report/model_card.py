"""The model card: a page of Markdown that says what a saved model predicts, how far to trust it, and how to load it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from compshift import __version__
from compshift._errors import listing
from compshift.core.columns import plain_value
from compshift.crm.model import same_prior
from compshift.crm.pipelines import without_scalers
from compshift.features.recipe import portable_backbone
from compshift.report.coverage_section import coverage_lead
from compshift.report.model_page import model_audit, model_facts
from compshift.report.trust_section import bias_sentences
from compshift.training.load import needed_extra

MAX_ROWS = 100
"""Maximum number of groups in the card's table: groups without training rows first."""

TASKS = {"images": "image-classification", "text": "text-classification"}
"""The hub's name for the task of a network, by the kind of its samples; other models classify tables."""

LIMITS = (
    "The model knows only the values of the attributes that are listed here: a sample with another value gets one of "
    "these.",
    "Groups outside the affine hull of the training groups are not determined by training; their predictions are "
    "guesses.",
    "Probabilities assume the prior in the settings. If groups are not that frequent where the model is used, set "
    "another one with `set_prior`.",
    "This card was made from the model alone. It has no accuracy on labelled rows; an expected accuracy is an estimate "
    "on held-out training groups.",
)
"""Limits that hold for every model that extrapolates to unseen groups."""


def model_task(model: Any) -> str:
    """Return the hub's name for the task of a saved model."""
    return TASKS.get(getattr(model, "kind", ""), "tabular-classification")


def model_card(model: Any, name: str) -> str:
    """Return the card's text, without the metadata at its top; ``name`` is the repository or folder of the model."""
    clf = without_scalers(getattr(model, "head_", model))[0]
    names = [_plain(f"`{part}`") for part in clf.space_.names]
    targets, others = names[: len(clf.targets_.names)], names[len(clf.targets_.names) :]
    extrapolates = hasattr(clf, "inside_hull_")
    beside = f" for combinations with {joined(others)}" if others else ""
    lines = [
        f"# {_plain(name.rpartition('/')[2])}",
        f"A classifier of {joined(targets)}{f', also{beside} that training lacks' if extrapolates else ''}, made with "
        f"compshift {__version__}.",
        "## Load it",
        *_loading(model, clf, name),
        "## Groups",
        *map(_plain, coverage_lead(model_audit(clf))),
        *_groups(clf, extrapolates),
        "## How far to trust it",
        " ".join(map(_plain, bias_sentences(clf, None))),
        "## Settings",
        _table(["setting", "value"], _settings(model, clf)),
        "## Limits",
        "\n".join(f"- {limit}" for limit in (LIMITS if extrapolates else LIMITS[:1])),
    ]
    return "\n\n".join(lines) + "\n"


def joined(names: Sequence[str]) -> str:
    """Return names joined by commas and a final "and"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _loading(model: Any, clf: Any, name: str) -> list[str]:
    """Return the code that loads the model, and a sentence on the samples that it takes."""
    extra = needed_extra(model)
    code = [
        f"# pip install 'compshift[{'hub,' if extra else 'hub'}{extra}]'",
        "import compshift as cs",
        "",
        f"model = cs.hub.from_pretrained({json.dumps(name)})",
        "model.predict(X)",
    ]
    columns = [*getattr(model, "feature_names_in_", ())] or [*getattr(clf, "feature_names_in_", ())]
    if hasattr(model, "kind"):
        samples = {"images": "a list of paths of images", "text": "a list of texts"}.get(
            model.kind, "an array of features, one row per sample"
        )
    elif columns:
        samples = f"a table with the columns {_plain(listing(map(str, columns), 40))}"
    else:
        samples = f"an array of {clf.n_features_in_} features, one row per sample"
    backbone = (getattr(clf, "inputs_", None) or {}).get("backbone")
    if backbone:
        samples += f", the features of {_plain(str(backbone))}"
    sentence = f"`X` is {samples}. Loading runs no code from the files."
    return ["\n".join(["```python", *code, "```"]), sentence]


def _groups(clf: Any, extrapolates: bool) -> list[str]:
    """Return the table of groups, unseen ones first, and a sentence on what its columns mean."""
    groups, seen = clf.groups_, np.asarray(clf.seen_)
    order = np.argsort(seen, kind="stable")[:MAX_ROWS]
    headings = [*clf.space_.names, "training rows"]
    rows = []
    expected = {}
    frame = getattr(clf, "expected_group_accuracy_", None)
    for *group, accuracy, lower, upper in () if frame is None else frame.itertuples(index=False):
        expected[tuple(group)] = f"{accuracy:.0%} ({lower:.0%}–{upper:.0%})"
    headings += ["effective sample size", *(["expected accuracy"] if expected else [])] if extrapolates else []
    for values, code in zip(clf.space_.decode(groups[order]), order, strict=True):
        state = f"{clf.group_weight_[code]:g}" if seen[code] else "none: extrapolated"
        row = [*map(str, values), state]
        if extrapolates:
            if not clf.inside_hull_[code]:
                row[-1] = "none: not determined"
            row.append(f"{clf.effective_sample_size_[code]:.0f}")
        if expected:
            row.append(expected.get(tuple(values), ""))
        rows.append(row)
    notes = []
    if extrapolates:
        notes.append("Effective sample size: of the training rows behind the bias of the group.")
    if expected:
        notes.append("Expected accuracy: estimated on held-out training groups, with its interval.")
    if len(groups) > MAX_ROWS:
        notes.append(f"The first {MAX_ROWS} of {len(groups):,} groups.")
    return [_table(headings, rows), *([" ".join(notes)] if notes else [])]


def _settings(model: Any, clf: Any) -> list[list[str]]:
    """Return the names and values of the model's settings."""
    changed = hasattr(clf, "log_prior_") and not same_prior(clf.log_prior_, clf._fit_log_prior)
    prior = "set after the fit: see `log_prior_`" if changed else None
    facts = [("model", type(clf).__name__), *model_facts(clf, "", "", "", prior)[1:]]
    if hasattr(model, "method"):
        hyperparameters = {name: plain_value(value) for name, value in model.method.hyperparameters().items()}
        hyperparameters |= {"prior": prior} if changed else {}
        facts = [("method", model.method.name), ("backbone", portable_backbone(model.model.backbone.name))]
        facts += [(name, str(value)) for name, value in hyperparameters.items()]
    return [list(fact) for fact in facts]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of plain text."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        "| " + " | ".join(cell if number == 1 else _plain(cell) for cell in line) + " |"
        for number, line in enumerate(lines)
    )


def _plain(text: str) -> str:
    """Escape what Markdown and HTML would take for markup, apart from code in backticks around the whole text."""
    line = " ".join(text.split())
    if len(line) > 2 and line[0] == line[-1] == "`":
        return f"`{line[1:-1].replace('`', chr(39)).replace('|', chr(0x2758))}`"
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", html.escape(line, quote=False))
