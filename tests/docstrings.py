"""Docstrings of the public API in numpydoc form, checked by numpydoc's own validator.

``python -m tests.docstrings [PREFIX]`` lists what is missing.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator

from tests.public_api import PACKAGES

CODES = {
    "GL08": "no docstring",
    "PR01": "a parameter is not documented",
    "PR02": "an unknown parameter is documented",
    "PR10": "no space before the colon of a parameter",
    "RT01": "no Returns section",
    "YD01": "no Yields section",
    "EX01": "no Examples section",
    "GL06": "an unknown section",
    "GL07": "sections in the wrong order",
}
WITHOUT_EXAMPLES = ("EX01",)
"""Codes that are checked of classes and functions, and not of methods and properties."""


def public_objects() -> Iterator[tuple[str, object, bool]]:
    """Dotted name of every public class, function and method of compshift, the object, and whether it is a member."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if not callable(value) or not getattr(value, "__module__", "").startswith("compshift"):
                continue
            dotted = f"{value.__module__}.{value.__qualname__}"
            yield dotted, value, False
            if inspect.isclass(value):
                for member, found in inspect.getmembers(value):
                    if not member.startswith("_") and getattr(found, "__module__", "").startswith("compshift"):
                        yield f"{found.__module__}.{found.__qualname__}", found, True


def complaints(prefix: str = "") -> list[str]:
    """Every violation of ``CODES``, one line each."""
    from numpydoc.validate import validate

    found = set()
    for dotted, _, is_member in public_objects():
        if not dotted.startswith(prefix):
            continue
        for code, message in validate(dotted)["errors"]:
            if code in CODES and not (is_member and code in WITHOUT_EXAMPLES):
                found.add(f"{dotted}: {code} {message}")
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(complaints(*sys.argv[1:])))
