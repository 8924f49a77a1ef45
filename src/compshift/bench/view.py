"""All results as one Parquet table, for other programs."""

from __future__ import annotations

import json

from compshift._files import replacing
from compshift.bench.record_check import check_record
from compshift.bench.store import Store

COLUMNS = (
    *("data", "scenario", "method", "draw", "seed", "predictor", "split", "group", "rows", "right", "accuracy"),
    *("train_rows", "seen_rows", "hyperparameters", "mode", "seconds", "finished", "compshift", "key"),
)


def write_view(store: Store) -> int:
    """Write ``results.parquet``: a row for every finished job, predictor, split and group. How many there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for record in store.records():
        if record["status"] != "done":
            continue
        check_record(record)
        config = record["config"]
        shared = {name: config[name] for name in ("data", "scenario", "method", "draw", "seed")}
        shared |= {
            "hyperparameters": json.dumps({**config.get("common", {}), "own": config.get("hyperparameters")}),
            "mode": str(config["protocol"].get("mode")),
            "seconds": record["seconds"],
            "finished": record["finished"],
            "compshift": record["versions"]["compshift"],
            "key": record["key"],
        }
        labels = [
            "(" + ", ".join(str(values[code]) for values, code in zip(record["values"], group, strict=True)) + ")"
            for group in record["groups"]
        ]
        for split, predictors in record["right"].items():
            count = record["rows"][split]
            for predictor, right in predictors.items():
                for number, label in enumerate(labels):
                    if count[number]:
                        rows.append(
                            {
                                **shared,
                                "predictor": predictor,
                                "split": split,
                                "group": label,
                                "rows": count[number],
                                "right": right[number],
                                "accuracy": right[number] / count[number],
                                "train_rows": record["train_rows"][number],
                                "seen_rows": record["seen_rows"][number],
                            }
                        )
    table = pa.table({name: [row[name] for row in rows] for name in COLUMNS})
    with replacing(store.view) as temporary:
        pq.write_table(table, temporary)
    return len(rows)
