"""Models on the Hugging Face hub: upload them with a model card, and load them. Needs ``compshift[hub]``.

A repository has the files that ``compshift.save`` writes, which contain no pickle and run no code, and a README.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compshift import __version__
from compshift._errors import InputError, reason
from compshift._files import check_folder, check_path, replacing

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]

MODEL_FILE = "model.safetensors"
"""Name of the model file or, in the folder of a network, of its weights."""

NETWORK_FILE = "run.json"
"""Name of the file that only the folder of a network has."""

FILES = [MODEL_FILE, NETWORK_FILE, "backbone/*"]
"""Patterns of the files of a model."""

CARD = "README.md"
"""Name of the model card."""

TAGS = ["compshift", "compositional-generalization", "distribution-shift"]
"""Tags of every model on the hub."""


def save_pretrained(
    model: Any,
    folder: str | PathLike[str],
    *,
    repo_id: str | None = None,
    license: str | None = None,  # noqa: A002
) -> None:
    """Write a fitted model and a model card to a folder, as a repository of the hub has them.

    Parameters
    ----------
    model : CRMClassifier, CRMClassifierCV, CRMBoostingClassifier, Pipeline or TrainedClassifier
        A fitted model that ``compshift.save`` can write.
    folder : path
        Folder to write to. A README.md in it is kept, because it may have been edited.
    repo_id : str, optional
        Name of the repository in the card. Default: the name of the folder.
    license : str, optional
        Licence of the model in the card's metadata, such as ``"apache-2.0"``.

    Raises
    ------
    InputError
        If the model cannot be saved, or the folder holds another kind of model.

    Examples
    --------
    >>> import compshift as cs
    >>> clf = cs.CRMClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 1], attributes=[0, 0, 1])
    >>> cs.hub.save_pretrained(clf, "birds", license="mit")  # doctest: +SKIP
    """
    path = check_path(folder)
    check_folder(path, "for the model")
    if (path / NETWORK_FILE).exists():
        raise InputError(f"{str(folder)!r} holds a trained network: choose another folder")
    hub = _huggingface_hub()
    saved = _write_model(model, path)
    if not (path / CARD).exists():
        _write_card(hub, saved, path / CARD, repo_id or path.resolve().name, license)


def push_to_hub(
    model: Any,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str = "Upload model",
    license: str | None = None,  # noqa: A002
) -> str:
    """Upload a fitted model and a model card to the hub, in one commit.

    The repository is created if it does not exist. The files of a model and the README.md that it has are replaced;
    the hub keeps their history.

    Parameters
    ----------
    model : CRMClassifier, CRMClassifierCV, CRMBoostingClassifier, Pipeline or TrainedClassifier
        A fitted model that ``compshift.save`` can write.
    repo_id : str
        Name of the repository, such as ``"me/birds"``.
    private : bool, optional
        Whether a new repository is private. Default: the setting of the account.
    token : str or bool, optional
        Access token. Default: that of ``hf auth login``.
    revision : str, optional
        Branch to commit to. Default: ``"main"``.
    create_pr : bool, default=False
        Whether to open a pull request instead of committing to the branch.
    commit_message : str, default="Upload model"
        Message of the commit.
    license : str, optional
        Licence of the model in the card's metadata, such as ``"apache-2.0"``.

    Returns
    -------
    str
        Address of the commit.

    Raises
    ------
    InputError
        If the model cannot be saved, or the hub cannot be reached or rejects the upload.

    Examples
    --------
    >>> import compshift as cs
    >>> clf = cs.CRMClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 1], attributes=[0, 0, 1])
    >>> cs.hub.push_to_hub(clf, "me/birds", private=True)  # doctest: +SKIP
    'https://huggingface.co/me/birds/commit/…'
    """
    hub = _huggingface_hub()
    with TemporaryDirectory(prefix="compshift-") as folder, _one_sentence(repo_id, revision):
        path = Path(folder) / "model"
        saved = _write_model(model, path)
        api = hub.HfApi(token=token, library_name="compshift", library_version=__version__)
        created = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        _write_card(hub, saved, path / CARD, created, license)
        commit = api.upload_folder(
            repo_id=created,
            folder_path=path,
            revision=revision,
            create_pr=create_pr,
            commit_message=commit_message,
            delete_patterns=FILES,
        )
    return str(commit.commit_url)


def from_pretrained(
    repo_id: str | PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | PathLike[str] | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    device: Any = "cpu",
) -> Any:
    """Load a model from the hub, without running any code from it.

    The files are checked as ``compshift.load`` checks them. Downloads are cached, and need no network afterwards.

    Parameters
    ----------
    repo_id : str or path
        Name of the repository, such as ``"me/birds"``, or a folder that ``save_pretrained`` wrote.
    revision : str, optional
        Branch, tag or commit. Default: ``"main"``.
    token : str or bool, optional
        Access token. Default: that of ``hf auth login``.
    cache_dir : path, optional
        Folder of downloads. Default: the cache of huggingface_hub.
    force_download : bool, default=False
        Whether to download files again that are in the cache.
    local_files_only : bool, default=False
        Whether to use only files in the cache.
    device : str or torch.device, default="cpu"
        Device of a trained network; ignored for other models.

    Returns
    -------
    CRMClassifier, CRMBoostingClassifier, Pipeline or TrainedClassifier
        The model, as ``compshift.load`` returns it.

    Raises
    ------
    InputError
        If the hub cannot be reached, or the repository holds no model of compshift.

    Examples
    --------
    >>> import compshift as cs
    >>> model = cs.hub.from_pretrained("me/birds", revision="v1")  # doctest: +SKIP
    """
    from compshift.training.load import load

    if check_path(repo_id).is_dir():
        return load(_model_path(check_path(repo_id), repo_id), device)
    hub = _huggingface_hub()
    with _one_sentence(str(repo_id), revision):
        snapshot = hub.snapshot_download(
            str(repo_id),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            allow_patterns=FILES,
            library_name="compshift",
            library_version=__version__,
        )
    path = _model_path(Path(snapshot), repo_id)
    if path.is_file():
        return load(path)
    with TemporaryDirectory(prefix="compshift-") as folder:  # the cache has links, which the folder of a run must not
        copy = shutil.copytree(path, Path(folder) / "model")
        return load(copy, device)


def _write_model(model: Any, folder: Path) -> Any:
    """Write the files of a model to a folder; return the model as readers of the files will have it."""
    from compshift.training.load import load, save

    if hasattr(model, "head_"):  # a network
        save(model, folder)
        return model
    folder.mkdir(parents=True, exist_ok=True)
    save(model, folder / MODEL_FILE)
    return load(folder / MODEL_FILE)


def _write_card(hub: Any, model: Any, path: Path, name: str, licence: str | None) -> None:
    """Write the model card, with the metadata that the hub reads at its top."""
    from compshift.report.model_card import model_card, model_task

    data = hub.ModelCardData(license=licence, library_name="compshift", tags=TAGS, pipeline_tag=model_task(model))
    with replacing(path) as temporary:
        temporary.write_text(f"---\n{data.to_yaml()}\n---\n\n{model_card(model, name)}", encoding="utf-8")


def _model_path(folder: Path, repo_id: str | PathLike[str]) -> Path:
    """Return the model file in a folder or, if it is that of a network, the folder itself."""
    if (folder / NETWORK_FILE).exists():
        return folder
    if not (folder / MODEL_FILE).exists():
        raise InputError(f"{str(repo_id)!r} has no file {MODEL_FILE!r}: pass a repository or a folder with a model")
    return folder / MODEL_FILE


def _huggingface_hub() -> Any:
    """Return the package huggingface_hub, which has the extra ``hub``."""
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise InputError(
            "the Hugging Face hub needs the package huggingface_hub: pip install 'compshift[hub]'"
        ) from None
    return huggingface_hub


@contextmanager
def _one_sentence(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turn the errors of huggingface_hub into one sentence."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise InputError(f"repo_id is {repo_id!r}: pass a name such as 'me/birds', or a folder ({error})") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{repo_id!r} has no revision {revision!r}: pass a branch, a tag or a commit") from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"the hub has no model {repo_id!r}, or it is not open to you: check the name, and run `hf auth login` or "
            "pass token"
        ) from None
    except errors.HfHubHTTPError as error:
        raise InputError(f"the hub rejected the request for {repo_id!r} ({reason(error)}): check your rights") from None
    except (getattr(errors, "HTTPError", OSError), OSError) as error:  # the former is of httpx or of requests
        if isinstance(error, OSError) and error.errno:  # such as a full disk
            raise
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
        if cause is None:
            raise InputError(f"{repo_id!r} is not in the cache: pass local_files_only=False") from None
        raise InputError(
            f"the hub cannot be reached for {repo_id!r} ({str(cause) or type(cause).__name__}): check the connection, "
            "or pass a folder"
        ) from None
