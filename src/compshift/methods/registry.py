"""Training methods by name: built-in methods, methods of installed packages, and methods in a user's Python file."""

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

PLUGIN_MODULE = "compshift_plugin_"
"""Prefix of the name of the module that a plugin's code runs in; its digest follows."""


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
"""Training methods by name. Add a class to register a custom method."""


def make_method(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Method:
    """Make a method with the given hyper-parameters.

    Parameters
    ----------
    name : str
        Name of the method: a key of ``METHODS``, or a method that an installed package registers.
    hyperparameters : mapping, optional
        Hyper-parameters by name, as numbers or as text. Hyper-parameters left out keep their defaults.

    Returns
    -------
    Method
        The method.

    Raises
    ------
    InputError
        If the method or a hyper-parameter is not known, or a value cannot be used.

    Examples
    --------
    >>> make_method("groupdro", {"eta": "0.1"})
    GroupDRO(eta=0.1, groups='seen')
    """
    kind = method_class(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    if hyperparameters is not None and not isinstance(hyperparameters, Mapping):
        raise InputError(f"hyperparameters is {hyperparameters!r}: pass a mapping from names to values")
    for key, value in (hyperparameters or {}).items():
        if key not in fields:
            if not fields:
                raise InputError(f"the method {name!r} has no hyper-parameters: leave {key!r} out")
            raise unknown_name(f"hyper-parameter of {name!r}", key, tuple(fields))
        values[key] = _as_type_of(fields[key].default, value, key)
    return kind(**values)


def _as_type_of(default: Any, value: Any, name: str) -> Any:
    """Convert the value of a hyper-parameter, which may be text, to the type of its default."""
    try:
        number = type(default)(value)
        if isinstance(default, int) and float(value) != number:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        wanted = {int: "an integer", float: "a number", str: "text"}[type(default)]
        raise InputError(f"{name} is {value!r}: pass {wanted}, as in {name}={default}") from None
    return number


def method_class(name: str) -> type[Method]:
    """Return the class of a method; load the methods of installed packages if the name is not built in."""
    if not isinstance(name, str) or name not in METHODS:
        load_installed()
    check_name("method", name, tuple(METHODS))
    return METHODS[name]


def load_installed() -> dict[str, str]:
    """Add the methods of installed packages to ``METHODS``; return each method's package and version, by name."""
    found = installed_methods()
    for name, (kind, _) in found.items():
        METHODS.setdefault(name, kind)
    return {name: version for name, (kind, version) in found.items() if METHODS[name] is kind}


def installed_methods() -> dict[str, tuple[type[Method], str]]:
    """Methods that installed packages register as entry points, by name, with the package's name and version."""
    found: dict[str, tuple[type[Method], str]] = {}
    for entry in entry_points(group="compshift.methods"):
        try:
            kind = entry.load()
        except Exception as error:
            raise InputError(
                f"the method {entry.name!r} of the package {entry.dist and entry.dist.name!r} cannot be loaded "
                f"({type(error).__name__}: {error}): fix or uninstall that package"
            ) from error
        if not (inspect.isclass(kind) and issubclass(kind, Method)):
            raise InputError(
                f"the entry point {entry.name!r} is not a subclass of compshift.methods.Method: fix or uninstall its "
                "package"
            )
        found[kind.name] = kind, f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
    return found


@dataclass(frozen=True)
class Plugin:
    """A Python file that defines methods; its text is kept so that it can be sent to other machines."""

    name: str
    source: str

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Plugin:
        """Read a plugin from a file."""
        try:
            return cls(Path(path).name, check_ordinary(Path(path), given_pipes=True).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the plugin {str(path)!r} cannot be read ({error}): pass a Python file") from None

    @property
    def digest(self) -> str:
        """Digest of the file's text."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]

    def methods(self) -> dict[str, type[Method]]:
        """Run the file, once per process, and return the methods that it defines, by name."""
        name = PLUGIN_MODULE + self.digest
        if name not in sys.modules:
            module = ModuleType(name)
            sys.modules[name] = module  # dataclasses look up their module by name
            try:
                exec(compile(self.source, self.name, "exec"), module.__dict__)
            except Exception as error:
                del sys.modules[name]
                raise InputError(
                    f"the plugin {self.name!r} fails with {type(error).__name__}: {error}; fix the file"
                ) from error
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


def add_plugin(plugin: Plugin) -> tuple[str, ...]:
    """Add a plugin's methods to ``METHODS``; return their names."""
    found = plugin.methods()
    for name in found:
        if name in METHODS and not METHODS[name].__module__.startswith(PLUGIN_MODULE):
            raise InputError(f"the plugin {plugin.name!r} defines {name!r}, which exists already: choose another name")
    METHODS.update(found)
    return tuple(found)
