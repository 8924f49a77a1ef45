"""Build the classifier that the options of ``compshift fit`` describe, and reject options that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compshift._errors import InputError, check_name
from compshift.cli.options import reject_unused


def check_pool(pool: Path | None, use: str | None, *, memory: str | None, cross_fit: bool) -> None:
    """Check the options that are used with, or cannot be used with, --unlabelled."""
    if pool is None:
        reject_unused({"--use-unlabelled": use}, "for the rows of --unlabelled, which is missing")
        return
    check_name("--use-unlabelled", use or "auto", ("auto", "always"))
    if memory is not None:
        raise InputError(
            "--unlabelled cannot be used with --memory, because EM needs all rows in memory: leave out one of the two, "
            "or fit to a sample of the rows"
        )
    if cross_fit:
        raise InputError(
            "--unlabelled cannot be used with --cross-fit, which would need EM in every fold: leave out one of the two"
        )


def check_streamed(alpha: str, options: Mapping[str, str | None], *, cross_fit: bool) -> None:
    """Check that every setting works with --memory: nothing is chosen by cross-validation or needs all rows at once.

    ``options`` are the values of the options that accept "auto", by name.
    """
    chosen = [f"--alpha {alpha}"] if alpha == "auto" or "," in alpha else []
    chosen += [f"{option} auto" for option, value in options.items() if value == "auto"]
    if chosen:
        raise InputError(
            f"--memory cannot be used with {' and '.join(chosen)}: first choose the settings without --memory, on rows "
            "that fit in memory (such as a sample), then pass the chosen values together with --memory"
        )
    if options["--transform"] not in (None, "none"):
        raise InputError(
            f"--memory cannot be used with --transform {options['--transform']}: leave out one of the two, or store "
            "transformed features"
        )
    anchor = options["--anchor"]
    in_memory = [f"--anchor {anchor}"] if anchor not in (None, "zero") else []
    in_memory += ["--cross-fit"] if cross_fit else []
    if in_memory:
        names = " and ".join(in_memory)
        raise InputError(
            f"--memory cannot be used with {names}, which need{'s' * (len(in_memory) == 1)} all rows in memory: leave "
            f"out --memory or {names}"
        )


def parse_bytes(text: str) -> int:
    """Return the number of bytes in a size such as 500M or 2G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise InputError(f"--memory is {text!r}: pass a size such as 500M or 2G")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if size < 1 << 20:
        raise InputError(f"--memory is {text!r}, less than a megabyte: pass a size such as 500M or 2G")
    return size


def linear_classifier(alpha: str, jobs: int | None, **options: Any) -> Any:
    """Return a classifier with checked parameters.

    It is a ``CRMClassifierCV``, which chooses settings on held-out groups, if ``alpha`` has several values or any
    option is "auto"; otherwise it is a ``CRMClassifier``.
    """
    from compshift.crm.classifier import CRMClassifier
    from compshift.crm.cv import CRMClassifierCV

    given = {name: value for name, value in options.items() if value is not None}
    alphas: list[float] | None = None
    if alpha != "auto":
        try:
            alphas = [float(part) for part in alpha.split(",")]
        except ValueError:
            raise InputError(
                f"--alpha is {alpha!r}: pass a number, several numbers separated by commas, or auto to choose one"
            ) from None
    clf: Any
    if alphas is None or len(alphas) > 1:
        clf = CRMClassifierCV(alphas, n_jobs=jobs or 1, **given)
    elif "auto" in given.values():
        fixed = {"bias": "extrapolated", "anchor": "zero", "unseen_offset": 0.0}
        clf = CRMClassifierCV(alphas, n_jobs=jobs or 1, **{**fixed, **given})
    else:
        given.pop("use_unlabelled", None)  # CRMClassifier has no such parameter: it always uses a pool
        clf = CRMClassifier(alphas[0], **given)
    clf._check_parameters()
    return clf


def boosted_classifier(energies: str, jobs: int | None, linear_only: Mapping[str, Any], **options: Any) -> Any:
    """Return a ``CRMBoostingClassifier`` with checked parameters; ``energies`` is "boosted" or "auto".

    ``linear_only`` are options for --energies linear alone, with their values.
    """
    from compshift.crm.boosting import CRMBoostingClassifier
    from compshift.crm.trees import import_lightgbm

    purpose = f"for --energies linear, not for --energies {energies}"
    reject_unused({name: value is not None and value is not False for name, value in linear_only.items()}, purpose)
    for name in ("bias", "unseen_offset"):
        if options[name] == "auto":
            raise InputError(
                f"{name} is 'auto', which is for linear energies: pass a value, or leave it out for the default"
            )
    import_lightgbm()
    given = {name: value for name, value in options.items() if value is not None}
    clf = CRMBoostingClassifier(energies=energies, n_jobs=jobs, **given)
    clf._check_parameters()
    return clf


def number_or_text(text: str | None) -> float | str | None:
    """Convert a text to a number if possible; return other texts unchanged, for the classifier to check."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
