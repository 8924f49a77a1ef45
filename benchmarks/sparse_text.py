"""A fit to sparse TF-IDF features of texts: time and peak memory, held against what the dense features would take.

    python benchmarks/sparse_text.py

20 000 generated texts of about a hundred words, out of 50 000, have a topic (2 values) and a source (3 values); one of
the six groups is absent from training. The peak is that of the process, with the texts and all libraries.
"""

import time
from collections.abc import Iterator

import numpy as np
from measure import Row, peak_megabytes
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from compshift import CRMClassifier

N_TEXTS, N_WORDS, LENGTH, HINTS = 20_000, 50_000, 95, 5
"""Texts, words, words of each text drawn from all, and words drawn from those of each of its two values."""

HINT_WORDS, MOST = 100, 1024
"""Words that each value has of its own; megabytes that the process may take."""


def texts(codes: np.ndarray, rng: np.random.Generator) -> list[str]:
    """Texts of the groups."""
    words = np.array([f"w{number}" for number in range(N_WORDS)])
    found = []
    for topic, source in codes:
        hints = [rng.integers(HINT_WORDS, size=HINTS) + HINT_WORDS * value for value in (topic, 2 + source)]
        found.append(" ".join(words[np.concatenate([rng.integers(N_WORDS, size=LENGTH), *hints])]))
    return found


def rows() -> Iterator[Row]:
    """Time and memory of a pipeline of TF-IDF and a fit."""
    rng = np.random.default_rng(0)
    groups = np.array([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])  # (1, 2) is absent
    codes = groups[rng.integers(len(groups), size=N_TEXTS)]
    documents = texts(codes, rng)
    pipe = make_pipeline(TfidfVectorizer(), CRMClassifier())
    start = time.perf_counter()
    pipe.fit(documents, codes[:, 0], crmclassifier__attributes=codes[:, 1])
    seconds = time.perf_counter() - start
    features = pipe[0].transform(documents)
    unseen = np.tile([(1, 2)], (1000, 1))
    accuracy = pipe.score(texts(unseen, rng), unseen[:, 0])
    peak = peak_megabytes()
    n, p = features.shape
    yield Row(
        f"TF-IDF and fit of {n} texts, {p} words, {features.nnz / n / p:.1%} of them nonzero: peak memory",
        f"{n * p * 8 / 2**30:.1f} GB of dense features",
        f"{peak:.0f} MB ({seconds:.0f} s, {pipe[-1].n_iter_} iterations; accuracy on the unseen group {accuracy:.2f})",
        f"{MOST} MB",
        peak < MOST,
    )


if __name__ == "__main__":
    for row in rows():
        print(f"{row.what}: {row.figure}, against {row.against}")
