"""Every training method by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compshift._errors import InputError, check_name, unknown_name
from compshift.methods.crm import CRM
from compshift.methods.crm_resolved import CRMResolved
from compshift.methods.dfr import DFR
from compshift.methods.erm import ERM
from compshift.methods.groupdro import GroupDRO
from compshift.methods.irm import IRM
from compshift.methods.lc import LC
from compshift.methods.method import Method
from compshift.methods.mixup import Mixup
from compshift.methods.plugins import MODULE, Plugin, installed_methods
from compshift.methods.rwg import RWG
from compshift.methods.sla import SLA
from compshift.methods.subg import SUBG
from compshift.methods.vrex import VREx

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
