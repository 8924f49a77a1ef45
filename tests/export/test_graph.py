"""The ONNX graph against loops written from the equations, also where sums underflow."""

import math
from dataclasses import replace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import tests.references as reference
from compshift import GroupSpace
from compshift.core.candidates import Candidates
from compshift.core.hull import AffineHull
from compshift.export.model import onnx_model, output_names
from compshift.export.sources import Layer, OnnxSource
from tests.export.onnx_session import CLOSE, run


def slow_source(rng, cardinalities, n_targets=1, spread=3.0, keep=1.0):
    """Return a source with features as energies, random scores, and a share ``keep`` of the groups as candidates."""
    space = GroupSpace.from_cardinalities(cardinalities)
    kept = np.sort(rng.choice(space.n_groups, size=math.ceil(keep * space.n_groups), replace=False))
    groups = space.codes(kept)
    prior = rng.dirichlet(np.ones(len(groups)))
    with np.errstate(divide="ignore"):
        log_prior = np.log(np.where(rng.random(len(groups)) < 0.2, 0.0, prior))
    identity = Layer(np.eye(space.width), np.zeros(space.width))
    candidates = Candidates(AffineHull(space, groups[:1]), np.ones(1), groups)
    log_weight = spread * rng.normal(size=len(groups))
    return OnnxSource(candidates, n_targets, np.zeros(space.width), ((identity,),), log_prior, log_weight)


def slow_probabilities(source, energies, log_prior, target):
    """Return the probabilities by the equation, one sample and one value at a time."""
    groups, sizes = source.candidates.groups, source.space.cardinalities
    kept = log_prior > -np.inf
    log_score = (log_prior + source.log_weight)[kept]
    rows = []
    for row in energies:
        values = reference.marginal_log_posterior(row, sizes, groups[kept], log_score, target)
        rows.append([math.exp(value) for value in values])
    return np.array(rows)


def operators(graph):
    return {node.op_type for node in graph.node}


