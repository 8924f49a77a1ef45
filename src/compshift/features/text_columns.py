"""Features of a column of texts: TF-IDF of words, sparse or reduced, or the outputs of a sentence encoder.

A column among others of a table becomes a few dense components, by a truncated singular value decomposition
(``TextComponents``), or the outputs of a backbone (``TextEmbedding``), which ``with_embeddings`` puts in place of the
texts. Texts that are the only samples keep one sparse feature per word (``TextTerms``).
"""

from __future__ import annotations

import base64
import binascii
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift._errors import InputError, shown
from compshift.core.arrays import FloatArray
from compshift.core.sparse import SparseRows
from compshift.data.dataset import RawColumns, Texts
from compshift.data.raw_tables import as_text

MAX_TERMS = 1000
"""Maximum number of words that TF-IDF uses, the most frequent ones."""

MAX_COMPONENTS = 20
"""Maximum number of components, the features that a text becomes."""

ROWS_PER_COMPONENT = 10
"""Minimum number of training rows per component; a smaller table gets fewer components."""

MAX_SPARSE_TERMS = 100_000
"""Maximum number of words that are a sparse feature each, the most frequent ones."""

MAX_WEIGHT = 100.0
"""Maximum absolute value of ``idf`` (1 + log n after fitting) and ``components`` (1) accepted from a model file."""

MIN_WORDS = 3
"""Minimum median number of words per text for a column to count as language."""

LANGUAGE_SHARE = 0.5
"""Minimum share of words that begin in lower case, and of words that other rows have too, in a column of language."""

MAX_OUTPUTS = 100_000
"""Maximum number of outputs of a backbone that is accepted from a model file."""

INSPECTED_TEXTS = 2000
"""Maximum number of texts that are inspected to determine whether a column is language."""


@dataclass(frozen=True)
class TextTerms:
    """Words of the training texts and their inverse document frequencies, float64 in base64; each is a feature."""

    terms: tuple[str, ...]  # (v,)
    idf: str  # (v,)

    @classmethod
    def fit(cls, texts: Any) -> TextTerms:
        """Fit TF-IDF to training texts (n,), with the words that at least two of them have."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        try:
            return cls.of(TfidfVectorizer(max_features=MAX_SPARSE_TERMS, min_df=2).fit(texts))
        except ValueError:
            raise InputError(
                "no word of two letters or more occurs in two of the training texts: check that the column holds texts"
            ) from None

    @classmethod
    def of(cls, vectorizer: Any) -> TextTerms:
        """Return the words of a fitted ``TfidfVectorizer`` with the default tokens and weights."""
        terms = tuple(str(term) for term in vectorizer.get_feature_names_out())
        return cls(terms, _encode(vectorizer.idf_, "<f8"))

    def vectorizer(self) -> Any:
        """Return a ``TfidfVectorizer`` that is fitted to these words."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        found = TfidfVectorizer(vocabulary=list(self.terms))
        found.idf_ = _decode(self.idf, "<f8")
        return found

    def transform(self, texts: Any) -> SparseRows:
        """Return the TF-IDF of texts, (n, v)."""
        return SparseRows.of(self.vectorizer().transform(texts))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"terms": list(self.terms), "idf": self.idf}

    @classmethod
    def from_dict(cls, content: Any) -> TextTerms:
        """Return the object that ``to_dict`` described. The content is checked, because it comes from a file."""
        if not isinstance(content, Mapping) or set(content) != {"terms", "idf"}:
            raise InputError(f"terms is {shown(content)}, but must have terms and idf")
        terms = _checked_terms(content["terms"], MAX_SPARSE_TERMS)
        _check_length(_checked(content["idf"], "idf", len(terms), "<f8"), terms)
        return cls(terms, content["idf"])


@dataclass(frozen=True)
class TextComponents:
    """Words of the training texts, and the weights that turn their TF-IDF into components; float32 arrays in base64."""

    terms: tuple[str, ...]  # (v,)
    idf: str  # (v,)
    components: str  # (k, v)

    @classmethod
    def fit(cls, column: Any) -> TextComponents:
        """Fit TF-IDF and its singular value decomposition to training texts."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        texts = _texts(column)
        vectorizer = TfidfVectorizer(max_features=MAX_TERMS, min_df=2)
        weights = vectorizer.fit_transform(texts)  # (n, v)
        terms = vectorizer.get_feature_names_out()
        size = min(MAX_COMPONENTS, len(terms), max(len(texts) // ROWS_PER_COMPONENT, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the explained variance is 0/0 if all texts are equal
            found = TruncatedSVD(size, random_state=0).fit(weights).components_
        return cls(tuple(str(term) for term in terms), _encode(vectorizer.idf_), _encode(found))

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return len(_decode(self.components)) // len(self.terms)

    def transform(self, column: Any) -> FloatArray:
        """Return the components (n, k) of texts; 0 for a text that is missing or has none of the words."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(vocabulary=list(self.terms))
        vectorizer.idf_ = _decode(self.idf)
        components = _decode(self.components).reshape(-1, len(self.terms))  # (k, v)
        return np.asarray(vectorizer.transform(_texts(column)) @ components.T)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"terms": list(self.terms), "idf": self.idf, "components": self.components}

    @classmethod
    def from_dict(cls, content: Any) -> TextComponents:
        """Return the object that ``to_dict`` described. The content is checked, because it comes from a file."""
        if not isinstance(content, Mapping) or set(content) != {"terms", "idf", "components"}:
            raise InputError(f"text is {shown(content)}, but must have terms, idf and components")
        terms = _checked_terms(content["terms"], MAX_TERMS)
        arrays = {key: _checked(content[key], key, MAX_COMPONENTS * MAX_TERMS) for key in ("idf", "components")}
        _check_length(arrays["idf"], terms)
        size, rest = divmod(len(arrays["components"]), len(terms))
        if rest or not 0 < size <= MAX_COMPONENTS:
            raise InputError(
                f"components has {len(arrays['components'])} numbers for {len(terms)} terms: it needs 1 to "
                f"{MAX_COMPONENTS} for each"
            )
        return cls(terms, content["idf"], content["components"])


