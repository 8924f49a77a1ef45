"""Draws of hyper-parameters, and the paper's ranges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift.bench.protocol import Protocol, feature_protocol, tuning_protocol
from compshift.methods.sampling import LogUniform

PENALTY = {"penalty": LogUniform(-1, 5), "anneal": LogUniform(0, 4, whole=True, steps=10_000)}


@given(st.integers(0, 50), st.integers(0, 5))
def test_a_draw_is_a_function_of_its_number_and_the_seed_of_the_plan(number, plan_seed):
    protocol = tuning_protocol("waterbirds", "images", fresh=False, plan_seed=plan_seed)
    common, own = protocol.draw(number, PENALTY)
    assert protocol.draw(number, {})[0] == common  # the shared values do not depend on the method's ranges
    assert protocol.draw(number, PENALTY) == (common, own)
    rng = np.random.default_rng([plan_seed, number])
    expected = [10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-6, -3), int(2 ** rng.uniform(5, 7))]
    assert list(common.values()) == expected
    assert own == {"penalty": 10 ** rng.uniform(-1, 5), "anneal": max(1, int(10 ** rng.uniform(0, 4)))}
    assert protocol.draw(number + 1, {})[0] != common


def test_ranges_are_the_papers():
    text = tuning_protocol("civilcomments", "text", fresh=False)
    assert text.ranges["learning_rate"] == LogUniform(-6, -4)
    assert text.ranges["batch_size"] == LogUniform(4, 6, base=2, whole=True)
    assert (text.steps, tuning_protocol("celeba5", "images", fresh=False).steps) == (10_000, 10_000)
    assert tuning_protocol("waterbirds", "images", fresh=False, steps=7).steps == 7
    assert tuning_protocol(None, "images", fresh=False).ranges["learning_rate"] == LogUniform(-5, -3)
    assert feature_protocol().ranges == {"alpha": LogUniform(-4, 0)}


def test_anneal_scales_with_the_length_of_a_run():
    """The paper's range suits the paper's numbers of steps; for other numbers it is scaled in proportion."""
    steps = 500
    for number in range(20):
        full, same, *scaled = (
            protocol.draw(number, PENALTY)[1]["anneal"]
            for protocol in (
                Protocol("fine-tuning", 10_000, {}),
                Protocol("fine-tuning", 5000, {}),
                Protocol("fine-tuning", steps, {}),
                Protocol("features", steps, {}),
            )
        )
        assert full == same
        for found in scaled:
            assert found == pytest.approx(full * steps / 10_000, abs=1.05)
            assert 1 <= found <= steps
