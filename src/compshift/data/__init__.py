"""Data sets with groups: published benchmarks, a user's own tables, feature files, and shifts between groups.

dataset, splits, shift, audit
    The ``GroupedDataset`` class, train/val/test splits, dropping groups from training, and the audit of a table.
table, feature_files, feature_store
    Load a user's own table, load a feature file into memory, or read features block by block.
table_files, raw_tables, text_tables, typed_tables, shards, metadata_files, glue_cache, images, untrusted
    File readers: tables of any kind, columns of raw tables, CSV and TSV, JSON lines and Excel, Parquet folders,
    metadata of published data sets, pickled GLUE features, images, and size checks of untrusted files.
benchmarks
    The table of named data sets, each defined in a separate module (``waterbirds``, ``celeba``, …).
addresses, download, archives
    Fetch published data sets: the table of their addresses, downloads that resume, and safe unpacking.
"""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

if TYPE_CHECKING:
    from compshift.data.benchmarks import BENCHMARKS as BENCHMARKS
    from compshift.data.benchmarks import benchmark as benchmark
    from compshift.data.dataset import GroupedDataset as GroupedDataset
    from compshift.data.feature_files import read_features as read_features
    from compshift.data.feature_files import write_features as write_features
    from compshift.data.feature_store import FeatureStore as FeatureStore
    from compshift.data.shift import Scenario as Scenario
    from compshift.data.shift import drop_groups as drop_groups
    from compshift.data.shift import drop_unseen_from_validation as drop_unseen_from_validation
    from compshift.data.shift import scenarios as scenarios
    from compshift.data.table import load_samples as load_samples
    from compshift.data.table import load_table as load_table

__all__ = [
    "BENCHMARKS",
    "FeatureStore",
    "GroupedDataset",
    "Scenario",
    "benchmark",
    "drop_groups",
    "drop_unseen_from_validation",
    "load_samples",
    "load_table",
    "read_features",
    "scenarios",
    "write_features",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BENCHMARKS": "compshift.data.benchmarks",
        "FeatureStore": "compshift.data.feature_store",
        "GroupedDataset": "compshift.data.dataset",
        "Scenario": "compshift.data.shift",
        "benchmark": "compshift.data.benchmarks",
        "drop_groups": "compshift.data.shift",
        "drop_unseen_from_validation": "compshift.data.shift",
        "load_samples": "compshift.data.table",
        "load_table": "compshift.data.table",
        "read_features": "compshift.data.feature_files",
        "scenarios": "compshift.data.shift",
        "write_features": "compshift.data.feature_files",
    },
)
