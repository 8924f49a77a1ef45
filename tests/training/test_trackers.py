"""Metrics of training in experiment trackers, by accelerate."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from accelerate.tracking import GeneralTracker

from compshift import InputError
from compshift.training import train
from compshift.training.folder import read_json
from tests.training.small_runs import QUICK, Interrupt, gaussians


class Kept(GeneralTracker):
    """A tracker of one's own, which keeps what it gets."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.config, self.logged, self.finished = None, {}, 0

    @property
    def tracker(self):
        return self.logged

    def start(self):
        pass

    def store_init_configuration(self, values):
        self.config = values

    def log(self, values, step=None, **_):
        self.logged[step] = values

    def finish(self):
        self.finished += 1


def scalars(folder):
    """Steps and values of every scalar that TensorBoard would show."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(folder / "trackers/compshift"))
    events.Reload()
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}


def test_a_resumed_run_continues_its_log(tmp_path):
    pytest.importorskip("tensorboard")
    folder, data = tmp_path / "run", gaussians()
    with pytest.raises(KeyboardInterrupt):
        train(data, "crm", "linear", QUICK, folder=folder, device="cpu", trackers="tensorboard", listener=Interrupt(6))
    ids = read_json(folder / "trackers/ids.json")
    train(data, "crm", "linear", QUICK, folder=folder, device="cpu", trackers=["tensorboard"])
    found = scalars(folder)
    names = {"train/loss", "train/learning_rate", *(f"validation/{name}" for name in ("average", "balanced", "worst"))}
    assert found.keys() == names
    assert all(list(steps) == [4, 8, 12] for steps in found.values())
    assert found["validation/worst"][12] > 0.3
    assert read_json(folder / "trackers/ids.json") == ids
    train(data, "erm", "linear", QUICK, folder=folder, device="cpu", overwrite=True)
    assert not (folder / "trackers").exists()


def test_a_tracker_of_ones_own_gets_settings_and_every_evaluation():
    kept = Kept()
    train(gaussians(), "groupdro", "linear", QUICK, device="cpu", trackers=[kept])
    assert kept.config["method"] == "groupdro"
    assert kept.config["eta"] == 0.01
    assert kept.config["steps"] == 12
    assert all(isinstance(value, int | float | str) for value in kept.config.values())
    assert list(kept.logged) == [4, 8, 12]
    assert kept.logged[12]["train/learning_rate"] == 0.1
    assert kept.finished == 1


def test_trackers_are_closed_when_a_run_is_interrupted():
    kept = Kept()
    with pytest.raises(KeyboardInterrupt):
        train(gaussians(), "erm", "linear", QUICK, device="cpu", trackers=[kept], listener=Interrupt(2))
    assert kept.finished == 1


def test_trackers_with_ids_of_their_own_are_continued_by_them(tmp_path):
    from compshift.training.trackers import _continuing, _own_id

    run = SimpleNamespace(info=SimpleNamespace(run_id="of-mlflow"), hash="of-aim", id="of-clearml")
    ids = {name: _own_id(SimpleNamespace(name=name, tracker=run)) for name in ("mlflow", "aim", "clearml")}
    arguments = _continuing({"run": "0" * 32, **ids}, tmp_path / "birds/trackers", 8)
    assert arguments["mlflow"] == {"run_id": "of-mlflow"}
    assert arguments["aim"] == {"run_hash": "of-aim"}
    assert arguments["clearml"] == {"continue_last_task": "of-clearml"}
    assert arguments["wandb"] == {"id": "0" * 32, "resume": "allow", "name": "birds"}
    assert arguments["tensorboard"] == {"purge_step": 9}


@pytest.mark.parametrize(
    ("trackers", "sentence"),
    [
        ("tensorbord", "tracker 'tensorbord' is not known: use one of .* did you mean 'tensorboard'?"),
        (["wandb"], "wandb is not installed: pip install wandb"),
        (["comet_ml"], "comet_ml is not installed: pip install comet-ml"),
        (7, "trackers is an int: pass a list of names"),
        ([None], "tracker None is not known"),
    ],
)
def test_trackers_that_cannot_be_used(trackers, sentence):
    if isinstance(trackers, list) and trackers[0] in map(str, accelerate.tracking.get_available_trackers()):
        pytest.skip("it is installed")
    with pytest.raises(InputError, match=sentence):
        train(gaussians(), "erm", "linear", QUICK, device="cpu", trackers=trackers)


def test_a_tracker_that_cannot_start_is_one_sentence(tmp_path):
    class Broken(Kept):
        def start(self):
            raise RuntimeError("no API key")

    with pytest.raises(InputError, match=r"a tracker cannot start \(RuntimeError: no API key\): check its settings"):
        train(gaussians(), "erm", "linear", QUICK, folder=tmp_path, device="cpu", trackers=[Broken()])
    train(gaussians(), "erm", "linear", QUICK, folder=tmp_path, device="cpu")
