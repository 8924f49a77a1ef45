"""One training run as data: from options and a TOML file, to the run, and into its folder."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from compshift._errors import InputError, unknown_name
from compshift._files import check_apart, check_folder, check_ordinary
from compshift.cli.inputs import load_source, unnamed
from compshift.data.shards import check_readable
from compshift.data.shift import group_text, parse_groups, scenarios
from compshift.methods.base import Method
from compshift.methods.registry import make_method
from compshift.training.settings import Settings

TABLE = ("root", "path", "text", "features", "target", "attributes", "split_column", "shares")
BACKBONE = ("backbone", "pooling", "max_length")
LARGEST_FILE = 1 << 16
"""Bytes of a configuration: the reader of TOML takes ever longer for ever deeper keys."""

SETTINGS = tuple(field.name for field in fields(Settings))
KEYS = ("data", "method", "hyperparameters", "drop", *BACKBONE, *TABLE, *SETTINGS)


@dataclass(frozen=True, eq=False)
class TrainConfig:
    """Everything that decides about a run."""

    source: str
    output: Path
    method: Method
    options: Mapping[str, Any]  # by the names of ``KEYS``, as far as given

    @classmethod
    def read(
        cls, file: Path | None, given: Mapping[str, Any], hyperparameters: Sequence[str], output: Path | None
    ) -> TrainConfig:
        """Options over those of a file."""
        written = _read_toml(file) if file is not None else {}
        if given.get("method") not in (None, written.get("method")):
            written.pop("hyperparameters", None)  # they are of another method
        options = {**written, **given}
        if "source" in options:
            options["data"] = options.pop("source")
        for name in options:
            if name not in KEYS:
                raise unknown_name(f"option in {str(file)!r}", name, KEYS)
        if "data" not in options:
            raise InputError("there is nothing to train on: name a data set, a table or a feature file")
        if output is None:
            raise InputError("there is no folder for the run: pass one with -o")
        check_folder(output, "for the run with -o")
        check_readable(output)
        _check_kinds(options)
        check_apart(output, unnamed(options["data"]), options.get("root"), options.get("backbone"))
        own = dict(options.get("hyperparameters", {}))
        for text in hyperparameters:
            name, equals, value = text.partition("=")
            if not equals:
                raise InputError(f"--set is {text!r}: pass NAME=VALUE")
            own[name.strip()] = value.strip()
        return cls(str(options["data"]), output, make_method(options.get("method", "crm"), own), options)

    def run(
        self, *, device: str, workers: int | None, overwrite: bool, tensorboard: bool, quiet: bool
    ) -> dict[str, Any]:
        """Train, and give back what the run found."""
        from compshift.nn.networks import named_backbone
        from compshift.report.run_progress import run_listener
        from compshift.training.folder import RunFolder, read_json
        from compshift.training.loop import train

        settings_given = {name: self.options[name] for name in SETTINGS if name in self.options}
        Settings.from_dict(settings_given)
        table = {name: self.options[name] for name in TABLE if name in self.options}
        if "root" in table:
            table["root"] = Path(table["root"])
        source = load_source(self.source, **table, seed=int(settings_given.get("seed", 0)))
        settings = Settings.from_dict({"balanced_classes": source.balanced_classes, **settings_given})
        data = source.data
        if self.options.get("drop"):
            (scenario,) = scenarios(data, parse_groups(data.space, _listed(self.options["drop"])))
            data = scenario.apply(data)
        backbone = named_backbone(
            self.options.get("backbone"),
            data,
            settings.seed,
            geometry=source.geometry,
            max_length=self.options.get("max_length"),
            default_length=source.max_length,
            pooling=self.options.get("pooling", "auto"),
        )
        resolved = settings.resolved(backbone.kind, pretrained=backbone.pretrained)
        main = int(os.environ.get("RANK", "0")) == 0
        finished = RunFolder(self.output).result.exists() and not overwrite
        with run_listener(self.output, terminal=main and not quiet, tensorboard=main and tensorboard) as hears:
            train(
                data,
                self.method,
                backbone,
                settings,
                folder=self.output,
                overwrite=overwrite,
                device=device,
                workers=workers,
                inputs=source.inputs,
                files={"config.toml": self._as_toml(resolved, backbone.name)},
                listener=hears,
            )
        held_out = "test" in data.splits
        about = {"model": str(self.output), "method_name": self.method.name, "held_out": held_out, "new": not finished}
        return {**read_json(RunFolder(self.output).result), **about}

    def show(self, result: Mapping[str, Any], *, as_json: bool) -> None:
        """Print what was found, once for all processes."""
        from compshift.report.run_progress import print_run

        if int(os.environ.get("RANK", "0")) == 0:
            print_run(result, self.source, as_json=as_json)

    def _as_toml(self, settings: Settings, backbone: str) -> str:
        """The whole configuration, as a file that makes the same run again."""
        import tomli_w

        content = {name: self.options[name] for name in (*TABLE, *BACKBONE, "drop") if name in self.options}
        content |= {name: str(content[name]) for name in ("root",) if name in content}
        content |= {"data": self.source, "method": self.method.name, "backbone": backbone}
        content |= {name: value for name, value in settings.to_dict().items() if value is not None}
        content["hyperparameters"] = self.method.hyperparameters()
        return tomli_w.dumps(content)


def _listed(drop: Any) -> list[str]:
    """Groups, each as one text."""
    groups = [drop] if isinstance(drop, str) else list(drop)
    return [group if isinstance(group, str) else group_text(group) for group in groups]


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with check_ordinary(file, given_pipes=True).open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise InputError(f"the configuration {str(file)!r} has more than {LARGEST_FILE:,} bytes: it is none")
        text = content.decode("utf-8", errors="surrogateescape")  # names of files need not be text
        return {name.replace("-", "_"): value for name, value in tomllib.loads(text).items()}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration {str(file)!r} cannot be read ({error})") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the configuration {str(file)!r} is not TOML: {error}") from None


def _check_kinds(options: dict[str, Any]) -> None:
    """Refuse values of a file that are of another kind than the option; lists of names become texts with commas."""
    for name in ("attributes", "features", "text", "target"):
        if isinstance(options.get(name), list) and all(isinstance(part, str) for part in options[name]):
            options[name] = ",".join(options[name])
    if isinstance(options.get("root"), Path):
        options["root"] = str(options["root"])
    kinds = dict.fromkeys(("data", "method", *BACKBONE, *TABLE), "str") | {"max_length": "int"}
    kinds |= {field.name: str(field.type) for field in fields(Settings)}
    for name, value in options.items():
        if name == "hyperparameters":
            if not isinstance(value, dict):
                raise InputError(f"hyperparameters is {value!r}: write a table, [hyperparameters]")
            continue
        if name == "drop":
            if not isinstance(value, str | list) or not all(isinstance(group, str | list) for group in value):
                raise InputError(f"drop is {value!r}: pass groups as texts, as in drop = ['3,stripes']")
            continue
        kind = kinds[name].removesuffix(" | None")
        kinds_of: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool}
        right = kinds_of[kind]
        if not isinstance(value, right) or (isinstance(value, bool) and kind != "bool"):
            wanted = {"int": "a whole number", "float": "a number", "str": "a name", "bool": "true or false"}[kind]
            raise InputError(f"{name} is {value!r}: pass {wanted}")
