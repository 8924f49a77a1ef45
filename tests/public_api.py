"""The public API as text, one line a name. ``python -m tests.public_api`` writes what the test compares with."""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

SNAPSHOT = Path(__file__).parent / "public_api.txt"
PACKAGES = (
    "compshift",
    "compshift.data",
    "compshift.metrics",
    "compshift.nn",
    "compshift.features",
    "compshift.methods",
    "compshift.training",
    "compshift.hub",
    "compshift.mlflow",
)


def public_api() -> list[str]:
    """Every public name with its parameters, and the public members of every class; annotations are left out."""
    lines = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            lines += _described(f"{package}.{name}", getattr(module, name))
    return lines


def _described(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"class {name}{_parameters(value)}"
        for member in sorted(_members(value)):
            found = getattr(value, member, None)
            yield f"{name}.{member}{_parameters(found) if callable(found) else ' (attribute)'}"
    elif callable(value):
        yield f"{name}{_parameters(value)}"
    else:
        yield f"{name} ({type(value).__name__})"


def _members(value: type) -> set[str]:
    """Names of public members that are compshift's own, or its bases'."""
    own = [base for base in value.__mro__ if base.__module__.startswith("compshift")]
    return {member for base in own for member in vars(base) if not member.startswith("_")}


def _parameters(value: object) -> str:
    """Names, kinds and defaults of the parameters."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(…)"
    plain = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default="…" if " at 0x" in repr(parameter.default) else parameter.default,
        )
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
