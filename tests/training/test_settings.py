"""Settings of a run: defaults, learning rates, checks and JSON."""

import json
from decimal import Decimal

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from compshift import InputError
from compshift.training import Settings


def test_linear_schedules_warm_up_and_decay():
    linear = Settings(steps=10, warmup=4, learning_rate=1.0, schedule="linear").resolved("text", pretrained=True)
    np.testing.assert_allclose([linear.rate(step) for step in (0, 1, 3, 4, 7, 9)], [0.25, 0.5, 1, 1, 0.5, 1 / 6])
    constant = Settings(steps=10, learning_rate=1.0).resolved("images", pretrained=True)
    assert [constant.rate(step) for step in (0, 9)] == [1.0, 1.0]


def test_the_authors_schedule_falls_twice():
    """It falls to 0 over the warm-up, starts again at the full rate and ends at a third, as their code does."""
    saw = Settings(steps=9999, warmup=3333, learning_rate=1.0, schedule="sawtooth").resolved("text", pretrained=True)
    expected = [1 - step / 3333 if step < 3333 else 1 - (step - 3333) / 9999 for step in (0, 1000, 3332, 3333, 9998)]
    np.testing.assert_allclose([saw.rate(step) for step in (0, 1000, 3332, 3333, 9998)], expected)
    assert (saw.rate(3333), round(saw.rate(9998), 3)) == (1.0, 0.333)


def test_settings_added_later_are_left_out_of_the_identity_at_their_defaults():
    assert "decay" not in Settings().identity()
    assert Settings(decay="all", predictor="x").identity() == {
        **Settings().identity(),
        "decay": "all",
        "predictor": "x",
    }


def test_the_default_optimisers():
    images = Settings().resolved("images", pretrained=True)
    assert (images.optimiser, images.schedule, images.warmup, images.learning_rate) == ("sgd", "constant", 0, 1e-3)
    text = Settings(steps=200).resolved("text", pretrained=True)
    assert (text.optimiser, text.schedule, text.warmup, text.learning_rate) == ("adamw", "linear", 20, 2e-5)
    assert Settings().resolved("features", pretrained=False).learning_rate == 0.05
    given = Settings(optimiser="sgd", learning_rate=0.3).resolved("text", pretrained=True)
    assert (given.optimiser, given.learning_rate, given.schedule) == ("sgd", 0.3, "constant")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("steps", 0, "steps is 0: pass an integer"),
        ("batch_size", 2.5, "batch_size is 2.5: pass an integer"),
        ("learning_rate", -1.0, "learning_rate is -1.0: pass a finite number above 0"),
        ("weight_decay", -1.0, "weight_decay is -1.0"),
        ("momentum", 1.0, "momentum is 1.0: pass a number below 1"),
        ("warmup", 2000, "warmup is 2000: pass an integer from 0 to 1000"),
        ("warmup", True, "warmup is True: pass an integer from 0 to 1000"),
        ("learning_rate", 1e308, r"learning_rate is 1e\+308: pass a finite number above 0, up to 1e\+18"),
        ("weight_decay", 1e308, r"weight_decay is 1e\+308: pass a finite number ≥ 0, up to 1e\+18"),
        ("patience", -1, "patience is -1"),
        ("optimiser", "adam", "optimiser 'adam' is not known: use one of 'auto', 'sgd', 'adamw'"),
        ("metric", "f1", "metric 'f1' is not known"),
        ("precision", "int8", "precision 'int8' is not known"),
        ("decay", "none", "decay 'none' is not known: use one of 'matrices', 'all', 'vectors'"),
        ("predictor", 3, "predictor is 3: pass the name of a predictor"),
    ],
)
def test_settings_are_checked(name, value, sentence):
    with pytest.raises(InputError, match=sentence):
        Settings(**{name: value})


def test_settings_survive_json():
    settings = Settings(steps=5, learning_rate=0.1)
    assert Settings.from_dict(settings.to_dict()) == settings
    assert json.dumps(Settings(steps=5, learning_rate=Decimal("0.1")).to_dict()) == json.dumps(settings.to_dict())
    with pytest.raises(InputError, match="setting 'step' is not known"):
        Settings.from_dict({"step": 5})


def test_numpy_numbers_are_written_as_json():
    settings = Settings(steps=np.int64(5), learning_rate=np.float32(0.5), seed=np.int64(3))
    assert json.loads(json.dumps(settings.to_dict()))["learning_rate"] == 0.5
