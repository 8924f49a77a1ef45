"""Measure how hard the code base is to read: sizes, sole importers, repeated names, wording, files on two main paths.

    python benchmarks/layout.py [--source SRC] [--list]

prints one markdown table for the package in SRC, the ``src`` folder of this or another checkout. ``--list`` adds the
modules, names and files behind the counts.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

JOB_FUNCTIONS = ("compshift.bench.job.run_job", "compshift.bench.jobs.run_job", "compshift.bench.runner.run_job")
"""Possible names of the function that runs one benchmark job in a worker; the first that can be imported is used."""

RECORD_WRITERS = ("compshift.bench.store.Store.write", "compshift.bench.results.Store.write")
"""Possible names of the function that writes a job's record, which ends the job."""

OPENINGS = ("What", "Of", "So", "None", "Nothing")
"""First words of docstrings that tend to be fragments."""

Measure = tuple[str, Any, list[str]]
"""Label, figure, and the names that ``--list`` prints."""


def static_measures(source: Path) -> Iterator[Measure]:
    """Yield everything that can be read off the text of the package and of the files beside ``source``."""
    package = source / "compshift"
    texts = {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    largest = max(lines, key=lambda name: lines[name])
    short = [name for name in lines if lines[name] < 60 and not name.endswith("__init__.py")]
    yield "source files", len(lines), []
    yield "source lines", sum(lines.values()), []
    yield "mean lines of a file", round(sum(lines.values()) / len(lines)), []
    yield "lines of the largest file", f"{lines[largest]} ({largest})", []
    yield "files under 60 lines, without `__init__.py`", len(short), short

    importers = defaultdict(set)
    for name, tree in trees.items():
        for module in imported_modules(tree):
            importers[module].add(name)
    sole = {}
    for name in texts:
        found = importers["compshift." + name.removesuffix(".py").replace("/", ".")]
        if len(found) == 1 and not name.endswith(("__init__.py", "__main__.py")):
            sole[name] = f"{name} (imported by {next(iter(found))})"
    yield "modules with one importer", len(sole), []
    small = [text for name, text in sole.items() if lines[name] < 80]
    yield "modules under 80 lines with one importer", len(small), small

    classes, constants = defaultdict(set), Counter[str]()
    for name, tree in trees.items():
        constants.update(constant_names(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
    repeated = [f"{key}: {', '.join(sorted(where))}" for key, where in sorted(classes.items()) if len(where) > 1]
    again = [f"{key} ({count} times)" for key, count in sorted(constants.items()) if count > 1]
    yield "class names defined in several modules", len(repeated), repeated
    yield "module-level constants", sum(constants.values()), []
    yield "constant names defined more than once", len(again), again

    docs, messages = [], []
    for tree in trees.values():
        statements = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                (docs if node in statements else messages).append(node.value)
    for word in OPENINGS:
        yield f"docstrings that start with “{word}”", sum(bool(re.match(rf"\s*{word}\b", text)) for text in docs), []
    yield "docstrings that contain “refuse”", sum("refuse" in text.lower() for text in docs), []
    yield "other strings that contain “refuse”", sum("refuse" in text.lower() for text in messages), []

    beside = source.parent
    if (beside / "README.md").is_file():
        yield "words of README.md", len((beside / "README.md").read_text().split()), []
    yield "guides in docs/", len(list(beside.glob("docs/*.md"))), []
    for folder in ("tests", "hardening"):
        count = sum(len(path.read_text().splitlines()) for path in (beside / folder).rglob("*.py"))
        yield f"lines of {folder}/", count, []


def imported_modules(tree: ast.Module) -> set[str]:
    """Return the dotted names that a file imports anywhere, except for type checking only.

    Tables of lazily loaded names are plain dictionaries, so they do not count.
    """
    skipped: set[ast.AST] = set()
    found = set()
    for node in ast.walk(tree):  # parents come before what they contain
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            skipped.update(inner for statement in node.body for inner in ast.walk(statement))
        elif isinstance(node, ast.Import) and node not in skipped:
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in skipped:
            found.update([str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)])
    return found


def constant_names(tree: ast.Module) -> Iterator[str]:
    """Yield the UPPER_CASE names assigned at module level, each name of a tuple by itself."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name) and re.fullmatch("_?[A-Z][A-Z0-9_]*", part.id):
                        yield part.id


class Trace:
    """Record the package's files in which functions run, and the most of its frames on the stack of one thread.

    With ``start`` and ``stop``, count only from the first call of ``start`` until ``stop`` first returns.
    """

    def __init__(self, package: Path, start: CodeType | None = None, stop: CodeType | None = None) -> None:
        self.prefix, self.start, self.stop = f"{package}{os.sep}", start, stop
        self.active, self.stopped = start is None, False
        self.files: set[str] = set()
        self.frames = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Handle an event of ``sys.setprofile``."""
        code = frame.f_code
        if event == "call" and code is self.start and not self.stopped:
            self.active = True
        if event == "return" and code is self.stop and self.active:
            self.active, self.stopped = False, True
        if self.active and event == "call" and code.co_filename.startswith(self.prefix) and code.co_name != "<module>":
            self.files.add(code.co_filename.removeprefix(self.prefix))
            depth, caller = 0, frame
            while caller is not None:
                depth += caller.f_code.co_filename.startswith(self.prefix)
                caller = caller.f_back
            self.frames = max(self.frames, depth)

    def run(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Trace a call in this thread and in the threads it starts."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return {"files": sorted(self.files), "frames": self.frames}


class InlineExecutor:
    """Replacement for loky's process pool that runs each job at once in this process, where it can be traced."""

    def __init__(self, **_: Any) -> None:
        pass

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        """Run a job as a new worker would: on a copy of its argument, with empty caches."""
        clear_caches()
        future: Future[Any] = Future()
        future.set_result(function(pickle.loads(pickle.dumps(argument))))
        return future

    def shutdown(self, **_: Any) -> None:
        """Do nothing: there are no workers."""


def clear_caches() -> None:
    """Empty every ``lru_cache`` at module level in the package."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "compshift":
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()


def first_importable(candidates: tuple[str, ...]) -> CodeType:
    """Return the code of the first function that exists: ``module.function`` or ``module.Class.method``."""
    for candidate in candidates:
        owner, _, name = candidate.rpartition(".")
        module, _, class_name = owner.rpartition(".")
        try:
            is_method = class_name[0].isupper()
            found = (
                getattr(importlib.import_module(module), class_name) if is_method else importlib.import_module(owner)
            )
            return getattr(found, name).__code__  # type: ignore[no-any-return]
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"none of {', '.join(candidates)} exists: add the new name to the list in {__file__}")


def trace_calls(package: Path) -> dict[str, Any]:
    """Trace a fit and a benchmark on frozen features, each after a first run that imports what it needs."""
    import joblib.externals.loky
    import numpy as np

    import compshift
    from compshift.cli.main import main as command

    if Path(compshift.__file__).parent != package:
        raise SystemExit(f"compshift was imported from {compshift.__file__}, not from {package}")
    rng = np.random.default_rng(0)
    codes = np.repeat([(0, 0), (0, 1), (1, 0), (1, 1)], 40, axis=0)
    X = rng.normal(size=(len(codes), 3)) + codes @ rng.normal(size=(2, 3))
    seen = codes.sum(axis=1) < 2  # group (1, 1) is missing

    def fit() -> None:
        compshift.CRMClassifier().fit(X[seen], codes[seen, 0], attributes=codes[seen, 1:])

    def bench(folder: str) -> None:
        clear_caches()
        options = f"bench data.npz --methods crm --drop 1,1 --draws 1 --seeds 1 --jobs 1 --output {folder}"
        sys.argv = ["compshift", *options.split()]
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise

    joblib.externals.loky.get_reusable_executor = InlineExecutor
    fit()
    traced = {"fit": Trace(package).run(fit)}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        np.savez("data.npz", X=X, Z=codes, split=np.arange(len(codes)) % 3, attribute_names=["class", "place"])
        bench("first")
        job = Trace(package, first_importable(JOB_FUNCTIONS), first_importable(RECORD_WRITERS))
        traced["job"] = job.run(lambda: bench("job"))
        if not job.stopped:
            raise SystemExit("no job ran to its record: JOB_FUNCTIONS or RECORD_WRITERS name the wrong functions")
        traced["command"] = Trace(package).run(lambda: bench("command"))
        os.chdir(package)  # the folder is about to be removed
    return traced


def traced_measures(source: Path) -> Iterator[Measure]:
    """Yield the files and frames of the traced calls, made in a process that imports from ``source``."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "traced.json"
        path = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, __file__, "--source", str(source), "--trace-to", str(result)]
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}  # leave the checkout as it is
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the traced calls failed:\n{done.stdout}{done.stderr}")
        traced = json.loads(result.read_text())
    fit, job, whole = traced["fit"], traced["job"], traced["command"]
    yield "files run by `CRMClassifier().fit`", len(fit["files"]), fit["files"]
    yield "most frames on the stack in `CRMClassifier().fit`", fit["frames"], []
    yield "files run by one job of `compshift bench`, to its written record", len(job["files"]), job["files"]
    yield "files run by the whole `compshift bench` command", len(whole["files"]), whole["files"]


def main() -> None:
    """Print the table and, with ``--list``, the names behind its counts."""
    parser = argparse.ArgumentParser(description="Measure how hard the code base is to read.")
    own = Path(__file__).resolve().parents[1] / "src"
    parser.add_argument("--source", type=Path, default=own, help="src folder to measure (default: this checkout's)")
    parser.add_argument("--list", action="store_true", help="print the names behind the counts too")
    parser.add_argument("--trace-to", type=Path, help=argparse.SUPPRESS)  # used by the script for its own subprocess
    options = parser.parse_args()
    source = options.source.resolve()
    if options.trace_to:
        options.trace_to.write_text(json.dumps(trace_calls(source / "compshift")))
        return
    measures = [*static_measures(source), *traced_measures(source)]
    print("| measure | figure |\n|---|---:|")
    for label, figure, _ in measures:
        print(f"| {label} | {figure} |")
    for label, _, names in measures:
        if options.list and names:
            print(f"\n{label}:", *names, sep="\n- ")


if __name__ == "__main__":
    main()
