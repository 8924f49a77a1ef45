"""The options that say which columns of a user's table are what."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from compshift._errors import InputError
from compshift.cli.options import names

if TYPE_CHECKING:
    from compshift.features.recipe import Recipe

MAX_SCALES = 30
"""Ratio of two columns' standard deviations from which a warning is given."""

DEFAULT_BACKBONES = {"images": "efficientnet-lite0", "text": "minilm"}


def samples_recipe(path: str | None, text: str | None, columns: str | None, backbone: str | None) -> Recipe:
    """The recipe that --path, --text or --features, and --backbone ask for."""
    from compshift.features.recipe import Recipe

    given = {"--path": path, "--text": text, "--features": columns}
    named = [option for option, value in given.items() if value is not None]
    if len(named) != 1:
        raise InputError(
            f"{' and '.join(named) or 'none of --path, --text and --features'} given: name the column of image paths "
            "(--path), of texts (--text), or the columns of numbers (--features)"
        )
    if columns is not None:
        if backbone is not None:
            raise InputError("--backbone is for --path and --text: columns of numbers are features already")
        return Recipe("features", tuple(names(columns, "--features")))
    kind = "images" if path is not None else "text"
    chosen = (path,) if path is not None else tuple(names(str(text), "--text"))
    name = backbone or DEFAULT_BACKBONES[kind]
    return Recipe(kind, chosen, str(Path(name).resolve()) if Path(name).is_dir() else name)


def table_options(
    target: str, attributes: str, split_column: str | None, shares: str | None, seed: int
) -> dict[str, Any]:
    """Keyword arguments of ``load_table`` from the options."""
    if split_column is not None and shares is not None:
        raise InputError("--split-column and --shares given: pass one of them")
    return {
        "target": names(target, "--target"),
        "attributes": names(attributes, "--attributes") if attributes else [],
        "split": split_column if shares is None else read_shares(shares),
        "random_state": seed,
    }


def read_shares(text: str) -> dict[str, float]:
    from compshift.data.dataset import SPLITS

    parts = [part.strip() for part in text.split(",")]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise InputError(f"--shares is {text!r}: pass the shares of train, val and test, as in 0.7,0.1,0.2")
    return dict(zip(SPLITS if len(numbers) == 3 else (SPLITS[0], SPLITS[2]), numbers, strict=True))


def refuse(options: dict[str, Any], why: str) -> None:
    """Refuse options that would have no effect."""
    given = [name for name, value in options.items() if value]
    if given:
        verb, object_ = ("is", "it") if len(given) == 1 else ("are", "them")
        raise InputError(f"{' and '.join(given)} {verb} {why}: leave {object_} out")


def warn_of_scales(X: Any, columns: Sequence[str], remedy: str = ", or pass a smaller --alpha") -> None:
    """Say so when columns of numbers differ so much in scale that the penalty sees only some of them."""
    spread = X.std(axis=0, dtype="float64")
    if not spread.any():
        return
    spread[spread == 0] = spread.max()  # a column that says nothing has no scale
    small, large = int(spread.argmin()), int(spread.argmax())
    if spread[small] * MAX_SCALES < spread[large]:
        typer.echo(
            f"warning: {columns[large]!r} spreads {spread[large] / spread[small]:.0f} times as far as "
            f"{columns[small]!r}, so the penalty weighs on the latter: divide every column by its deviation{remedy}",
            err=True,
        )


def require_torch() -> None:
    """Networks need PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("networks need PyTorch: install compshift[torch], compshift[weights] or compshift[hf]")
