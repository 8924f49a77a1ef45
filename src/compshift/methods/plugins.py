"""Methods from elsewhere: a Python file of one's own, or another package."""

from __future__ import annotations

import hashlib
import inspect
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from types import ModuleType

from compshift._errors import InputError
from compshift._files import check_ordinary
from compshift.methods.method import Method

ENTRY_POINTS = "compshift.methods"
"""Group of the entry points by which a package names its methods."""

MODULE = "compshift_plugin_"
"""What the names of plugins' modules begin with."""


@dataclass(frozen=True)
class Plugin:
    """A Python file with methods. It is known by its content, so that it can be sent to other machines."""

    name: str
    source: str

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Plugin:
        """The file, as text."""
        try:
            return cls(Path(path).name, check_ordinary(Path(path), given_pipes=True).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the plugin {str(path)!r} cannot be read ({error}): pass a Python file") from None

    @property
    def digest(self) -> str:
        """Tells one content from another."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]

    def methods(self) -> dict[str, type[Method]]:
        """The methods that the file defines, by name. Its code runs once in a process."""
        name = MODULE + self.digest
        if name not in sys.modules:
            module = ModuleType(name)
            sys.modules[name] = module  # where dataclasses look for it
            try:
                exec(compile(self.source, self.name, "exec"), module.__dict__)
            except Exception as error:
                del sys.modules[name]
                raise InputError(f"the plugin {self.name!r} fails with {type(error).__name__}: {error}") from error
        found = [
            kind
            for kind in vars(sys.modules[name]).values()
            if inspect.isclass(kind) and issubclass(kind, Method) and kind.__module__ == name
        ]
        concrete = {kind.name: kind for kind in found if not inspect.isabstract(kind) and hasattr(kind, "name")}
        if not concrete:
            raise InputError(
                f"the plugin {self.name!r} defines no method: write a subclass of compshift.methods.Method with a name "
                "and a loss"
            )
        return concrete


def installed_methods() -> dict[str, tuple[type[Method], str]]:
    """Methods that installed packages offer as entry points of the group ``compshift.methods``, with their versions."""
    found: dict[str, tuple[type[Method], str]] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            kind = entry.load()
        except Exception as error:
            raise InputError(
                f"the method {entry.name!r} of the package {entry.dist and entry.dist.name!r} cannot be loaded "
                f"({type(error).__name__}: {error}): mend or remove that package"
            ) from error
        if not (inspect.isclass(kind) and issubclass(kind, Method)):
            raise InputError(f"the entry point {entry.name!r} is no compshift method: mend or remove its package")
        found[kind.name] = kind, f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
    return found
