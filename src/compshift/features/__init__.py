"""Features of images, texts and tables.

embedder, extract, reading
    Compute the embeddings of images and texts, and store them. Needs ``compshift[torch]``.
table_columns, text_columns, table_classifier
    Make features from the columns of a table, and classify tables with them.
recipe
    How the features of a fitted model are made, as a model file stores it.
"""

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
