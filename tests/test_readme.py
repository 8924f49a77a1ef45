"""The README's examples, run as they stand, in order."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import markdown_blocks

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return [block.text for block in markdown_blocks.blocks(README) if block.language == language]


def photographs(folder):
    """A table of photographs: discs and squares for the birds, red and blue for the places."""
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


@pytest.mark.filterwarnings("default")
def test_examples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in blocks("python"):
        if "import torch" in block and importlib.util.find_spec("torch") is None:
            continue
        exec(compile(block, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert re.search(r"worst group +0\.76\d\d +\(waterbird, land\)", printed)

    from sklearn.linear_model import LogisticRegression

    if "log_prob" in namespace:
        report = namespace["cs"].metrics.group_report(
            namespace["bird_new"],
            np.array(["landbird", "waterbird"])[namespace["log_prob"].argmax(dim=1)],
            namespace["place_new"],
        )
        assert report.worst > 0.7
    erm = LogisticRegression().fit(namespace["X"], namespace["bird"]).predict(namespace["X_new"])
    report = namespace["cs"].metrics.group_report(namespace["bird_new"], erm, namespace["place_new"])
    assert f"{report.worst:.2f}" == "0.30"

    counts = [("landbird", "land", 3500), ("landbird", "water", 1000), ("waterbird", "water", 2500)]
    rows = [f"{bird},{place}\n" * count for bird, place, count in counts]
    (tmp_path / "birds.csv").write_text("bird,place\n" + "".join(rows))
    outputs = []
    photographs(tmp_path)
    for line in "".join(blocks("console")).splitlines():
        command = shlex.split(line.removeprefix("$ "))
        assert command[0] == "compshift"
        if "photo" in line and importlib.util.find_spec("efficientnet_lite_pytorch") is None:
            continue
        if " report " in line and importlib.util.find_spec("altair") is None:
            continue
        if "birds-run" in line and importlib.util.find_spec("torch") is None:
            continue
        run = subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True)
        outputs.append(run.stdout)
    assert "\n".join(line.rstrip() for line in outputs[0].splitlines()) in README
    assert (tmp_path / "predictions.csv").exists()
    assert (tmp_path / "birds.html").exists() == (importlib.util.find_spec("altair") is not None)


def test_commands_and_picture_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path


def test_table_is_what_the_demo_prints():
    from compshift.studies.gaussian2d import run_gaussian2d

    study = run_gaussian2d()
    rows = {
        "(−1, −1), never seen": 0,
        "(−1, +1)": 1,
        "(+1, −1)": 2,
        "(+1, +1)": 3,
    }
    for label, position in rows.items():
        figures = " | ".join(f"{report.accuracy[position]:.3f}" for report in study.classes.values())
        assert f"| {label} | {figures} |" in README
    worst = " | ".join(f"{report.worst:.3f}" for report in study.classes.values())
    assert f"| worst group | {worst} |" in README
