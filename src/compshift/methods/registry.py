"""Methods from elsewhere: a Python file of one's own, or another package.

Every training method by its name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from compshift._errors import InputError, check_name, unknown_name
from compshift._files import check_ordinary
from compshift.methods.base import Method
from compshift.methods.crm import CRM, CRMResolved
from compshift.methods.dfr import DFR
from compshift.methods.erm import ERM
from compshift.methods.group_dro import GroupDRO
from compshift.methods.invariance import IRM, VREx
from compshift.methods.logit_adjustment import LC, SLA
from compshift.methods.mixup import Mixup
from compshift.methods.resampling import RWG, SUBG

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


METHODS: dict[str, type[Method]] = {
    "erm": ERM,
    "groupdro": GroupDRO,
    "lc": LC,
    "sla": SLA,
    "irm": IRM,
    "vrex": VREx,
    "mixup": Mixup,
    "crm": CRM,
    "rwg": RWG,
    "subg": SUBG,
    "dfr": DFR,
    "crm-resolved": CRMResolved,
}


def method_class(name: str) -> type[Method]:
    """The method of a name, also if an installed package brings it."""
    if not isinstance(name, str) or name not in METHODS:
        load_installed()
    check_name("method", name, tuple(METHODS))
    return METHODS[name]


def load_installed() -> dict[str, str]:
    """Name the methods of installed packages along with all others; the package and version of each."""
    found = installed_methods()
    for name, (kind, _) in found.items():
        METHODS.setdefault(name, kind)
    return {name: version for name, (kind, version) in found.items() if METHODS[name] is kind}


def add_plugin(plugin: Plugin) -> tuple[str, ...]:
    """Name a plugin's methods along with all others; what their names are."""
    found = plugin.methods()
    for name in found:
        if name in METHODS and not METHODS[name].__module__.startswith(MODULE):
            raise InputError(f"the plugin {plugin.name!r} defines {name!r}, which exists already: choose another name")
    METHODS.update(found)
    return tuple(found)


def make_method(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Method:
    """The method, with some of its hyper-parameters set, as numbers or as text.

    >>> make_method("groupdro", {"eta": "0.1"})
    GroupDRO(eta=0.1)
    """
    kind = method_class(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    if hyperparameters is not None and not isinstance(hyperparameters, Mapping):
        raise InputError(f"hyperparameters is {hyperparameters!r}: pass a mapping from names to values")
    for key, value in (hyperparameters or {}).items():
        if key not in fields:
            if not fields:
                raise InputError(f"the method {name!r} has no hyper-parameters, and {key!r} was given: leave it out")
            raise unknown_name(f"hyper-parameter of {name!r}", key, tuple(fields))
        values[key] = _as_type_of(fields[key].default, value, key)
    return kind(**values)


def _as_type_of(default: Any, value: Any, name: str) -> Any:
    """A number or name of the kind that the default is, also from text."""
    try:
        number = type(default)(value)
        if isinstance(default, int) and float(value) != number:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        wanted = {int: "a whole number", float: "a number", str: "text"}[type(default)]
        raise InputError(f"{name} is {value!r}: pass {wanted}, as in {name}={default}") from None
    return number
