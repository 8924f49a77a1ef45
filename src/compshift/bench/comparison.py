"""Decide whether a benchmark's numbers may be compared with the paper's, and list the differences if not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from compshift.bench.paper import read_table
from compshift.bench.protocol import PROTOCOLS, STATED, Protocol, named_protocol
from compshift.bench.records import Record
from compshift.core.groups import flat_index
from compshift.data.benchmarks import benchmark

BERT_NAMES = ("bert-base-uncased", "google-bert/bert-base-uncased")
"""Names on the Hugging Face hub of the BERT model that the paper fine-tunes."""


def paper_differences(data: str, protocol: Mapping[str, Any], record: Record, *, draws: int, seeds: int) -> list[str]:
    """Return the reasons why a data set's numbers must not be compared with the paper's; [] if they may be compared.

    ``protocol`` is the stored protocol, and ``record`` any finished record. ``draws`` and ``seeds`` are the smallest
    numbers of draws and of seeds that any method has. Which scenarios were run is not considered here, because a single
    scenario can be compared with the paper's number for the same one.
    """
    named = {row["dataset"] for row in read_table("main_results")} | {"celeba5"}
    if data not in named:
        return ["the paper does not have this data set"]
    paper = named_protocol("paper", kind=benchmark(data).kind, dataset=data)
    found = list(_split_differences(data, record))
    if protocol["mode"] == "features":
        found.append(f"linear heads on frozen features, where the paper fine-tunes {_network(paper.backbone)}")
    else:
        found += _setting_differences(protocol, paper, data)
    for count, expected, name in ((draws, paper.draws, "draw"), (seeds, paper.seeds, "seed")):
        if count < expected or (name == "draw" and count > expected):
            found.append(f"{count} {name}{'s' * (count != 1)}, where the paper has {expected}")
    return found


def _split_differences(data: str, record: Record) -> Iterator[str]:
    """Yield a phrase for each split whose numbers of rows differ from the published data set."""
    known = benchmark(data)
    shape = tuple(len(values) for values in record["values"])
    codes = np.array(record["groups"], dtype=np.int64)
    seen = np.array(record["seen_rows"]) > 0
    for split, rows in {"train": record["train_rows"], **record["rows"]}.items():
        counts = np.array(rows, dtype=np.int64)
        total = known.totals.get(split)
        if split in known.published:
            expected = np.array(known.published[split])
            if len(expected) != np.prod(shape):
                yield f"{split} has other groups than the published data set"
                continue
            total, expected = int(expected.sum()), expected[flat_index(codes, shape)]
            trimmed = (split == "val") & ~seen & (counts == 0)  # a scenario removes groups from val, too
            if (counts == expected)[~trimmed].all() and (trimmed.any() or counts.sum() == total):
                continue
        elif total is None or split == "val" or counts.sum() == total:
            continue
        yield f"{split} has {counts.sum()} rows, the published data set {total}"


def _setting_differences(stored: Mapping[str, Any], paper: Protocol, data: str) -> Iterator[str]:
    """Yield a phrase for each setting in ``STATED`` whose stored value differs from the paper's."""
    name = stored.get("name", "compshift")
    own = named_protocol(name if name in PROTOCOLS else "compshift", kind=benchmark(data).kind, dataset=data)
    expected = paper.to_dict()
    for setting in STATED:
        value = stored.get(setting, own.to_dict().get(setting, getattr(own, setting)))
        same = value == expected[setting]
        if setting == "backbone" and paper.backbone in BERT_NAMES:
            same = value in BERT_NAMES
        if same:
            continue
        if setting == "ranges":
            yield "other ranges of hyper-parameters"
        elif setting == "backbone":
            yield f"the network {value}, where the paper has {_network(paper.backbone)}"
        else:
            yield f"{setting} {value}, where the paper has {expected[setting]}"


def _network(backbone: str | None) -> str:
    """Return the name by which the paper calls its network."""
    return {"torchvision/resnet50": "torchvision's ResNet-50", "bert-base-uncased": "BERT"}.get(
        str(backbone), str(backbone)
    )
