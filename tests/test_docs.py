"""Check the documentation: its examples run, it names everything that is public, and its links resolve."""

import importlib
import importlib.util
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import typer

import compshift
from compshift.cli.main import app
from tests.markdown_blocks import blocks, run_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "gallery" not in path.parts)
RUN = ["tutorial", "practitioners", "researchers", "engineers", "install"]
PUBLIC = [
    "compshift",
    *(f"compshift.{part}" for part in ("data", "metrics", "nn", "features", "methods", "training", "hub", "mlflow")),
]


def photographs(folder):
    """Write a table of photographs: discs and squares for the birds, red and blue for the places."""
    if importlib.util.find_spec("PIL") is None:
        return
    from PIL import Image, ImageDraw

    (folder / "photos").mkdir()
    rows = ["photo,bird,place"]
    for number in range(20):
        bird, place = number % 2, number // 2 % 2
        picture = Image.new("RGB", (64, 64), ["red", "blue"][place])
        draw = ImageDraw.Draw(picture)
        [draw.ellipse, draw.rectangle][bird]((12, 12, 40 + number, 40 + number), fill="white")
        picture.save(folder / f"photos/{number}.png")
        if (bird, place) != (1, 0):
            rows.append(f"photos/{number}.png,{['landbird', 'waterbird'][bird]},{['land', 'water'][place]}")
    (folder / "photos.csv").write_text("\n".join(rows) + "\n")


def installed(package):
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


@pytest.mark.parametrize("name", RUN)
@pytest.mark.filterwarnings("default")
def test_examples_print_what_is_shown(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "practitioners":
        photographs(tmp_path)
    names = run_page(DOCS / f"{name}.md")
    if name == "practitioners":
        assert (tmp_path / "predictions.csv").exists()
        assert (tmp_path / "birds.html").exists() == installed("altair")
        assert (tmp_path / "photo-predictions.csv").exists() == installed("efficientnet_lite_pytorch")
    if name == "engineers":
        assert (tmp_path / "fine-tuned.csv").exists() == installed("torch")
        if installed("onnxruntime"):  # the file predicts under another prior what the classifier does
            clf = names["streamed"].set_prior(np.where(np.arange(4) == 2, 3.0, 1.0) / 6)
            np.testing.assert_allclose(names["probabilities"], clf.predict_proba(names["X"]), atol=1e-5)


def granted():
    """Names that some pages use without defining them: features, a class, an attribute and unlabelled rows."""
    rng = np.random.default_rng(0)
    z = np.repeat([(first, second) for first in range(3) for second in range(3)][1:], 20, axis=0)
    X = rng.normal(size=(len(z), 4)) + 2 * np.pad(z, [(0, 0), (0, 2)])
    return {"cs": compshift, "X": X, "X_unlabelled": X, "y": z[:, 0], "a": z[:, 1], "attributes": z[:, 1]}


@pytest.mark.filterwarnings("default")
def test_examples_of_unseen_groups(tmp_path, monkeypatch):
    import sklearn
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import GridSearchCV

    monkeypatch.chdir(tmp_path)
    booster = partial(HistGradientBoostingClassifier, max_iter=5)
    names = {"sklearn": sklearn, "GridSearchCV": GridSearchCV, "HistGradientBoostingClassifier": booster}
    run_page(DOCS / "unseen.md", {**granted(), **names})


def test_the_method_that_contributors_read(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    method = run_page(ROOT / "CONTRIBUTING.md")["SmoothedERM"]
    data = compshift.data.benchmark("penguins").features()
    settings = compshift.training.Settings(steps=3, batch_size=8)
    clf = compshift.training.train(data, method(0.2), "linear", settings, device="cpu")
    assert clf.method.hyperparameters() == {"smoothing": 0.2}


def test_another_output_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```\n2\n```\n")
    with pytest.raises(AssertionError, match="shows another output"):
        run_page(page)
    (block, _) = blocks(page.read_text().replace("```python", "<!-- needs torch -->\n```python\nimport absent_package"))
    assert block.needs == ("torch", "absent_package")
    assert not block.runs_here


@pytest.mark.parametrize("package", PUBLIC)
def test_reference_has_every_public_name(package):
    """Public names have a directive, subpackages a section."""
    reference = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    for name in importlib.import_module(package).__all__:
        if f"{package}.{name}" in PUBLIC:
            assert re.search(rf"^## compshift\.{name}$", reference, flags=re.MULTILINE), name
        elif name == "__version__":
            assert "`cs.__version__`" in reference
        else:
            assert re.search(rf"^\.\. \S+:: {re.escape(package)}\.{name}$", reference, flags=re.MULTILINE), name


def test_every_public_name_answers_a_question():
    page = (DOCS / "index.md").read_text()
    for package in PUBLIC:
        for name in importlib.import_module(package).__all__:
            if f"{package}.{name}" not in PUBLIC and name not in ("__version__", "registry", "Extraction"):
                assert re.search(rf"\b{name}\b", page), f"{package}.{name}"


def commands(command, path="compshift"):
    """Every command by its full name."""
    for name, part in command.commands.items():
        yield from commands(part, f"{path} {name}") if hasattr(part, "commands") else [(f"{path} {name}", part)]


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_answers_a_question():
    page = (DOCS / "index.md").read_text()
    for name in COMMANDS:
        assert re.search(rf"{name}\b", page), name


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_options_exist(page):
    """Every option that is written after a command, on the same line, is one of that command."""
    for line in re.split(r"[`\n]|(?=compshift \w)", page.read_text().replace("\\\n", " ")):
        name = max((name for name in COMMANDS if re.match(rf"{name}\b", line)), key=len, default=None)
        if name is not None:
            known = {option for parameter in COMMANDS[name].params for option in parameter.opts} | {"--help", "--debug"}
            for option in re.findall(r"(?<=[\s\[])--?[a-z][a-z0-9-]*", line.partition("#")[0]):
                assert option in known, f"{name} has no {option}, in {page.name}"


def anchors(text):
    """Anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def included(path):
    """The text of a page, with what it includes."""
    text = path.read_text()
    return text + "".join((path.parent / name).read_text() for name in re.findall(r"^```{include} (\S+)$", text, re.M))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{target} in {page.name}"
        if anchor:
            assert anchor in anchors(included(other)), f"{target} in {page.name}"


def test_every_page_is_listed():
    """Every page is in a toctree of the first page or of the API reference."""
    listed = set()
    for start in (DOCS / "index.md", DOCS / "api" / "index.md"):
        for tree in re.findall(r"^```{toctree}\n(.*?)^```$", start.read_text(), flags=re.MULTILINE | re.DOTALL):
            entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
            listed |= {(start.parent / re.sub(r".*<(.+)>", r"\1", entry)).resolve() for entry in entries}
    assert {path.with_suffix("").resolve() for path in PAGES} - listed == {(DOCS / "index").resolve()}
