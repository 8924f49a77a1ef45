"""Methods of fitted models for the Hugging Face hub, which ``compshift.hub`` implements; it is imported when used."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import Any, Self

from compshift._errors import InputError


class HubMethods:
    """Base class of the models that can be saved as files and shared on the Hugging Face hub."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a file or folder; ``compshift.load`` reads it."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | PathLike[str], **options: Any) -> None:
        """Write the model and a model card to a folder, as a repository of the Hugging Face hub has them.

        Parameters
        ----------
        folder : path
            Folder to write to.
        **options
            Options of ``compshift.hub.save_pretrained``.
        """
        import_module("compshift.hub").save_pretrained(self, folder, **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model with a model card to the Hugging Face hub.

        Parameters
        ----------
        repo_id : str
            Name of the repository, such as ``"me/birds"``; it is created if it does not exist.
        **options
            Options of ``compshift.hub.push_to_hub``, such as ``private=True``.

        Returns
        -------
        str
            Address of the commit.
        """
        return str(import_module("compshift.hub").push_to_hub(self, repo_id, **options))

    @classmethod
    def from_pretrained(cls, repo_id: str | PathLike[str], **options: Any) -> Self:
        """Load a model of this class from the Hugging Face hub, without running any code from it.

        Parameters
        ----------
        repo_id : str or path
            Name of the repository, or a folder that ``save_pretrained`` wrote.
        **options
            Options of ``compshift.hub.from_pretrained``, such as ``revision="v1"``.

        Returns
        -------
        model
            The model. For a ``CRMClassifierCV``, it is the ``CRMClassifier`` with the selected settings.

        Raises
        ------
        InputError
            If the repository holds another kind of model.
        """
        model: Any = import_module("compshift.hub").from_pretrained(repo_id, **options)
        if not issubclass(cls, type(model)):
            raise InputError(
                f"{str(repo_id)!r} holds a {type(model).__name__}, not a {cls.__name__}: use "
                "compshift.hub.from_pretrained, which loads every kind of model"
            )
        return model  # type: ignore[no-any-return]
