"""Configuration of a training run: read it from options and a TOML file, run it, and save it with the run."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from compshift._errors import InputError, check_name, unknown_name
from compshift._files import check_apart, check_folder, check_ordinary
from compshift.bench.protocol import PROTOCOLS, Protocol, named_protocol
from compshift.cli.inputs import TableOptions, load_pool, load_source, path_of
from compshift.cli.options import assignments
from compshift.data.benchmarks import MODULES, benchmark
from compshift.data.shards import check_readable
from compshift.data.shift import group_text, parse_groups, scenarios
from compshift.methods.base import Method
from compshift.methods.registry import make_method, method_class
from compshift.training.settings import Settings

TABLE_KEYS = ("root", "path", "text", "columns", "target", "attributes", "split_column", "shares")
"""Configuration keys that say how to read the data."""

BACKBONE_KEYS = ("backbone", "weights", "pooling", "max_length", "dropout")
"""Configuration keys of the backbone."""

PROTOCOL_KEYS = ("protocol", "protocol_set")
"""Configuration keys of the protocol: its name, and a table of changes to its settings."""

CHANGED_KEYS = {
    "select": "metric",
    "bias_rows": "refresh_rows",
    "validation_bias": "predictor",
    "validation_prior": "predictor",
}
"""Protocol setting → configuration key, where the two have different names."""

MAX_FILE_BYTES = 1 << 16
"""Maximum size of a configuration file, because parsing deeply nested TOML keys is slow."""

SETTINGS_KEYS = tuple(field.name for field in fields(Settings))
"""Configuration keys of the training loop."""

KEYS = (
    "data",
    "unlabelled",
    "method",
    "hyperparameters",
    "drop",
    *PROTOCOL_KEYS,
    *BACKBONE_KEYS,
    *TABLE_KEYS,
    *SETTINGS_KEYS,
)
"""All keys that a configuration file may have."""


@dataclass(frozen=True, eq=False)
class TrainConfig:
    """Everything that determines a training run."""

    source: str
    output: Path
    method: str
    hyperparameters: Mapping[str, Any]  # those of the method that were set
    options: Mapping[str, Any]  # options that were set, by key (see ``KEYS``)

    @classmethod
    def read(
        cls, file: Path | None, given: Mapping[str, Any], hyperparameters: Sequence[str], output: Path | None
    ) -> TrainConfig:
        """Read a TOML file, override it with the options on the command line (``given``), and check the result."""
        in_file = _read_toml(file) if file is not None else {}
        if given.get("method") not in (None, in_file.get("method")):
            in_file.pop("hyperparameters", None)  # those of another method
        options = _merged(in_file, given)
        if "source" in options:
            options["data"] = options.pop("source")
        for name in options:
            if name not in KEYS:
                raise unknown_name(f"option in {str(file)!r}", name, KEYS)
        if "data" not in options:
            raise InputError("there is no training data: name a data set, a table or a feature file")
        if output is None:
            raise InputError("there is no output folder: pass a folder for the run with -o")
        check_folder(output, "for the run with -o")
        check_readable(output)
        _check_types(options)
        inputs = (options.get("unlabelled"), options.get("root"), options.get("backbone"))
        check_apart(output, path_of(options["data"]), *inputs)
        name = options.get("method", "crm")
        values = {**options.get("hyperparameters", {}), **assignments(hyperparameters, "--set")}
        if "protocol" in options:
            check_name("protocol", options["protocol"], PROTOCOLS)
        elif "protocol_set" in options:
            raise InputError("there is no protocol to change: pass --protocol with --protocol-set")
        make_method(name, values)  # checks them, before the data are read
        return cls(str(options["data"]), output, name, values, options)

    def run(
        self, *, device: str, workers: int | None, overwrite: bool, trackers: Sequence[str], quiet: bool
    ) -> dict[str, Any]:
        """Train, and return the results of the run."""
        from compshift.nn.networks import named_backbone
        from compshift.report.run_progress import run_listener
        from compshift.training.finetuning import train
        from compshift.training.folder import RunFolder, read_json
        from compshift.training.trackers import check_trackers

        check_trackers(trackers)  # before the data are read
        settings_given: dict[str, Any] = {name: self.options[name] for name in SETTINGS_KEYS if name in self.options}
        backbone_given: dict[str, Any] = {name: self.options[name] for name in BACKBONE_KEYS if name in self.options}
        Settings.from_dict(settings_given)
        columns = {name: self.options[name] for name in TABLE_KEYS if name in self.options}
        if "root" in columns:
            columns["root"] = Path(columns["root"])
        source = load_source(self.source, TableOptions(**columns, seed=int(settings_given.get("seed", 0))))
        data, pool = source.data, None
        if "unlabelled" in self.options:
            pool = load_pool(Path(self.options["unlabelled"]), source, self.source, columns.get("root"))
        own: dict[str, Any] = {}
        if "protocol" in self.options:
            protocol = self._protocol(data.kind)
            common, own = protocol.middle(protocol.method_ranges(self.method, method_class(self.method).ranges))
            settings_given = {"steps": protocol.steps, **common, **protocol.training_settings(), **settings_given}
            backbone_given = {**protocol.backbone_settings(data.kind), **backbone_given}
        method = make_method(self.method, {**own, **self.hyperparameters})
        settings = Settings.from_dict({"balanced_classes": source.balanced_classes, **settings_given})
        if self.options.get("drop"):
            (scenario,) = scenarios(data, parse_groups(data.space, _listed(self.options["drop"])))
            data = scenario.apply(data)
        backbone = named_backbone(
            backbone_given.pop("backbone", None),
            data,
            settings.seed,
            geometry=source.geometry,
            default_length=source.max_length,
            **backbone_given,
        )
        resolved = settings.resolved(backbone.kind, pretrained=backbone.pretrained)
        main = int(os.environ.get("RANK", "0")) == 0
        finished = RunFolder(self.output).result_path.exists() and not overwrite
        with run_listener(quiet=quiet or not main) as listener:
            train(
                data,
                method,
                backbone,
                settings,
                folder=self.output,
                overwrite=overwrite,
                device=device,
                workers=workers,
                inputs=source.inputs,
                files={"config.toml": self._as_toml(resolved, backbone.name, method)},
                listener=listener,
                unlabelled=pool,
                trackers=trackers,
            )
        held_out = "test" in data.splits
        about = {"model": str(self.output), "method_name": self.method, "held_out": held_out, "new": not finished}
        return {**read_json(RunFolder(self.output).result_path), **about}

    def _protocol(self, kind: str) -> Protocol:
        """Return the protocol of the run for samples of a kind."""
        from compshift.nn.backbones import FRESH

        if kind == "features":
            raise InputError(
                "training protocols are for images and texts, but the samples are features: leave out --protocol"
            )
        known = benchmark(self.source) if self.source in MODULES else None
        about: dict[str, Any] = {
            "kind": kind,
            "dataset": None if known is None else known.name,
            "bundled": known is not None and known.bundled,
            "changes": self.options.get("protocol_set"),
        }
        name = self.options["protocol"]
        network = self.options.get("backbone") or named_protocol(name, **about).backbone
        own: dict[str, Any] = {key: self.options.get(key) for key in ("backbone", "steps")}
        return named_protocol(name, **about, fresh=network in FRESH, **own)

    def show(self, result: Mapping[str, Any], *, as_json: bool) -> None:
        """Print the results of the run; only the first process prints."""
        from compshift.report.run_progress import print_run

        if int(os.environ.get("RANK", "0")) == 0:
            print_run(result, self.source, as_json=as_json)

    def _as_toml(self, settings: Settings, backbone: str, method: Method) -> str:
        """Return the whole configuration as TOML; `compshift train --config` repeats the run with it."""
        import tomli_w

        kept = (*TABLE_KEYS, *BACKBONE_KEYS, *PROTOCOL_KEYS, "drop", "unlabelled")
        content = {name: self.options[name] for name in kept if name in self.options}
        content |= {name: str(content[name]) for name in ("root",) if name in content}
        content |= {"data": self.source, "method": self.method, "backbone": backbone}
        content |= {name: value for name, value in settings.to_dict().items() if value is not None}
        content["hyperparameters"] = method.hyperparameters()
        return tomli_w.dumps(content)


def _merged(in_file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Override the options of a file with those on the command line.

    If the command line names another protocol than the file, it overrides all settings that a protocol decides;
    otherwise --protocol-set overrides the file's values of the settings that it changes.
    """
    options = dict(in_file)
    changes: dict[str, Any] = dict(given.get("protocol_set", {}))
    if given.get("protocol") not in (None, options.get("protocol")):
        every = named_protocol("paper", kind="text")  # the protocol "compshift" does not list every setting
        decided = {"steps", "protocol_set", *every.ranges, *every.methods, *every.training_settings()}
        decided |= {*every.backbone_settings("text")}
    else:
        decided = {CHANGED_KEYS.get(name, name) for name in changes}
        if isinstance(options.get("protocol_set"), dict):
            changes = {**options["protocol_set"], **changes}
    if isinstance(options.get("hyperparameters"), dict):
        method = given.get("method") or options.get("method", "crm")
        options["hyperparameters"] = {
            name: value for name, value in options["hyperparameters"].items() if f"{method}.{name}" not in decided
        }
    kept = {name: value for name, value in options.items() if name not in decided}
    return {**kept, **given, **({"protocol_set": changes} if changes else {})}


