"""``ServedModel``: predictions of a loaded model for rows that arrive as JSON.

A request is a JSON object. Its ``rows`` are lists of numbers in the order of the features, or objects with a value for
each column of the training table. ``attributes`` are the attributes of the rows that are known in use, ``prior`` is the
prior over the groups for this request, and ``coverage`` is that of prediction sets.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from compshift._errors import InputError, listing, shown, unknown_name
from compshift.core.arrays import FloatArray
from compshift.crm.known import as_model_values, check_known_names
from compshift.data.dataset import ImageArrays, Texts, prior_of_records
from compshift.features.recipe import Recipe
from compshift.features.table_columns import TableColumn
from compshift.features.text_columns import with_embeddings
from compshift.training.load import LoadedModel, backbone_path

KEYS = ("rows", "attributes", "prior")
"""Keys that every request may have."""

SCALARS = (str, int, float, bool, type(None))
"""Types of the values that a row may have."""


class TooLargeError(InputError):
    """Raised for a request with more rows than are accepted."""


@dataclass(frozen=True)
class InputColumn:
    """A column of the rows that a model takes."""

    name: str
    kind: str  # "number", "boolean", "date", "category", "text" or "image"
    optional: bool = False  # whether a value may be missing, as null
    categories: tuple[Any, ...] = ()  # known values of a category
    example: Any = 0.0


@dataclass(frozen=True, eq=False)
class Query:
    """A request that has been read: features, known attributes, and a classifier with the prior of the request."""

    clf: Any
    X: Any  # (n, p) numbers, or objects if the classifier takes categories
    attributes: dict[str, Any] | None = None
    coverage: Any = 0.9

    @property
    def known(self) -> dict[str, Any]:
        """Keyword arguments of the classifier's methods."""
        return {} if self.attributes is None else {"attributes": self.attributes}


