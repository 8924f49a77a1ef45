"""Embeddings of images and texts, computed once and stored. Needs ``compshift[torch]``."""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

if TYPE_CHECKING:
    from compshift.features.embedder import Embedder as Embedder
    from compshift.features.extract import Extraction as Extraction
    from compshift.features.extract import extract_features as extract_features

__all__ = ["Embedder", "Extraction", "extract_features"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Embedder": "compshift.features.embedder",
        "Extraction": "compshift.features.extract",
        "extract_features": "compshift.features.extract",
    },
)