def _listed(drop: Any) -> list[str]:
    """Return the dropped groups as a list of texts, one per group."""
    groups = [drop] if isinstance(drop, str) else list(drop)
    return [group if isinstance(group, str) else group_text(group) for group in groups]


def _read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a configuration file."""
    try:
        with check_ordinary(file, given_pipes=True).open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InputError(
                f"the configuration {str(file)!r} is larger than {MAX_FILE_BYTES:,} bytes: pass a TOML file that "
                "contains only options"
            )
        text = content.decode("utf-8", errors="surrogateescape")  # file names may hold bytes that are not UTF-8
        return {name.replace("-", "_"): value for name, value in tomllib.loads(text).items()}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration {str(file)!r} cannot be read ({error}): check its path") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the configuration {str(file)!r} is not valid TOML ({error}): correct the file") from None


def _check_types(options: dict[str, Any]) -> None:
    """Check the types of the options; join lists of names with commas, in place."""
    for name in ("attributes", "columns", "text", "target"):
        if isinstance(options.get(name), list) and all(isinstance(part, str) for part in options[name]):
            options[name] = ",".join(options[name])
    for name in ("root", "weights"):
        if isinstance(options.get(name), Path):
            options[name] = str(options[name])
    type_names = dict.fromkeys(("data", "unlabelled", "method", "protocol", *BACKBONE_KEYS, *TABLE_KEYS), "str")
    type_names |= {"max_length": "int", "dropout": "float"}
    type_names |= {field.name: str(field.type) for field in fields(Settings)}
    for name, value in options.items():
        if name in ("hyperparameters", "protocol_set"):
            if not isinstance(value, dict):
                raise InputError(f"{name} is {value!r}: write a TOML table, [{name}]")
            continue
        if name == "drop":
            if not isinstance(value, str | list) or not all(isinstance(group, str | list) for group in value):
                raise InputError(f"drop is {value!r}: pass a list of groups, such as drop = ['3,stripes']")
            continue
        expected = type_names[name].removesuffix(" | None")
        types: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool}
        if not isinstance(value, types[expected]) or (isinstance(value, bool) and expected != "bool"):
            words = {"int": "an integer", "float": "a number", "str": "text in quotes", "bool": "true or false"}
            raise InputError(f"{name} is {value!r}: pass {words[expected]}")
