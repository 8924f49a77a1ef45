"""What is installed works away from this folder: run in an empty one, by an environment that has the wheel."""

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import compshift as cs


def main() -> None:
    """Audit, fit, predict and evaluate by the command line, and read every file that the package brings."""
    source, installed = Path(__file__).parent.parent.resolve() / "src" / "compshift", Path(cs.__file__).parent.resolve()
    assert installed != source, f"compshift is imported from {source}, not installed"
    assert importlib.metadata.version("compshift") == cs.__version__
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        data = cs.data.benchmark("penguins").features()
        cs.data.write_features("penguins.npz", data)
        target, *attributes = data.space.names
        fit = ("fit", "penguins.npz", "--target", target, "--attributes", ",".join(attributes), "-o", "m.safetensors")
        for arguments in (
            ("--version",),
            ("audit", "penguins.npz", "--attributes", ",".join(data.space.names)),
            fit,
            ("evaluate", "m.safetensors", "penguins.npz"),
            ("predict", "m.safetensors", "penguins.npz", "-o", "predictions.csv"),
            ("datasets", "list"),
        ):
            subprocess.run(
                [Path(sys.executable).parent / "compshift", *arguments], check=True, stdout=subprocess.DEVNULL
            )
        assert len(Path("predictions.csv").read_text().splitlines()) == len(data) + 1
    files = [
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    absent = [str(path) for path in files if not (installed / path).is_file()]
    assert not absent, f"the wheel lacks {absent}"
    print(f"compshift {cs.__version__} is installed whole ({len(files)} files) and works outside of its folder")


if __name__ == "__main__":
    main()
