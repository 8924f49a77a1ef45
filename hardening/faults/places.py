"""Outputs and inputs that may not be used: no rights, read-only, of the wrong kind, a link to nowhere, or gone."""

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from hardening.faults.disks import can_mount, judged, small_disk
from hardening.faults.forked import run_forked
from hardening.faults.injection import no_rights, watch
from hardening.faults.scenes import numbers
from hardening.faults.verdicts import (
    REFERENCES,
    Failure,
    Fault,
    Verdict,
    half_written,
    lost,
    one_sentence,
    same_end,
    unlike,
)

PART = "places"


def place_faults() -> list[Fault]:
    """Every command, in every wrong place."""
    faults = []

    def add(what: str, name: str, call: Callable[..., Verdict], *arguments: Any) -> None:
        faults.append(Fault(PART, f"{name}, {what}", partial(call, name, *arguments)))

    for name, reference in unlike():
        add("no right to write", name, no_right_to_write)
        add("no right to read the input", name, no_right_to_read)
        add("output of another kind", name, another_kind)
        add("output is a link to nowhere", name, link_to, "nowhere/there")
        add("output is a link to itself", name, link_to, reference.scene.output)
        add("output is a link to /dev/full", name, link_to, "/dev/full")
        add("standard output is full", name, full_standard_output)
        if can_mount():
            add("read-only disk", name, read_only_disk)
        if reference.scene.resumes:
            for number in numbers(reference.events, 4):
                add(f"folder deleted at change {number}", name, deleted, number)
    return faults


def no_right_to_write(name: str, cwd: Path) -> Verdict:
    """The folder belongs to somebody else."""
    reference = REFERENCES[name]
    cwd.chmod(0o555)
    ended = reference.scene.run(cwd, no_rights)
    cwd.chmod(0o755)
    return _refused(name, cwd, ended)


def no_right_to_read(name: str, cwd: Path) -> Verdict:
    """The input, or a file of it, is closed to us."""
    scene = REFERENCES[name].scene
    source = next((Path(word) for word in scene.arguments if word.startswith("/")), None)
    if source is None:
        return "answered"  # it reads nothing of the user's
    closed = source / "bench.json" if source.is_dir() else source
    moved = cwd / source.name
    subprocess.run(["cp", "-r", str(source), str(moved)], check=True)
    (cwd / closed.relative_to(source.parent)).chmod(0)
    cwd.chmod(0o777)
    arguments = [str(moved) if word == str(source) else word for word in scene.arguments]
    ended = run_forked(arguments, cwd, no_rights)
    failure = one_sentence(ended)
    if failure or (cwd / scene.output).is_file():
        return failure or lost("there is an output without an input")
    (cwd / closed.relative_to(source.parent)).chmod(0o644)
    again = run_forked(arguments, cwd, no_rights)
    return "refused" if again.code == 0 else lost(f"then it ended with {again.code}: {again.err[-300:]}")


def another_kind(name: str, cwd: Path) -> Verdict:
    """A file where a folder is wanted, or a folder where a file is."""
    scene = REFERENCES[name].scene
    path = cwd / scene.output
    if scene.resumes:
        path.write_text("mine\n")
    else:
        path.mkdir()
    ended = scene.run(cwd)
    if path.is_file() and path.read_text() != "mine\n":
        return lost("somebody else's file was overwritten")
    path.unlink() if path.is_file() else path.rmdir()
    return _refused(name, cwd, ended)


def link_to(name: str, target: str, cwd: Path) -> Verdict:
    """A symbolic link that cannot be written through."""
    scene = REFERENCES[name].scene
    (cwd / scene.output).symlink_to(target)
    ended = scene.run(cwd)
    if not (cwd / scene.output).is_symlink():
        return lost("the link was replaced")
    (cwd / scene.output).unlink()
    return _refused(name, cwd, ended)


def full_standard_output(name: str, cwd: Path) -> Verdict:
    """What is printed cannot be written; files are written before it."""
    reference = REFERENCES[name]

    def inject() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    ended = reference.scene.run(cwd, inject)
    if ended.code == 0 and not reference.out:
        return same_end(reference, cwd, "nothing to print")
    return judged(reference, cwd, ended) if ended.code else Failure("internal error", "exit code 0 without output")


def read_only_disk(name: str, cwd: Path) -> Verdict:
    """A file system that takes nothing."""
    reference = REFERENCES[name]
    with small_disk(cwd, "20m"):
        subprocess.run(["mount", "-o", "remount,ro", str(cwd)], check=True)
        ended = reference.scene.run(cwd)
        subprocess.run(["mount", "-o", "remount,rw", str(cwd)], check=True)
        return _refused(name, cwd, ended)


def deleted(name: str, number: int, cwd: Path) -> Verdict:
    """Somebody removes the folder of the results while they are made."""
    reference = REFERENCES[name]

    def act(seen: int, *_: Any) -> None:
        if seen == number:
            rmtree(cwd / reference.scene.output, ignore_errors=True)

    return judged(reference, cwd, reference.scene.run(cwd, lambda: watch(act)))


def _refused(name: str, cwd: Path, ended: Any) -> Verdict:
    """It must have been refused, and go well once the place is right."""
    reference = REFERENCES[name]
    if ended.code == 0:
        return lost("it says that all went well")
    found = half_written(reference, cwd, old=False)
    return lost(found) if found else judged(reference, cwd, ended)
