"""Step 2 is one function over sums of blocks: wherever the samples are, it equals a loop over the equation."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import tests.references as reference
from compshift import GroupSpace
from compshift.core.bias import extrapolated_bias
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, linear_energies
from compshift.crm import blocks
from compshift.crm.blocks import ArrayRows, Block, ProcessRows
from compshift.crm.fit import LinearEnergies, StepOne, StepTwoSums, step_two, step_two_sums
from compshift.crm.problem import standard_of
from compshift.crm.solver import Solution
from compshift.crm.streams import DaskRows
from compshift.distributed import Collective

CARDINALITIES = (3, 2, 2)
SPACE = GroupSpace.from_cardinalities(CARDINALITIES)
SOME = SPACE.codes(np.array([0, 2, 3, 7, 11]))
"""Candidates without some of the seen groups; the biases of these seen groups are computed separately."""


class Samples:
    """Samples of some groups, with weights, fixed energies and learned biases; ``support`` lists the candidates."""

    def __init__(self, support, n=400, p=5):
        rng = np.random.default_rng(0)
        codes = SPACE.codes(rng.choice([0, 1, 3, 4, 6, 8, 11], size=n))
        self.X = rng.normal(size=(n, p)) + SPACE.one_hot(codes) @ rng.normal(size=(SPACE.width, p))
        self.weight = rng.uniform(0.2, 3, size=n)
        groups, self.position = SPACE.distinct(codes)
        self.candidates = Candidates.of(SPACE, groups, np.bincount(self.position, weights=self.weight), support)
        self.seen = GroupTable.of(SPACE, groups)
        self.frequency = self.candidates.seen_weight / self.weight.sum()
        self.bias = rng.normal(size=len(groups))
        self.standard = standard_of(self.rows)
        self.solution = Solution(rng.normal(size=(SPACE.width, p)), self.bias, 0.0, 0.0, 1, converged=True)
        self.linear = LinearEnergies(self.standard, self.solution.weight)
        self.energies = linear_energies(self.standard.of(self.X), self.solution.weight)

    @property
    def rows(self):
        """Features in memory."""
        return ArrayRows(self.X, self.position, self.weight)

    def blocks(self, step):
        """Return consecutive blocks of ``step`` samples."""
        return [
            Block(self.X[start : start + step], self.position[start : start + step], self.weight[start : start + step])
            for start in range(0, len(self.X), step)
        ]

    def step_two(self, rows, linear):
        """Run step 2 over ``rows``."""
        how = self.linear if linear else None
        one = StepOne(self.solution, 1.0, self.bias, self.frequency, self.seen, self.standard, rows, how)
        return step_two(self.candidates, one)

    def loops(self):
        """B* and effective sample size of every candidate, and the largest |B* − B|, from the equation."""
        log_score = np.log(self.frequency) - self.bias
        given = self.energies, CARDINALITIES, self.seen.codes, log_score
        found = [reference.extrapolated_bias(*given, z, self.weight) for z in self.candidates.groups]
        own = [reference.extrapolated_bias(*given, z, self.weight)[0] for z in self.seen.codes]
        return *np.array(found).T, np.abs(own - self.bias).max()


@pytest.fixture(scope="module", params=["all", SOME], ids=["all groups", "some groups"])
def samples(request):
    return Samples(request.param)


@pytest.fixture(scope="module")
def expected(samples):
    return samples.loops()


@pytest.fixture(scope="module")
def whole(samples):
    """Step 2 over energies in one block."""
    return samples.step_two(ArrayRows(samples.energies, samples.position, samples.weight), linear=False)


def check(model, expected, whole):
    """Compare a model with the loops, and the cumulant bias with that of a single block."""
    bias, size, gap = expected
    np.testing.assert_allclose(model.bias, bias, atol=1e-10)
    np.testing.assert_allclose(model.effective_sample_size, size, rtol=1e-9)
    assert model.bias_gap == pytest.approx(gap, abs=1e-10)
    np.testing.assert_allclose(model.cumulant_bias, whole.cumulant_bias, atol=1e-9)


def test_one_block_equals_the_loops(samples, expected, whole):
    check(whole, expected, whole)
    seen = whole.candidates.in_seen >= 0
    np.testing.assert_array_equal(whole.learned_bias[seen], samples.bias[whole.candidates.in_seen[seen]])
    assert not np.isnan(whole.pareto_k).any()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_blocks_in_threads_equal_the_loops(samples, expected, whole, threads, monkeypatch):
    monkeypatch.setattr(blocks, "MIN_THREADED_ROWS", 1)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 30)
    monkeypatch.setattr("compshift.core.bias.SUM_BLOCK_CELLS", 1)  # so that few samples are worth a block
    assert len(list(blocks.over_blocks(lambda rows: rows, len(samples.X)))) > 10
    with threadpool_limits(threads, user_api="blas"):
        model = samples.step_two(ArrayRows(samples.energies, samples.position, samples.weight), linear=False)
    check(model, expected, whole)
    np.testing.assert_allclose(model.pareto_k, whole.pareto_k, atol=1e-9)


@pytest.mark.parametrize("threads", [1, 3])
def test_streamed_features_equal_the_loops(samples, expected, whole, threads):
    rows = ProcessRows(samples.blocks(37), samples.X.shape[1], threads)
    check(samples.step_two(rows, linear=True), expected, whole)


class InThread(Collective):
    """One of several processes, simulated by threads of this process."""

    def __init__(self, rank, shared, barrier):
        self.rank, self.size, self.shared, self.barrier = rank, len(shared), shared, barrier

    def gather(self, value):
        """Return the values of all threads, in order of rank."""
        self.shared[self.rank] = value
        self.barrier.wait(timeout=60)
        found = list(self.shared)
        self.barrier.wait(timeout=60)
        return found


def test_two_processes_equal_the_loops_and_each_other(samples, expected, whole):
    shared, barrier = [None, None], threading.Barrier(2)
    parts = samples.blocks(37)[:4], samples.blocks(37)[4:]

    def one_process(rank):
        rows = ProcessRows(parts[rank], samples.X.shape[1], 1, InThread(rank, shared, barrier))
        return samples.step_two(rows, linear=True)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one_process, range(2))
    check(first, expected, whole)
    np.testing.assert_array_equal(first.bias, second.bias)
    np.testing.assert_array_equal(first.cumulant_bias, second.cumulant_bias)


def test_dask_equals_the_loops(samples, expected, whole):
    dask = pytest.importorskip("dask")
    rows = DaskRows([dask.delayed(block) for block in samples.blocks(90)], samples.X.shape[1])
    check(samples.step_two(rows, linear=True), expected, whole)


def test_torch_tensors_equal_the_loops(samples, expected):
    torch = pytest.importorskip("torch")
    energies, weight = torch.tensor(samples.energies), torch.tensor(samples.weight)
    log_score = torch.tensor(np.log(samples.frequency) - samples.bias)
    table = samples.candidates.table
    parts = [
        step_two_sums(Block(energies[rows], None, weight[rows]), None, samples.seen, log_score, (table,))
        for rows in (slice(0, 150), slice(150, 390), slice(390, None))
    ]
    sums = reduce(StepTwoSums.merge, parts)
    found = extrapolated_bias(table, sums.bias[0])
    assert isinstance(found.bias, torch.Tensor)
    np.testing.assert_allclose(found.bias.numpy(), expected[0], atol=1e-10)
    np.testing.assert_allclose(found.effective_sample_size.numpy(), expected[1], rtol=1e-9)
    np.testing.assert_allclose(sums.energy.numpy(), samples.weight @ samples.energies, atol=1e-9)
    unweighted = step_two_sums(Block(energies, None, None), None, samples.seen, log_score, (table,))
    assert unweighted.bias[0].total_weight == len(energies)
