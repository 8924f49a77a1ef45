"""The records of a folder that count: for each data set, scenario and method those of the chosen draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compshift._errors import InputError
from compshift.bench.record_check import check_protocol, check_record
from compshift.bench.selection import choose_draw
from compshift.bench.store import Record, Store

PAPER_METHODS = {
    "erm": "ERM",
    "groupdro": "GroupDRO",
    "lc": "LC",
    "sla": "sLA",
    "irm": "IRM",
    "vrex": "VREx",
    "mixup": "Mixup",
    "crm": "CRM",
}
"""The paper's eight methods, in its order, as it names them."""

FURTHER_METHODS = {"rwg": "RWG", "subg": "SUBG", "dfr": "DFR", "crm-resolved": "CRM resolved"}

Scenario = tuple[tuple[int, ...], ...]
"""Codes of the dropped groups."""

Key = tuple[str, Scenario, str]
"""Data set, scenario and method, as the records name it."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a folder has. Keys are in the order of data sets, scenarios and the paper's methods."""

    about: dict[str, Any]
    units: Mapping[Key, Mapping[tuple[int, int], Record]]  # every record, by draw and seed
    records: Mapping[Key, Mapping[int, Record]]  # finished ones of the chosen draw by seed; none if every draw diverged
    labels: Mapping[tuple[str, Scenario], str]  # of scenarios, for people
    n_strange: int  # records of other data, settings or versions of a method


def printed(method: str) -> str:
    """A method as tables name it."""
    return {**PAPER_METHODS, **FURTHER_METHODS}.get(method, method)


def chosen_records(store: Store) -> Chosen:
    """Read a folder of results, and choose draws by validation."""
    about = store.read_about()
    for data in about["data"].values():
        _check_protocol(data["protocol"], store)
    units: dict[Key, dict[tuple[int, int], Record]] = defaultdict(dict)
    labels, strange = {}, 0
    for record in store.records():
        config = record["config"]
        if not _fits(config, about):
            strange += 1
            continue
        _check(record)
        dropped = tuple(sorted(tuple(code) for code in config["dropped"]))
        units[config["data"], dropped, config["method"]][config["draw"], config["seed"]] = record
        labels[config["data"], dropped] = config["scenario"]
    order = {name: rank for rank, name in enumerate((*PAPER_METHODS, *FURTHER_METHODS))}
    keys = sorted(units, key=lambda key: (key[0], key[1], order.get(key[2], len(order)), key[2]))
    select = {label: data["protocol"]["select"] for label, data in about["data"].items()}
    records = {key: _chosen_seeds(units[key], select[key[0]]) for key in keys}
    return Chosen(about, {key: units[key] for key in keys}, records, labels, strange)


def _check(record: Record) -> None:
    """Refuse a record that tables cannot be made from."""
    try:
        check_record(record)
    except InputError as error:
        raise InputError(
            f"the result jobs/{record['key']}.json is damaged ({error}): remove it, and its job runs again"
        ) from None


def _check_protocol(protocol: Mapping[str, Any], store: Store) -> None:
    try:
        check_protocol(protocol)
    except InputError as error:
        raise InputError(f"{str(store.about)!r} is not what a benchmark writes ({error}): run it anew") from None


def is_done(record: Record) -> bool:
    """Whether a job came to a result."""
    return bool(record["status"] == "done")


def _chosen_seeds(records: Mapping[tuple[int, int], Record], metric: str) -> dict[int, Record]:
    """The chosen draw's finished records, by seed."""
    draw = choose_draw({draw: record for (draw, seed), record in records.items() if seed == 0}, metric)
    return {seed: record for (number, seed), record in sorted(records.items()) if number == draw and is_done(record)}


def _fits(config: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Whether a record is of the data, the protocol and the version of its method that the folder is of."""
    known = about["data"].get(config["data"])
    return (
        known is not None
        and (config.get("digest"), config.get("protocol")) == (known["digest"], known["protocol"])
        and config.get("code") == about["methods"].get(config["method"])
    )
