"""``save`` and ``load``: write and read models, which are model files or folders of training runs."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import InputError, an
from compshift._files import check_path
from compshift._hub_methods import HubMethods
from compshift.crm import io as model_file
from compshift.crm.boosting import CRMBoostingClassifier
from compshift.crm.classifier import CRMClassifier
from compshift.crm.fitted import FittedCRM
from compshift.crm.pipelines import without_scalers
from compshift.data.dataset import DEFAULT_BACKBONES

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


def save(estimator: Any, path: str | PathLike[str]) -> None:
    """Write a fitted classifier, or a pipeline that ends in one, as a model file; write a trained network as a folder.

    ``compshift.load`` and the command line read them; they contain no code. Before the classifier, a pipeline may
    have a ``TableFeatures``, as ``table_classifier`` makes it, or scikit-learn's ``SimpleImputer``, ``StandardScaler``,
    ``OneHotEncoder(handle_unknown="ignore")`` or a ``ColumnTransformer`` of them, fitted to a table with named columns.
    A ``StandardScaler`` right before the classifier becomes part of its weights. Texts may have a ``TfidfVectorizer``
    with the default tokens and weights; the command line then reads them from the column "text".

    Parameters
    ----------
    estimator : CRMClassifier, CRMClassifierCV, CRMBoostingClassifier, Pipeline or TrainedClassifier
        The fitted model.
    path : str or path
        File to write. It is written atomically. For a ``TrainedClassifier``, a folder to create.

    Raises
    ------
    InputError
        If the model, or a step of the pipeline, cannot be written.

    Examples
    --------
    >>> import compshift, numpy, tempfile
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> pipe = make_pipeline(StandardScaler(), compshift.CRMClassifier())
    >>> X, y, a = [[0.0, 900.0], [1.0, 100.0], [2.0, 500.0]], [0, 1, 1], [0, 0, 1]
    >>> pipe = pipe.fit(X, y, crmclassifier__attributes=a)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(pipe, f"{folder}/model.safetensors")
    ...     clf = compshift.load(f"{folder}/model.safetensors")
    >>> numpy.allclose(clf.predict_proba(X), pipe.predict_proba(X))
    True
    """
    model, steps = without_scalers(estimator)
    if not isinstance(model, HubMethods):
        given = f"the class {model.__name__}" if isinstance(model, type) else an(type(model).__name__)
        raise InputError(
            f"{given} cannot be saved: pass a fitted CRMClassifier, CRMClassifierCV or CRMBoostingClassifier, a "
            "Pipeline that ends in one, or a TrainedClassifier, and then the path"
        )
    if not steps:
        model.save(path)
        return
    from compshift.features.column_transformer import recipe_of
    from compshift.features.recipe import portable_backbone

    recipe = recipe_of(steps) if isinstance(model, FittedCRM) else None
    if recipe is None:
        name, step = steps[-1]
        raise InputError(
            f"the step {name!r} ({type(step).__name__}) cannot be written to a model file: use TableFeatures instead, "
            "or save the last step by itself, which takes the output of the other steps as features"
        )
    clf: Any = copy(model)
    inputs, stored = recipe.to_dict(), clf.inputs_ or {}
    if all(stored.get(name) == inputs.get(name) for name in ("table", "terms")):
        inputs = dict(stored)  # which also records how the training table was split
    inputs["backbone"] = portable_backbone(recipe.backbone, check_path(path).parent)
    clf.__dict__.pop("feature_names_in_", None)  # the recipe has them
    clf.save(path, inputs=inputs)


def needed_extra(model: Any) -> str:
    """Return the extra of compshift that loading a saved model needs, or ""."""
    if not hasattr(model, "head_"):
        recipe = getattr(getattr(model, "steps", [("", None)])[0][1], "_fitted_recipe", None)  # of TableFeatures
        if recipe is None or not recipe.needs_network:
            return ""
        return "weights" if recipe.backbone == DEFAULT_BACKBONES["text"] else "hf"
    backbone = model.model.backbone
    if getattr(backbone, "source_config", None) is not None:
        return "hf"
    return "weights" if backbone.name == "efficientnet-lite0" else "torch"


def load_file(path: str | PathLike[str]) -> Any:
    """Read the fitted classifier in a model file, without running any code from it."""
    kind, header, arrays = model_file.read(path)
    kinds: dict[str, Any] = {"CRMClassifier": CRMClassifier, "CRMBoostingClassifier": CRMBoostingClassifier}
    if kind not in kinds:
        raise InputError(
            f"{str(path)!r} holds a {kind!r}, but this release can only load a CRMClassifier or a "
            "CRMBoostingClassifier: use the release that wrote the file"
        )
    try:
        return kinds[kind]._from_file(header, arrays)
    except InputError as error:
        raise InputError(f"{str(path)!r} cannot be loaded: {error}") from None


def load(path: str | PathLike[str], device: Any = "cpu") -> Any:
    """Read the fitted classifier in a model file, or the trained classifier in the folder of a run.

    No code from the file is run. The folder of a run needs ``compshift[torch]``.

    Parameters
    ----------
    path : str or path
        A file written by ``save`` or ``compshift fit``, or a folder written by ``save``, ``train`` or ``compshift
        train``.
    device : str or torch.device, default="cpu"
        Device of a trained network; ignored for model files.

    Returns
    -------
    CRMClassifier, CRMBoostingClassifier, Pipeline or TrainedClassifier
        The model. A saved ``CRMClassifierCV`` is loaded as the ``CRMClassifier`` with the selected settings. A model
        that was fitted to columns of a table, by ``table_classifier`` or ``compshift fit TABLE``, is loaded as a
        Pipeline with the steps ``features``, a ``TableFeatures``, and ``classifier``; it predicts tables with these
        columns. For a model of the words of texts, ``features`` is scikit-learn's ``TfidfVectorizer``.

    Raises
    ------
    InputError
        If the file is damaged, or not written by compshift.

    Examples
    --------
    >>> import compshift
    >>> clf = compshift.CRMClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 1], attributes=[0, 0, 1])
    >>> clf.save("birds.safetensors")  # doctest: +SKIP
    >>> clf = compshift.load("birds.safetensors")  # doctest: +SKIP
    """
    if check_path(path).is_dir():
        from compshift.training.classifier import TrainedClassifier

        return TrainedClassifier.load(path, device)
    clf = load_file(path)
    if (clf.inputs_ or {}).get("kind") not in ("table", "tfidf"):
        return clf
    try:
        return _pipeline(clf, Path(path))
    except InputError as error:
        raise InputError(f"{str(path)!r} cannot be loaded: {error}") from None


def _pipeline(clf: FittedCRM, path: Path) -> Pipeline:
    """Return a pipeline of the features of tables or texts that a classifier's recipe describes, and the classifier."""
    from sklearn.pipeline import Pipeline

    from compshift.features.recipe import Recipe
    from compshift.features.table_classifier import TableFeatures

    assert clf.inputs_ is not None
    recipe = Recipe.from_dict(clf.inputs_)
    recipe = replace(recipe, backbone=backbone_path(path, recipe.backbone))
    features = TableFeatures._from_recipe(recipe) if recipe.terms is None else recipe.terms.vectorizer()
    names = features.get_feature_names_out()
    if len(names) != clf.n_features_in_:
        raise InputError(
            f"its columns make {len(names)} features, but the model takes {clf.n_features_in_}: fit it again, or save "
            "it without inputs"
        )
    if recipe.terms is None:
        clf.feature_names_in_ = names
    return Pipeline([("features", features), ("classifier", clf)])


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A fitted classifier and, for a training run, the network that computes its features."""

    path: Path  # model file, or folder of a training run
    clf: Any  # fitted classifier, which takes features
    network: Any = None  # TrainedClassifier of a training run
    inputs: Any = None  # recipe that turns the columns of a table into features, as a dictionary


def load_model_parts(path: Path) -> LoadedModel:
    """Load a model file or the folder of a training run, whose network is put on the best device."""
    if path.is_dir():
        from compshift.features.embedder import chosen_device

        network = load(path, chosen_device("auto"))
        return LoadedModel(path, network.head_, network, network.inputs_)
    clf = load_file(path)
    return LoadedModel(path, clf, None, _table_inputs(clf))


def _table_inputs(clf: Any) -> Any:
    """Return the recipe in the model file or, if it has none, a recipe that reads the features by column name.

    If the features had no names in training, there is no recipe, and ``clf.inputs_`` is returned as it is.
    """
    names = getattr(clf, "feature_names_in_", None)
    if names is not None and "kind" not in (clf.inputs_ or {}):
        return {"kind": "features", "columns": [str(name) for name in names]}
    return clf.inputs_


def backbone_path(model: Path, stored: str) -> str:
    """Return the path of a backbone that a model file names as a folder; return other backbones unchanged.

    The folder is searched beside the model file and in the current folder. Files of earlier versions have its absolute
    path, which is tried first.
    """
    path = Path(stored)
    if not (stored.startswith("./") or path.is_absolute()):
        return stored
    relative, known = (Path(path.name), [path]) if path.is_absolute() else (path, [])
    found = next((place for place in (*known, model.parent / relative, relative) if place.is_dir()), None)
    if found is None:
        raise InputError(
            f"the features of {str(model)!r} are computed by the backbone in the folder {str(relative)!r}, which is "
            "neither beside the model nor in the current folder: pass its path with --backbone"
        )
    return str(found.resolve())
