"""Install the wheel and source distribution of out/dist with every Python from 3.11 on that is found, and use them."""

import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

ROOT = Path(__file__).parent.parent.resolve()
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def pythons() -> dict[str, str]:
    """Return an interpreter for each version that is installed: on the path, or by pyenv."""
    found = {}
    for version in VERSIONS:
        installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        for candidate in (which(f"python{version}"), *map(str, installed)):
            # pyenv's placeholder for a version that is not active is on the path too, and fails
            if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
                found[version] = candidate
                break
    return found


def main() -> None:
    """Install both files in an environment of each Python, and run ``outside.py`` with it."""
    (wheel,), (source,) = (ROOT / "out/dist").glob("*.whl"), (ROOT / "out/dist").glob("*.tar.gz")
    found = pythons()
    for version, interpreter in found.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([interpreter, "-m", "venv", folder], check=True)
            python = Path(folder, "Scripts" if sys.platform == "win32" else "bin", "python")
            install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            install += ["-c", ROOT / "constraints.txt"]
            for arguments in ([wheel], ["--no-deps", "--force-reinstall", source]):
                subprocess.run([*install, *arguments], check=True, cwd=folder)
                subprocess.run([python, ROOT / "tests/outside.py"], check=True, cwd=folder)
        print(f"Python {version}: {wheel.name} and {source.name} install and work", flush=True)
    missing = [version for version in VERSIONS if version not in found]
    if missing:
        print(f"not found here: Python {', '.join(missing)}")
    if not found:
        sys.exit("no Python from 3.11 on was found")


if __name__ == "__main__":
    main()
