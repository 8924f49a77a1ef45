"""Every method on digits-backgrounds with one group dropped, a small network trained from scratch.

    python benchmarks/finetuning.py [FILE.jsonl]

For each method the settings are chosen, from two, by balanced validation accuracy on the first scenario; the other
scenarios use the chosen ones. A run that diverges counts as one that gets nothing right. Results are kept in FILE.jsonl
(out/finetuning.jsonl), and a run that is there is not made again. About 20 minutes on two cores.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from compshift.data.dataset import GroupedDataset
from compshift.data.digits_backgrounds import load_digits_backgrounds
from compshift.data.shift import Scenario, scenarios
from compshift.methods.registry import METHODS, make_method
from compshift.metrics import GroupReport, group_report
from compshift.training import Settings, TrainedClassifier, train
from compshift.training.folder import read_json
from compshift.training.loop import DivergenceError

N_SCENARIOS = 5
OPTIMISERS = ({"learning_rate": 0.05, "weight_decay": 1e-4}, {"learning_rate": 0.01, "weight_decay": 1e-2})
PENALTIES = ({"penalty": 1.0, "anneal": 100}, {"penalty": 10.0, "anneal": 300})
"""Of irm and vrex, whose gradients are clipped: from random weights they diverge otherwise."""

NOTHING = {"validation": 0.0, "average": 0.0, "worst": 0.0, "dropped": 0.0}
SETTINGS = {"steps": 600, "batch_size": 64, "eval_every": 50}


def main() -> None:
    """Train what is missing, then print the table."""
    store = Path(sys.argv[1] if len(sys.argv) > 1 else "out/finetuning.jsonl")
    store.parent.mkdir(parents=True, exist_ok=True)
    data = load_digits_backgrounds()
    every = scenarios(data, "each")
    chosen = [every[number] for number in np.random.default_rng(0).choice(len(every), N_SCENARIOS, replace=False)]
    for method in METHODS:
        first = [outcome(store, data, chosen[0], method, number) for number in range(len(OPTIMISERS))]
        best = int(np.argmax([found["validation"] for found in first]))
        for scenario in chosen[1:]:
            outcome(store, data, scenario, method, best)
    show(store, chosen)


def outcome(store: Path, data: GroupedDataset, scenario: Scenario, method: str, optimiser: int) -> dict:
    """One run, from the store if it is there."""
    key = {"scenario": scenario.name, "method": method, "optimiser": optimiser}
    for found in read(store):
        if all(found[name] == value for name, value in key.items()):
            return found
    shifted = scenario.apply(data)
    folder = store.parent / f"finetuning-{method}"
    started = time.monotonic()
    penalised = method in ("irm", "vrex")
    settings = Settings(**SETTINGS, **OPTIMISERS[optimiser], clip=1.0 if penalised else 0.0)
    chosen = make_method(method, PENALTIES[optimiser] if penalised else {})
    found = {**key, **NOTHING}
    try:
        clf = train(shifted, chosen, "small-cnn", settings, folder=folder, overwrite=True, device="cpu")
    except DivergenceError as error:
        found["diverged"] = str(error)
    else:
        found["validation"] = next(iter(read_json(folder / "result.json")["validation"].values()))["balanced"]
        found |= tested(clf, shifted, scenario)
    found["seconds"] = time.monotonic() - started
    with store.open("a") as stream:
        stream.write(json.dumps(found) + "\n")
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def tested(clf: TrainedClassifier, data: GroupedDataset, scenario: Scenario) -> dict:
    """Accuracies on the test rows; for CRM those of the learned bias too."""
    test = data.part("test")
    X = clf.features(test.samples)

    def report() -> GroupReport:
        return group_report(test.codes[:, 0], clf.head_.predict(X), test.codes[:, 1])

    found = report()
    dropped = found.space.index(scenario.dropped)[0]
    result = {"average": found.average, "worst": found.worst, "dropped": float(found.accuracy[dropped])}
    result["worst_group"] = [int(value) for value in found.worst_group]
    if hasattr(clf.head_, "learned_bias_"):
        clf.head_.set_params(bias="learned")
        result["worst_learned_bias"] = report().worst
    return result


def read(store: Path) -> list[dict]:
    """What was found so far."""
    return [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []


def show(store: Path, chosen: list[Scenario]) -> None:
    """Means over the scenarios, and every scenario's worst group."""
    found = read(store)
    table = Table("method", "average", "worst group", "dropped group", *(s.name for s in chosen), "s", box=SIMPLE)
    for method in METHODS:
        mine = [run for run in found if run["method"] == method]
        first = [run for run in mine if run["scenario"] == chosen[0].name]
        best = max(first, key=lambda run: (run["validation"], -run["optimiser"]))["optimiser"]
        runs = {run["scenario"]: run for run in mine if run["optimiser"] == best}
        ordered = [runs[scenario.name] for scenario in chosen]
        means = [np.mean([run[name] for run in ordered]) for name in ("average", "worst", "dropped")]
        slowest = max(run["seconds"] for run in ordered)
        table.add_row(
            method, *(f"{mean:.3f}" for mean in means), *(f"{run['worst']:.2f}" for run in ordered), f"{slowest:.0f}"
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


if __name__ == "__main__":
    main()