class ServedModel:
    """A model that answers requests; its methods may be called by several threads at once.

    ``backbone`` is a folder in place of the one that the model file names, and ``weights`` a checkpoint file.
    """

    def __init__(self, loaded: LoadedModel, backbone: str | None = None, weights: Path | None = None) -> None:
        self.path = loaded.path
        self.name = loaded.path.name.encode("utf-8", "replace").decode()  # file names need not be UTF-8
        self.clf = copy(loaded.clf)
        self.clf.__dict__.pop("feature_names_in_", None)  # columns are read by name here, and passed in order
        self.has_groups = hasattr(self.clf, "group_log_proba")
        self._network = loaded.network
        self._lock = Lock()  # one embedding at a time, because it uses all cores
        self._embedder: Any = None
        inputs = loaded.inputs or {}
        self._recipe = Recipe.from_dict(inputs) if "kind" in inputs else None
        self._kind = "features" if self._recipe is None else self._recipe.kind
        if self._network is not None:
            self._kind = self._network.kind
        elif self._recipe is not None and self._recipe.needs_network:
            found = backbone_path(self.path, self._recipe.backbone) if backbone is None else backbone
            self._embedder = replace(self._recipe, backbone=found).embedder(weights=weights, num_workers=0)
        self.named = self._recipe is not None or self._kind != "features"
        self.columns = self._columns()
        self._names = {column.name for column in self.columns}
        self.all_numbers = self._kind == "features" and all(column.kind == "number" for column in self.columns)

    # What the model takes

    def _columns(self) -> list[InputColumn]:
        """Return the columns of the rows."""
        names = None if self._recipe is None else self._recipe.columns
        if self._kind == "table":
            assert self._recipe is not None
            assert self._recipe.table is not None
            return [_table_column(column) for column in self._recipe.table.columns]
        if self._kind == "text":
            pairs = getattr(getattr(self._network, "model", None), "backbone", None)
            both = getattr(pairs, "pairs", "joint") == "separate"
            return [
                InputColumn(name, "text", example="a short text")
                for name in names or (("first", "second") if both else ("text",))
            ]
        if self._kind == "images":
            return [InputColumn((names or ("image",))[0], "image", example=_example_image())]
        if self._network is not None:
            width = self._network.model.backbone.in_features
            examples = np.zeros(width)
        else:
            width = self.clf.n_features_in_
            examples = getattr(self.clf, "feature_mean_", np.zeros(width))
        named = names or [f"feature {number}" for number in range(width)]
        mixed = getattr(self.clf, "_columns", None)  # of boosted energies, which take categories and missing values
        categories = (None,) * width if mixed is None or self._network is not None else mixed.categories
        return [
            InputColumn(name, "number", mixed is not None, example=float(f"{value:.3g}"))
            if values is None
            else InputColumn(name, "category", True, tuple(values), (*values, "")[0])
            for name, values, value in zip(named, categories, examples, strict=True)
        ]

    @property
    def takes_lists(self) -> bool:
        """Whether a row may be a list of values in the order of the columns."""
        return self._kind == "features"

    @property
    def has_network(self) -> bool:
        """Whether a network computes the features."""
        return self._network is not None or self._embedder is not None

    def example(self) -> dict[str, Any]:
        """Return the body of a request with one row that the model accepts."""
        if self.named:
            return {"rows": [{column.name: column.example for column in self.columns}]}
        return {"rows": [[column.example for column in self.columns]]}

    # Reading a request

    def read(self, body: Any, max_rows: int, keys: Sequence[str] = KEYS) -> Query:
        """Check the JSON content of a request and compute the features of its rows."""
        if not isinstance(body, dict):
            raise InputError(f"the body is {_described(body)}: pass an object with 'rows'")
        for key in body:
            if key not in keys:
                raise unknown_name("key", key, keys)
        rows = body.get("rows")
        if not isinstance(rows, list) or not rows:
            raise InputError(f"rows is {_described(rows)}: pass a list with an item for each row")
        if len(rows) > max_rows:
            raise TooLargeError(f"rows has {len(rows)} items, but at most {max_rows} are accepted: split the request")
        clf = self._with_prior(body["prior"]) if body.get("prior") is not None else self.clf
        attributes = self._attributes(body.get("attributes"), len(rows))
        return Query(clf, self._features(self._cells(rows)), attributes, body.get("coverage", 0.9))

    def _with_prior(self, prior: Any) -> Any:
        """Return a copy of the classifier with another prior: a name, or a list of groups with probabilities."""
        if not self.has_groups:
            raise InputError("prior is for models of groups, but this one predicts only classes: leave it out")
        if isinstance(prior, list):
            records = _records(prior, "prior")
            if not records:
                raise InputError("prior has no items: pass one for each group, or leave prior out")
            columns = list(records[0])
            for number, record in enumerate(records):
                if record.keys() != records[0].keys():
                    raise InputError(f"prior has other keys in item {number} than in item 0: pass the same for all")
            prior = prior_of_records(columns, records, self.clf.space_, "prior")
        elif not isinstance(prior, str):
            raise InputError(
                f"prior is {_described(prior)}: pass 'uniform', 'hull' or 'train', or a list with an object for each "
                "group"
            )
        clf = copy(self.clf)
        clf.log_prior_ = clf._usable_log_prior(prior)
        return clf

    def _attributes(self, given: Any, n_rows: int) -> dict[str, Any] | None:
        """Return the known attributes as a column of the model's values for each of them; None if none is known."""
        if given is None:
            return None
        if not self.has_groups:
            raise InputError("attributes is for models of groups, but this one predicts only classes: leave it out")
        if not isinstance(given, list) or len(given) != n_rows:
            count = f" with {len(given)} items" if isinstance(given, list) else ""
            raise InputError(
                f"attributes is {_described(given)}{count}, but there are {n_rows} rows: pass a list with an object "
                "for each row"
            )
        records = _records(given, "attributes")
        names = list(dict.fromkeys(name for record in records for name in record))
        if not names:
            return None
        check_known_names(self.clf, names)
        columns = {}
        for name in names:
            columns[name] = np.empty(n_rows, dtype=object)
            columns[name][:] = [record.get(name) for record in records]
        return as_model_values(self.clf, columns)

    def _cells(self, rows: list[Any]) -> list[list[Any]]:
        """Return the values of all rows in the order of the columns."""
        width, names = len(self.columns), [column.name for column in self.columns]
        cells = []
        for number, row in enumerate(rows):
            if isinstance(row, dict) and self.named:
                if row.keys() != self._names:
                    raise self._wrong_names(row, number)
                cells.append([row[name] for name in names])
            elif isinstance(row, list) and self.takes_lists:
                if len(row) != width:
                    raise InputError(f"row {number} has {len(row)} values, but the model takes {width}: pass {width}")
                cells.append(row)
            else:
                wanted = f"an object with {listing(names)}" if self.named else f"a list of {width} numbers"
                raise InputError(f"row {number} is {_described(row)}: pass {wanted}")
        return cells

    def _wrong_names(self, row: Mapping[str, Any], number: int) -> InputError:
        """Return the error for a row that lacks columns, or has others."""
        names = [column.name for column in self.columns]
        for name in row:
            if name not in self._names:
                return unknown_name(f"row {number}: the column", name, names)
        absent = [name for name in names if name not in row]
        plural, them = ("s", "them") if len(absent) > 1 else ("", "it")
        missing = ", with null for a missing value" if self.columns[0].optional else ""
        return InputError(f"row {number} lacks the column{plural} {listing(absent)}: add {them}{missing}")

    def _features(self, cells: list[list[Any]]) -> Any:
        """Return the features (n, p) of rows of values, as the classifier takes them."""
        if self.all_numbers:
            X = self._numbers(cells)
            return X if self._network is None else self._embedded(X)
        columns = dict(zip((column.name for column in self.columns), zip(*cells, strict=True), strict=True))
        for column in self.columns:
            _check_values(column, columns[column.name])
        if self._kind == "table":
            assert self._recipe is not None
            cleaned = {name: [_trimmed(value) for value in values] for name, values in columns.items()}
            samples = self._recipe.load_samples(cleaned)
            if self._embedder is not None:
                assert self._recipe.table is not None
                table = self._recipe.table
                samples = table.transform(with_embeddings(samples, table.embedded, self._embedded).columns)
            return np.asarray(samples)
        if self._kind == "features":
            X = np.empty((len(cells), len(self.columns)), dtype=object)
            X[:] = cells
            return X  # the classifier itself turns categories into numbers
        if self._kind == "text":
            return self._embedded(Texts(*(np.array(part, dtype=object) for part in columns.values())))
        ((name, images),) = columns.items()
        return np.concatenate([self._embedded(_decoded(text, name, row)) for row, text in enumerate(images)])

    def _numbers(self, cells: list[list[Any]]) -> FloatArray:
        """Return rows of numbers as a matrix, with NaN for a missing value if the model accepts them."""
        try:
            X = np.array(cells)
        except (ValueError, OverflowError, RecursionError):
            X = np.empty(0)
        if X.ndim != 2 or X.dtype.kind not in "iufb":
            X = np.array([[self._number(value, row, i) for i, value in enumerate(c)] for row, c in enumerate(cells)])
        X = X.astype(np.float64)
        if np.isinf(X).any():
            row, column = np.argwhere(np.isinf(X))[0]
            raise InputError(f"{self.columns[column].name!r} is infinite in row {row}: pass a finite number")
        return X

    def _number(self, value: Any, row: int, column: int) -> float:
        """Return a value as a number; NaN if it is null and the model accepts missing values."""
        if value is None and self.columns[column].optional:
            return np.nan
        if isinstance(value, int | float):
            try:
                return float(value)
            except OverflowError:
                return np.inf
        missing = ", or null if it is missing" if self.columns[column].optional else ""
        raise InputError(f"{self.columns[column].name!r} is {_described(value)} in row {row}: pass a number{missing}")

    def _embedded(self, samples: Any) -> FloatArray:
        """Return the features of samples by the network, or by the backbone, of the model."""
        with self._lock:
            if self._network is not None:
                return np.asarray(self._network.embed(samples, num_workers=0)[0])
            (result,) = self._embedder.embed(samples, [np.arange(len(samples))])
            return np.asarray(result.features, dtype=np.float64)

    # Answers

    def predict(self, query: Query) -> dict[str, Any]:
        """Return the predicted value of each target, and the probability of all of its values, for every row."""
        found = query.clf.predict_log_proba(query.X, **query.known)
        targets = self.clf.targets_
        answer = {}
        for name, values, log_proba in zip(
            targets.names, targets.values, found if isinstance(found, list) else [found], strict=True
        ):
            answer[name] = {
                "classes": list(values),
                "predicted": [values[code] for code in np.argmax(log_proba, axis=1)],
                "probabilities": np.exp(log_proba).tolist(),
            }
        return {"predictions": answer}

    def predict_set(self, query: Query) -> dict[str, Any]:
        """Return the classes that cannot be excluded for every row, by target."""
        if not hasattr(query.clf, "predict_set"):
            raise InputError("prediction sets need a model of groups, but this one predicts only classes: use /predict")
        found = query.clf.predict_set(query.X, query.coverage, **query.known)
        sets = {
            name: {
                "classes": list(values),
                "sets": [[values[code] for code in np.flatnonzero(row)] for row in part.contains],
                "p_values": part.p_values.tolist(),
            }
            for name, values, part in zip(
                self.clf.targets_.names,
                self.clf.targets_.values,
                found if isinstance(found, list) else [found],
                strict=False,
            )
        }
        return {"coverage": float(query.coverage), "sets": sets}

    def explain(self, query: Query) -> dict[str, Any]:
        """Return the most probable group of every row, how reliable that is, and what speaks for it."""
        if not self.has_groups:
            raise InputError("explanations need a model of groups, but this one predicts only classes: use /predict")
        return {"explanations": query.clf.explain(query.X, **query.known).to_records()}


