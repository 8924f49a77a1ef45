"""Where a model is written to."""

from pathlib import Path

from compshift._errors import InputError
from compshift._files import check_apart, check_target

TABLES = (".csv", ".tsv", ".txt", ".xls", ".xlsx", ".parquet", ".pq", ".npz", ".npy", ".json", ".jsonl")
PAGES = (".html", ".htm", ".md", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".py", ".ipynb", ".toml", ".yaml")
ARCHIVES = (".zip", ".gz", ".pkl", ".joblib", ".pt", ".pth")
"""Endings of files that a model would be mistaken for, or would replace by mistake."""


def check_model_path(output: Path, *sources: str | Path | None) -> None:
    """Refuse a path that a model cannot be written to, or that is one of the ``sources``."""
    check_apart(output, *sources)
    ending = output.suffix.lower()
    fitted = output.with_suffix(".safetensors") if ending else output
    if ending == ".onnx":
        raise InputError(
            f"--output is {str(output)!r}, and `compshift fit` writes no ONNX: fit with -o {fitted} first, then run "
            f"`compshift export {fitted} -o {output}`"
        )
    if ending in (*TABLES, *PAGES, *ARCHIVES):
        raise InputError(
            f"--output is {str(output)!r}, which names another kind of file: models are written as .safetensors, as in "
            f"-o {fitted}"
        )
    check_target(output, *sources)


def cache_beside(output: Path) -> Path:
    """``birds.features`` for ``birds.safetensors``."""
    stem = output.stem if output.suffix == ".safetensors" else output.name
    return output.with_name(f"{stem}.features")