class TestEquations:
    """Graphs with and without a table equal the loop."""

    @pytest.mark.parametrize(
        ("cardinalities", "n_targets", "keep", "table"),
        [
            ((4,), 1, 1.0, False),
            ((3, 2), 2, 1.0, False),
            ((3, 2), 1, 0.7, False),
            ((12, 7), 1, 1.0, True),
            ((12, 7), 2, 0.8, True),
            ((20, 1, 5), 2, 0.9, True),
            ((2,) * 7, 7, 1.0, True),
            ((3, 4, 3, 4), 3, 0.6, True),
            ((70, 2), 1, 0.02, False),
        ],
    )
    def test_probabilities_equal_the_loop(self, cardinalities, n_targets, keep, table):
        rng = np.random.default_rng(sum(cardinalities) + n_targets)
        source = slow_source(rng, cardinalities, n_targets, keep=keep)
        energies = 3 * rng.normal(size=(5, source.space.width))
        model = onnx_model(source)
        onnx.checker.check_model(model, full_check=True)
        assert ("If" in operators(model.graph)) == table
        found = run(model, energies)
        other = rng.uniform(0.1, 5, size=len(source.log_prior))  # need not sum to 1
        changed = run(model, energies, prior=5 * other)
        for target, (label, name) in enumerate(output_names(source.space.names[:n_targets])):
            expected = slow_probabilities(source, energies, source.log_prior, target)
            assert found[name].dtype == np.float32
            np.testing.assert_allclose(found[name], expected, atol=CLOSE)
            assert found[label].tolist() == found[name].argmax(axis=1).tolist()
            expected = slow_probabilities(source, energies, np.log(other), target)
            np.testing.assert_allclose(changed[name], expected, atol=CLOSE)
        joint = run(onnx_model(source, group_probabilities=True), energies)["group_probabilities"]
        for row, shares in zip(energies, joint, strict=True):
            kept = source.log_prior > -np.inf
            log_score = (source.log_prior + source.log_weight)[kept]
            groups = source.candidates.groups[kept]
            expected = reference.group_log_posterior(row, source.space.cardinalities, groups, log_score)
            np.testing.assert_allclose(shares[kept], np.exp(expected), atol=CLOSE)
            assert not shares[~kept].any()

    @pytest.mark.parametrize("cardinalities", [(3, 2), (12, 7)])
    def test_large_energies_do_not_overflow(self, cardinalities):
        """The energies are multiples of 1/4, exact in float32, so that only the errors of the sums are tested."""
        rng = np.random.default_rng(3)
        source = slow_source(rng, cardinalities, len(cardinalities))
        energies = rng.integers(-2000, 2000, size=(40, source.space.width)) / 4
        found = run(onnx_model(source), energies)
        for target, name in enumerate(name for _, name in output_names(source.space.names)):
            expected = slow_probabilities(source, energies, source.log_prior, target)
            np.testing.assert_allclose(found[name], expected, atol=CLOSE)

    @pytest.mark.parametrize("cardinalities", [(3, 2), (12, 7)])
    def test_a_constant_in_all_biases_does_not_cost_precision(self, cardinalities):
        rng = np.random.default_rng(3)
        source = slow_source(rng, cardinalities)
        energies = rng.normal(size=(10, source.space.width))
        expected = slow_probabilities(source, energies, source.log_prior, 0)
        shifted = replace(source, log_weight=source.log_weight + 1e6)
        np.testing.assert_allclose(run(onnx_model(shifted), energies)["probabilities"], expected, atol=CLOSE)

    def test_sums_that_underflow_are_computed_again_in_log_space(self):
        """In each row the best column has no group, so that the scaled sums of the other columns underflow."""
        space = GroupSpace.from_cardinalities([12, 7])
        rng = np.random.default_rng(0)
        source = slow_source(rng, (12, 7))
        kept = source.candidates.groups[:, 1] != source.candidates.groups[:, 0] % 7
        groups = source.candidates.groups[kept]
        source = replace(
            source,
            candidates=Candidates(AffineHull(space, groups[:1]), np.ones(1), groups),
            log_prior=np.full(len(groups), -math.log(len(groups))),
            log_weight=source.log_weight[kept],
        )
        assert source.candidates.table.shape == (12, 7)
        energies = np.zeros((12, space.width))
        for row in range(12):  # value `row` and column `row % 7` have the lowest energies by far, but not together
            energies[row, row] = -300
            energies[row, 12 + row % 7] = -250
        energies += rng.integers(0, 3, size=energies.shape)
        found = run(onnx_model(source), energies)["probabilities"]
        expected = slow_probabilities(source, energies, source.log_prior, 0)
        assert expected[np.arange(12), np.arange(12)].min() > 0.99
        np.testing.assert_allclose(found, expected, atol=CLOSE)
        with np.errstate(divide="ignore"):
            log_prior = np.log(np.where(groups[:, 0] == 3, 0.0, 1.0))  # a row of the table whose prior is 0
        found = run(onnx_model(source), energies, prior=np.exp(log_prior))["probabilities"]
        np.testing.assert_allclose(found, slow_probabilities(source, energies, log_prior, 0), atol=CLOSE)

    def test_a_value_with_prior_zero_has_probability_zero(self):
        rng = np.random.default_rng(0)
        source = slow_source(rng, (12, 7))
        prior = np.where(source.candidates.groups[:, 0] == 3, 0.0, 1.0)
        energies = rng.normal(size=(4, source.space.width))
        found = run(onnx_model(source), energies, prior=prior)["probabilities"]
        assert not found[:, 3].any()
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)

    @pytest.mark.parametrize("scale", [3e38, 1e-37])
    def test_the_prior_need_not_be_normalised(self, scale):
        source = slow_source(np.random.default_rng(0), (12, 7))
        source = replace(source, log_weight=np.zeros(84))
        found = run(onnx_model(source), np.zeros((2, 19)), prior=np.full(84, scale))["probabilities"]
        np.testing.assert_allclose(found, 1 / 12, atol=1e-6)

    def test_float64_agrees_to_1e_13(self):
        rng = np.random.default_rng(1)
        for cardinalities in ((3, 2), (12, 7)):
            source = slow_source(rng, cardinalities)
            energies = 3 * rng.normal(size=(5, source.space.width))
            found = run(onnx_model(source, dtype="float64"), energies, np.float64)["probabilities"]
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, slow_probabilities(source, energies, source.log_prior, 0), atol=1e-13)

    def test_many_groups_need_no_column_per_group(self):
        """With 2¹⁶ groups, no array that the graph computes has more than 2⁸ numbers per sample."""
        source = slow_source(np.random.default_rng(0), (2,) * 16)
        model = onnx.shape_inference.infer_shapes(onnx_model(source))
        shapes = [
            [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]
            for value in model.graph.value_info
        ]
        per_sample = [shape for shape in shapes if len(shape) == 2 and isinstance(shape[0], str)]
        assert len(per_sample) > 5
        assert max(shape[1] for shape in per_sample) == 256
        energies = np.random.default_rng(1).normal(size=(3, 32))
        found = run(model, energies)["probabilities"]
        kept = source.log_prior > -np.inf
        np.testing.assert_allclose(
            found[0], slow_probabilities(source, energies[:1], source.log_prior, 0)[0], atol=CLOSE
        )
        assert kept.sum() > 50_000
