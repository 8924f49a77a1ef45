"""torchvision's ResNet-50: its checkpoint file, the names of its weights, its preprocessing, and saved copies."""

import hashlib
import io
import shutil
import zipfile

import numpy as np
import pytest

from compshift import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from PIL import Image
from torch.nn import functional

from compshift.data.images import STRETCH_AND_CROP
from compshift.nn import torchvision as published
from compshift.nn.backbones import RESNET50, load_backbone
from compshift.nn.saved_backbones import restore_architecture, save_architecture
from tests.nn.models import resnet50_state


@pytest.fixture(scope="module")
def state():
    return resnet50_state()


@pytest.fixture(scope="module")
def checkpoint(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet.pth"
    torch.save(state, path)
    return path


@pytest.fixture(scope="module")
def backbone(checkpoint):
    return load_backbone(RESNET50, "images", weights=checkpoint)


def reference(state, pixels, strided="conv2"):
    """Forward pass of ResNet-50 written from the paper, with the stride in the convolution ``strided`` of a block."""

    def normalise(x, name):
        mean, variance, scale, shift = (
            state[f"{name}.{part}"].to(x.dtype)[:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (variance + 1e-5).sqrt() * scale + shift

    def convolve(x, name, stride=1):
        weight = state[f"{name}.weight"].to(x.dtype)
        return functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    x = functional.relu(normalise(convolve(pixels, "conv1", 2), "bn1"))
    x = functional.max_pool2d(x, 3, stride=2, padding=1)
    for stage, depth in enumerate((3, 4, 6, 3), start=1):
        for number in range(depth):
            block = f"layer{stage}.{number}"
            stride = 2 if stage > 1 and number == 0 else 1
            shortcut = x
            if number == 0:
                shortcut = normalise(convolve(x, f"{block}.downsample.0", stride), f"{block}.downsample.1")
            for position in (1, 2, 3):
                own = stride if strided == f"conv{position}" else 1
                x = normalise(convolve(x, f"{block}.conv{position}", own), f"{block}.bn{position}")
                x = functional.relu(x) if position < 3 else x
            x = functional.relu(x + shortcut)
    return x.mean(dim=(2, 3))


def relative_error(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_features_equal_a_forward_pass_from_the_definition(backbone, state, dtype, tolerance):
    pixels = torch.randn(2, 3, 75, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    with torch.inference_mode():
        try:
            found = backbone.to(dtype)(pixels)
        finally:
            backbone.to(torch.float32)
        assert found.shape == (2, 2048)
        assert relative_error(found, reference(state, pixels)) < tolerance
        assert relative_error(found, reference(state, pixels, strided="conv1")) > 0.1  # version 1, of the paper


def test_every_weight_of_the_file_is_used_once(backbone, state):
    names = [published.torchvision_name(name) for name in backbone.network.model.state_dict()]
    assert len(names) == len(set(names)) == 53 * 6
    assert {*names, "fc.weight", "fc.bias"} == set(state)


def test_features_equal_those_of_torchvision(backbone, state):
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.resnet50(weights=None)
    model.load_state_dict(state)
    model.fc = torch.nn.Identity()
    transform = torchvision.models.ResNet50_Weights.IMAGENET1K_V1.transforms()
    image = picture(size=(300, 412))
    prepared = backbone.preprocessing.normalise(torch.as_tensor(backbone.preprocessing.pixels(image).copy()))
    torch.testing.assert_close(prepared.movedim(-1, 0), transform(image), rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        assert relative_error(backbone(transform(image)[None]), model.eval()(transform(image)[None])) < 1e-4


def picture(size):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, size=(*size, 3)).astype(np.uint8))


def test_images_are_scaled_bilinearly_and_normalised(backbone):
    image = picture(size=(300, 412))
    scaled = image.resize((int(256 * 412 / 300), 256), Image.Resampling.BILINEAR)
    left = round((scaled.width - 224) / 2)
    expected = np.asarray(scaled.crop((left, 16, left + 224, 240))) / 255
    expected = (expected - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    found = backbone.preprocessing.normalise(backbone.preprocessing.pixels(image))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_geometry_of_a_data_set_replaces_that_of_torchvision(checkpoint):
    preprocessing = load_backbone(RESNET50, "images", weights=checkpoint, geometry=STRETCH_AND_CROP).preprocessing
    expected = picture(size=(300, 412)).resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    np.testing.assert_array_equal(preprocessing.pixels(picture(size=(300, 412))), np.asarray(expected))


def test_the_second_published_weights_have_their_own_size(checkpoint, monkeypatch):
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    monkeypatch.setitem(published.RESIZED_SIDES, digest[:8], 232)
    steps = load_backbone(RESNET50, "images", weights=checkpoint).preprocessing.geometry
    assert [(step.width, step.height) for step in steps] == [(232, None), (224, 224)]


def test_counters_and_the_last_layer_may_be_absent(backbone, state, tmp_path):
    path = tmp_path / "older.pth"
    left_out = ("num_batches_tracked", "fc.weight", "fc.bias")
    fewer = {name: tensor for name, tensor in state.items() if not name.endswith(left_out)}
    torch.save(fewer, path, _use_new_zipfile_serialization=False)  # format of older files
    generator = torch.get_rng_state()
    older = load_backbone(RESNET50, "images", weights=str(path))
    assert torch.equal(torch.get_rng_state(), generator)
    assert older.fingerprint() == backbone.fingerprint()
    assert older.settings() == backbone.settings()
    fewer["bn1.bias"] = fewer["bn1.bias"] + 1e-6
    torch.save(fewer, path)
    assert load_backbone(RESNET50, "images", weights=path).fingerprint() != backbone.fingerprint()


def test_a_saved_backbone_needs_no_checkpoint(backbone, tmp_path):
    about = save_architecture(backbone, tmp_path)
    weights = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    restored = restore_architecture(about, tmp_path, sum(tensor.numel() for tensor in weights.values()))
    restored.load_state_dict(weights)
    assert restored.name == RESNET50
    assert restored.fingerprint() == backbone.fingerprint()
    assert restored.settings() == backbone.settings()
    pixels = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(restored(pixels), backbone(pixels), rtol=0, atol=0)


def test_the_file_is_found_in_the_cache_of_torch(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(
        InputError, match=r"'resnet50-0676ba61\.pth', which is not in torch's cache '.*hub/checkpoints'"
    ):
        load_backbone(RESNET50, "images")
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    name = f"resnet50-{digest[:8]}.pth"
    monkeypatch.setattr(published, "CHECKPOINT", name)
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    shutil.copy(checkpoint, tmp_path / "hub/checkpoints" / name)
    assert load_backbone(RESNET50, "images").out_features == 2048


def test_the_digits_in_a_published_name_are_checked(tmp_path):
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "r.pth")
    digest = hashlib.sha256((tmp_path / "r.pth").read_bytes()).hexdigest()
    right = (tmp_path / "r.pth").rename(tmp_path / f"resnet50-{digest[:8]}.pth")
    assert published.read_checkpoint(right)[1] == digest
    wrong = right.rename(tmp_path / "resnet50-0676ba61.pth")
    with pytest.raises(InputError, match=rf"its SHA-256 starts with {digest[:8]}, not with the 0676ba61 of its name"):
        load_backbone(RESNET50, "images", weights=wrong)


class Harmful:
    def __reduce__(self):
        return print, ("run",)


def compressed(path):
    content = io.BytesIO()
    torch.save({"conv1.weight": torch.zeros(100_000)}, content)
    with zipfile.ZipFile(content) as before, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as after:
        for entry in before.namelist():
            after.writestr(entry, before.read(entry))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: torch.save({"a": Harmful()}, path), "holds more than tensors"),
        (lambda path: path.write_bytes(b"PK\x03\x04 no archive"), "is not a PyTorch checkpoint, is damaged"),
        (lambda path: path.write_bytes(b""), "is not a PyTorch checkpoint, is damaged"),
        (compressed, "is not a PyTorch checkpoint, is damaged"),
        (lambda path: torch.save([torch.zeros(1)], path), "holds something other than named tensors"),
        (lambda path: torch.save({"model": {"conv1.weight": torch.zeros(1)}}, path), "other than named tensors"),
        (lambda path: path.mkdir(), r"there is no file .*: pass the path of torchvision's file"),
        (lambda _: None, r"there is no file .*: pass the path of torchvision's file"),
    ],
)
def test_a_file_that_is_no_checkpoint_raises(tmp_path, capsys, write, message):
    write(tmp_path / "r.pth")
    with pytest.raises(InputError, match=message) as raised:
        load_backbone(RESNET50, "images", weights=tmp_path / "r.pth")
    assert "weights_only" not in str(raised.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("layer3.2.bn2.running_var", None, r"lacks the weight 'layer3\.2\.bn2\.running_var' of ResNet-50"),
        (
            "layer1.0.conv1.weight",
            (64, 64, 3, 3),
            r"'layer1\.0\.conv1\.weight' .* \(64, 64, 3, 3\), but \(64, 64, 1, 1\)",
        ),
        (
            "layer3.6.conv1.weight",
            (256, 1024, 1, 1),
            r"holds the weight 'layer3\.6\.conv1\.weight', which ResNet-50 does not have",
        ),
        ("layer3.6.bn1.num_batches_tracked", (), r"holds the weight 'layer3\.6\.bn1\.num_batches_tracked', which"),
        ("bn1.bias", torch.zeros(64, dtype=torch.int64), "'bn1.bias' .* is not a dense tensor of real numbers"),
        ("bn1.bias", torch.zeros(64).to_sparse(), "'bn1.bias' .* is not a dense tensor of real numbers"),
        ("bn1.bias", torch.zeros(64, device="meta"), "'bn1.bias' .* is not a dense tensor of real numbers"),
    ],
)
def test_weights_that_do_not_fit_are_named(backbone, state, tmp_path, name, tensor, message):
    changed = dict(state)
    del changed["fc.bias"]
    if tensor is None:
        del changed[name]
    else:
        changed[name] = torch.zeros(tensor) if isinstance(tensor, tuple) else tensor
    before = backbone.fingerprint()
    with pytest.raises(InputError, match=message):
        published.load_checkpoint(backbone.network.model, changed, tmp_path / "r.pth")
    assert backbone.fingerprint() == before


def test_options_that_do_not_fit_raise(checkpoint, tmp_path):
    with pytest.raises(InputError, match="'torchvision/resnet50' takes images, but the samples are text"):
        load_backbone(RESNET50, "text", weights=checkpoint)
    with pytest.raises(InputError, match="'torchvision/resnet50' has a fixed pooling"):
        load_backbone(RESNET50, "images", weights=checkpoint, pooling="cls")
    for name in ("efficientnet-lite0", "torchvision/resnet-50", str(tmp_path)):
        with pytest.raises(
            InputError, match=r"reads no such file: leave it out, or choose the backbone 'torchvision/resn"
        ):
            load_backbone(name, "images", weights=checkpoint)
    with pytest.raises(InputError, match="did you mean 'torchvision/resnet50'"):
        load_backbone("torchvision/resnet-50", "images")
