import numpy as np

from compshift.data.gaussians import GAUSSIAN2D_SPACE, Gaussian2D


def test_missing_group_is_in_test_only():
    data = Gaussian2D(0).sample(300, 400)
    missing = GAUSSIAN2D_SPACE.encode([(-1, -1)])[0]
    assert not (data.part("train").codes == missing).all(axis=1).any()
    assert (data.part("test").codes == missing).all(axis=1).sum() == 100


def test_same_seed_same_data():
    np.testing.assert_array_equal(Gaussian2D(3).sample(30, 40).X, Gaussian2D(3).sample(30, 40).X)
    assert not np.array_equal(Gaussian2D(3).sample(30, 40).X, Gaussian2D(4).sample(30, 40).X)


def test_bayes_predicts_the_densest_group():
    source = Gaussian2D(0)
    X = source.sample(30, 400).X
    densest = GAUSSIAN2D_SPACE.decode(GAUSSIAN2D_SPACE.codes(source.log_density(X).argmax(axis=1)))
    assert (source.bayes_group(X) == densest).all()


def test_energy_is_additive():
    """The paper's two terms differ from −log p(x|z) by the same amount for every group."""
    X = np.random.default_rng(0).normal(size=(20, 2))
    values = GAUSSIAN2D_SPACE.decode(GAUSSIAN2D_SPACE.codes(np.arange(4)))
    energy = [
        0.25 * ((X - [2 * first, 0]) ** 2).sum(axis=1) + 0.25 * ((X - [0, 2 * second]) ** 2).sum(axis=1)
        for first, second in values
    ]
    difference = np.stack(energy, axis=1) + Gaussian2D().log_density(X)
    np.testing.assert_allclose(difference, difference[0, 0], atol=1e-12)
