"""A hub that cannot be reached is asked once."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from huggingface_hub import constants

from compshift import InputError
from compshift.nn import huggingface as hub
from compshift.nn.backbones import load_backbone


def test_no_way_to_the_hub(monkeypatch, capfd, caplog):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(InputError, match=r"use one of 'efficientnet-lite0', a folder or a hub's name \(the backbone"):
        load_backbone("resnet50", "images")
    assert constants.HF_HUB_OFFLINE is False
    assert "Retry" not in capfd.readouterr().err + caplog.text


def test_the_hub_is_not_asked_for_a_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "urlopen", None)
    with hub.offline_without_hub(str(tmp_path)):
        pass
