"""Calls on groups and their hull, and the metrics by group."""

from collections.abc import Iterator

import numpy as np

import compshift as cs
from hardening.calls import array_kinds, kinds, made
from hardening.calls.table import Call


def calls() -> Iterator[Call]:
    """Every public call of GroupSpace, AffineHull, extrapolate_additive and metrics."""
    rows = made.rows()
    table = np.stack([rows.bird, rows.place], axis=1)
    space = cs.GroupSpace.from_table(table, names=["bird", "place"])
    hull = cs.AffineHull(space, made.SEEN)
    some, missing = made.SEEN[:3], np.array([(0, 2), (2, 1)])
    tables = array_kinds.labels(rows.bird)
    yield Call(
        "GroupSpace",
        lambda **a: cs.GroupSpace(**a).width,
        {"names": ("a",), "values": (("b", "c"),)},
        {"names": kinds.CHOICES, "values": {**kinds.CHOICES, **kinds.COUNTS}},
    )
    yield Call(
        "GroupSpace.from_table",
        lambda **a: cs.GroupSpace.from_table(**a).cardinalities,
        {"table": rows.bird, "names": ["a"]},
        {"table": tables, "names": kinds.CHOICES},
    )
    yield Call(
        "GroupSpace.from_cardinalities",
        lambda **a: cs.GroupSpace.from_cardinalities(**a).n_groups,
        {"cardinalities": [2, 3], "names": ["a", "b"]},
        {"cardinalities": {**kinds.SIZES, **kinds.CHOICES, "many": kinds.Odd([2] * 2000)}, "names": kinds.CHOICES},
    )
    one = cs.GroupSpace.from_table(rows.bird)
    yield Call("GroupSpace.encode", one.encode, {"table": rows.bird}, {"table": tables})
    for name in ("decode", "index", "one_hot", "frame", "distinct"):
        yield Call(f"GroupSpace.{name}", getattr(space, name), {"codes": some}, {"codes": array_kinds.codes(some)})
    index = {**kinds.COUNTS, **kinds.SEEDS, **kinds.CHOICES}
    yield Call("GroupSpace.codes", space.codes, {"index": [0, 3]}, {"index": index})
    yield Call(
        "GroupSpace.locate",
        space.locate,
        {"codes": some, "among": made.SEEN},
        {"codes": array_kinds.codes(some), "among": kinds.without_same(array_kinds.codes(made.SEEN))},
    )
    yield Call("GroupSpace.one_code", space.one_code, {"code": some[0]}, {"code": array_kinds.codes(some)})
    yield Call("GroupSpace.label", space.label, {"code": some[0]}, {"code": array_kinds.codes(some)})

    yield Call(
        "AffineHull",
        lambda **a: cs.AffineHull(**a).rank,
        {"space": space, "observed_codes": some},
        {"space": kinds.SPACES, "observed_codes": array_kinds.codes(some)},
    )
    yield Call("AffineHull.contains", hull.contains, {"codes": some}, {"codes": array_kinds.codes(some)})
    for name in ("weights", "explain"):
        yield Call(
            f"AffineHull.{name}", getattr(hull, name), {"code": missing[0]}, {"code": array_kinds.codes(missing)}
        )
    apart = cs.AffineHull(space, [(0, 0), (1, 1)])
    yield Call(
        "AffineHull.certificate", apart.certificate, {"code": np.array([0, 1])}, {"code": array_kinds.codes(missing)}
    )
    yield Call(
        "AffineHull.coverage", lambda **a: float(hull.coverage(**a)), {"random_state": 0}, {"random_state": kinds.SEEDS}
    )
    yield Call("AffineHull.missing", hull.missing, {"inside": None}, {"inside": kinds.CHOICES})
    yield Call("AffineHull.components", hull.components)
    costs = kinds.without_same(array_kinds.priors(space.n_groups, ("duck", "lake"), ("duck", "moon")))
    groups = kinds.without_same(array_kinds.codes(missing))
    yield Call(
        "AffineHull.plan",
        apart.plan,
        {"cost": None, "target": None, "forbidden": None, "candidates": None},
        {"cost": {**costs, **kinds.NUMBERS}, "target": groups, "forbidden": groups, "candidates": groups},
    )
    values = np.arange(len(made.SEEN), dtype=float)
    yield Call(
        "extrapolate_additive",
        cs.extrapolate_additive,
        {"observed_codes": made.SEEN, "values": np.ones(len(values)), "query_codes": missing, "space": space},
        {
            "observed_codes": array_kinds.codes(made.SEEN),
            "values": array_kinds.weights(len(values)),
            "query_codes": groups,
            "space": kinds.SPACES,
        },
    )

    truth = {"y_true": rows.bird, "y_pred": rows.bird[::-1].copy(), "attributes": rows.place}
    odd = {
        "y_true": tables,
        "y_pred": array_kinds.labels(truth["y_pred"]),
        "attributes": array_kinds.labels(rows.place),
    }
    for name in ("worst_group_accuracy", "group_balanced_accuracy"):
        yield Call(f"metrics.{name}", getattr(cs.metrics, name), truth, odd)
    log_prob = np.full((len(rows.X), space.n_groups), -np.log(space.n_groups))
    yield Call(
        "metrics.group_report",
        _report,
        {**truth, "group_log_proba": log_prob, "space": None, "prior": None, "confidence": 0.9},
        {
            **odd,
            "group_log_proba": array_kinds.matrix(log_prob),
            "space": kinds.SPACES,
            "prior": costs,
            "confidence": kinds.NUMBERS,
        },
    )


def _report(**arguments: object) -> list[object]:
    """What a report says, in each of its forms."""
    report = cs.metrics.group_report(**arguments)  # type: ignore[arg-type]
    report.to_frame()
    report.to_dict()
    str(report)
    return [report.average, report.balanced, report.worst, report.n_empty]
