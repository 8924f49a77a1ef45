"""The import rule: a module imports its own layer or one to the left, and nothing heavy until it is used."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "compshift"

LAYERS = [
    {"_errors", "_checks", "_files", "_lazy", "_progress", "_html", "_hub_methods"},
    {"core"},
    {"distributed"},
    {"data", "metrics"},
    {"crm", "estimators", "nn"},
    {"features"},
    {"methods"},
    {"training"},
    {"bench"},
    {"studies", "export"},
    {"report", "serve"},
    {"hub", "mlflow"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem.startswith("_") is False
                 or path.stem in RANK)  # fmt: skip


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_layers(path: Path) -> set[str]:
    """Layers of compshift that a module imports, wherever in the file; the package's version has no layer."""
    layers = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "compshift":
            parts = node.module.split(".")
            layers |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names} - {"__version__"}
        elif isinstance(node, ast.Import):
            layers |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("compshift.")}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path} has a relative import"
    return layers


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_leftward(path):
    own = layer_of(path)
    assert own in RANK, f"{own} belongs to no layer"
    for layer in imported_layers(path) - {own}:
        assert RANK[layer] <= RANK[own], f"{path.name} ({own}) imports {layer}"


def test_every_package_is_checked():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == {layer_of(path) for path in MODULES} - LAYERS[0] - {"distributed", "hub", "mlflow"}
    assert len(MODULES) > 30


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import compshift", ["numpy", "scipy", "sklearn", "pandas", "torch", "typer"]),
        ("import compshift.cli.main", ["numpy", "scipy", "sklearn", "pandas", "torch", "matplotlib", "pyarrow"]),
        ("import compshift; compshift.AffineHull", ["scipy", "sklearn", "pandas", "torch"]),
        ("import compshift; compshift.metrics.group_report", ["scipy", "sklearn", "pandas", "torch"]),
        (
            "import compshift; compshift.data.load_table; compshift.data.benchmark",
            ["scipy", "sklearn", "pandas", "torch"],
        ),
        ("import compshift; compshift.nn; compshift.features; compshift.training", ["numpy", "torch"]),
        ("import compshift; compshift.CRMClassifier; compshift.load", ["torch", "matplotlib", "typer"]),
        ("import compshift; compshift.export_onnx", ["torch", "onnx"]),
        ("import compshift; compshift.hub.push_to_hub", ["numpy", "torch", "huggingface_hub"]),
        ("import compshift; compshift.mlflow.log_model", ["numpy", "torch", "mlflow"]),
        ("import compshift; compshift.CRMClassifier.push_to_hub", ["torch", "huggingface_hub"]),
        ("import compshift.bench.plan, compshift.report.run_progress, compshift.studies.growth", ["torch"]),
    ],
)
def test_nothing_heavy_loads_until_it_is_used(statement, forbidden):
    script = f"{statement}; import sys; print(*(name for name in {forbidden!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


PACKAGES = [
    "compshift",
    "compshift.data",
    "compshift.nn",
    "compshift.features",
    "compshift.methods",
    "compshift.training",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist(package):
    if package not in ("compshift", "compshift.data"):
        pytest.importorskip("torch")
    module = importlib.import_module(package)
    for part in pkgutil.iter_modules(module.__path__, f"{package}."):
        if part.name != "compshift.__main__":
            importlib.import_module(part.name)  # which sets an attribute of that name
    for name in module.__all__:
        value = getattr(module, name)
        assert value is not None
        subpackage = package == "compshift" or name == "registry"
        assert subpackage or not isinstance(value, types.ModuleType), f"{name} is hidden by a module"
    assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'CRM'"):
        _ = module.CRM


def test_everything_works_without_torch(tmp_path):
    """A Python in which importing torch fails fits, saves, loads and predicts all the same."""
    script = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(name, *_):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NoTorch)\n"
        "import numpy as np, compshift as cs\n"
        "rng = np.random.default_rng(0)\n"
        "z = np.repeat([[0, 1], [1, 0], [1, 1]], 50, axis=0)\n"
        "X = rng.normal(size=z.shape) + z\n"
        "clf = cs.CRMClassifier().fit(X, z[:, 0], attributes=z[:, 1])\n"
        "clf.save(sys.argv[1]); clf = cs.load(sys.argv[1])\n"
        "clf.explain(X); print(cs.metrics.group_report(z[:, 0], clf.predict(X), z[:, 1]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "worst group" in result.stdout