def split_answer(answer: dict[str, Any], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Split the answer of ``predict`` to the rows of several requests, which have ``sizes`` rows each."""
    ends = np.cumsum(sizes).tolist()
    return [
        {
            "predictions": {
                name: {
                    "classes": part["classes"],
                    "predicted": part["predicted"][end - size : end],
                    "probabilities": part["probabilities"][end - size : end],
                }
                for name, part in answer["predictions"].items()
            }
        }
        for size, end in zip(sizes, ends, strict=True)
    ]


def service_sentence(error: InputError) -> str:
    """Return the message of an error of the library with the words of a request: ``X`` is ``rows``."""
    return re.sub(r"\bX\b(?! [×x])", "rows", str(error))


def _table_column(column: TableColumn) -> InputColumn:
    """Return the input column of a column of a raw table."""
    example: Any = {"boolean": True, "date": "2024-05-31"}.get(column.kind, 0.0)
    if column.kind == "number" and column.median:
        example = float(f"{column.median[0]:.3g}")
    if column.kind == "category":
        example = column.levels[0]
    if column.kind == "text":
        example = " ".join(getattr(column.text, "terms", ("a", "short", "text"))[:3])
    return InputColumn(column.name, column.kind, True, column.levels, example)


def _records(given: Sequence[Any], what: str) -> list[dict[str, Any]]:
    """Check that all items are objects of plain values."""
    for number, record in enumerate(given):
        if not isinstance(record, dict):
            raise InputError(f"{what} has {_described(record)} as item {number}: pass an object")
        for name, value in record.items():
            if type(value) not in SCALARS:
                raise InputError(f"{what} has {_described(value)} for {name!r} in item {number}: pass a single value")
    return list(given)


def _check_values(column: InputColumn, values: Sequence[Any]) -> None:
    """Check that the values of a column are plain, and texts or numbers where the model takes nothing else."""
    textual = column.kind in ("text", "image") and not column.optional
    for row, value in enumerate(values):
        plain = isinstance(value, str) if textual else type(value) in SCALARS
        if column.kind == "number" and isinstance(value, str) and not column.categories:
            plain = False
        if not plain:
            wanted = {"number": "a number", "text": "a text", "image": "an image in base64"}.get(column.kind, "a value")
            missing = ", or null if it is missing" if column.optional else ""
            raise InputError(f"{column.name!r} is {_described(value)} in row {row}: pass {wanted}{missing}")


def _trimmed(value: Any) -> Any:
    """Return a text without spaces around it, and None for an empty one, as in tables that are files."""
    return value.strip() or None if isinstance(value, str) else value


def _decoded(text: str, name: str, row: int) -> ImageArrays:
    """Decode an image file in base64."""
    from compshift.data.images import decode_image

    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"{name!r} is not base64 in row {row}: encode the content of an image file") from None
    return ImageArrays(np.asarray(decode_image(content, Path(f"{name} of row {row}")))[None])


def _example_image() -> str:
    """Return a small image as PNG in base64."""
    import io

    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (32, 32), (90, 120, 150)).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode("ascii")


def _described(value: Any) -> str:
    """Return a JSON value in words: its type, and the value itself if it is a single one."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else shown(value)