@dataclass(frozen=True)
class TextEmbedding:
    """Outputs of a backbone as the features of a column of texts; the recipe names the backbone."""

    n_components: int

    def transform(self, column: Any) -> FloatArray:
        """Return the outputs (n, k) that stand in place of the texts; NaN where a text is missing."""
        return np.asarray(column, dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"outputs": self.n_components}

    @classmethod
    def from_dict(cls, content: Any) -> TextEmbedding:
        """Return the object that ``to_dict`` described. The content is checked, because it comes from a file."""
        size = content["outputs"]
        if set(content) != {"outputs"} or type(size) is not int or not 0 < size <= MAX_OUTPUTS:
            raise InputError(f"outputs is {shown(size)}, but must be a number from 1 to {MAX_OUTPUTS}")
        return cls(size)


def text_from_dict(content: Any) -> TextComponents | TextEmbedding:
    """Return what the ``to_dict`` of either class described, after checking it."""
    if isinstance(content, Mapping) and "outputs" in content:
        return TextEmbedding.from_dict(content)
    return TextComponents.from_dict(content)


def with_embeddings(table: RawColumns, names: Sequence[str], embed: Callable[[Texts], Any]) -> RawColumns:
    """Return the columns of a table with embeddings (n, k) in place of the texts ``names``.

    ``embed`` turns u different texts into features (u, k). A text that is missing or blank becomes NaN.
    """
    import pandas as pd

    texts = np.concatenate([as_text(table.columns[name]) for name in names])
    filled = np.array([text if text is not None and text.strip() else None for text in texts], dtype=object)
    code, distinct = pd.factorize(filled, use_na_sentinel=True)  # −1 for a missing text
    outputs = np.asarray(embed(Texts(distinct)), dtype=np.float64)  # (u, k)
    rows = np.vstack([outputs, np.full(outputs.shape[1], np.nan)])[code]
    return RawColumns({**table.columns, **dict(zip(names, np.split(rows, len(names)), strict=True))})


def is_language(column: Any) -> bool:
    """Return whether texts look like sentences or remarks rather than ids, names, addresses or urls.

    They must have several words. Most words must occur in other rows too, and must begin in lower case, or with any
    letter if most texts are entirely in capitals.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    values = column.dropna()
    texts = _texts(values.sample(INSPECTED_TEXTS, random_state=0) if len(values) > INSPECTED_TEXTS else values)
    words = [text.split() for text in texts]
    first_letters = [word[0] for text in words for word in text]
    capitals = sum(text.isupper() for text in texts) >= LANGUAGE_SHARE * len(texts)
    if not texts or np.median([len(text) for text in words]) < MIN_WORDS:
        return False
    fits = [letter.isalpha() and (capitals or not letter.isupper()) for letter in first_letters]
    if np.mean(fits) < LANGUAGE_SHARE:
        return False
    try:
        counts = CountVectorizer(binary=True).fit_transform(texts)  # (n, v)
    except ValueError:  # no text has a word of two letters
        return False
    rows = np.asarray(counts.sum(axis=0)).ravel()  # (v,) number of texts with each word
    return bool(rows[rows > 1].sum() >= LANGUAGE_SHARE * rows.sum())


def _texts(column: Any) -> Sequence[str]:
    """Return a column as texts; a missing value becomes an empty text."""
    return [text or "" for text in as_text(column)]


def _encode(values: Any, dtype: str = "<f4") -> str:
    """Return numbers as base64 text of float32, or of another type."""
    return base64.b64encode(np.asarray(values, dtype=dtype).tobytes()).decode("ascii")


def _decode(text: str, dtype: str = "<f4") -> FloatArray:
    """Return the numbers that ``_encode`` wrote, as a one-dimensional array."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype).astype(np.float64)


def _checked_terms(terms: Any, limit: int) -> tuple[str, ...]:
    """Check the words from a file, and return them."""
    if (
        not isinstance(terms, list | tuple)
        or not all(isinstance(term, str) for term in terms)
        or not 0 < len(set(terms)) == len(terms) <= limit
    ):
        raise InputError(f"terms must be a list of 1 to {limit} different words")
    return tuple(terms)


def _checked(text: Any, name: str, most: int, dtype: str = "<f4") -> FloatArray:
    """Decode a text from a file, after checking that ``_encode`` could have written it from at most ``most`` numbers.

    ``name`` is for the message.
    """
    size = np.dtype(dtype).itemsize
    limit = 4 * (most * size // 3 + 1)  # base64 has 4 characters for 3 bytes
    try:
        values = _decode(text, dtype) if isinstance(text, str) and len(text) <= limit else None
    except (binascii.Error, ValueError):
        values = None
    if values is None or not (np.abs(values) <= MAX_WEIGHT).all():
        raise InputError(f"{name} must be base64 text of finite float{8 * size} numbers of at most {MAX_WEIGHT:g}")
    return values


def _check_length(idf: FloatArray, terms: Sequence[str]) -> None:
    """Check that there is one inverse document frequency for each word."""
    if len(idf) != len(terms):
        raise InputError(f"idf has {len(idf)} numbers for {len(terms)} terms: it needs one for each")
