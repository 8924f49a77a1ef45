"""Search for inputs that break the parsers, guided by coverage (needs atheris: CPython 3.11 to 3.13).

    python -m tests.hardening.fuzz TARGET [SECONDS]

It ends at the first input that a reader neither accepts nor rejects in one sentence, and keeps it in out/fuzz/TARGET.
"""

import json
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["compshift"]):
    import compshift as cs
    from compshift.bench.records import check_about, check_record
    from compshift.crm.io import unpack
    from compshift.data.glue_cache import read_glue_cache
    from compshift.data.shards import read_manifest
    from compshift.data.untrusted import column_chunks

from tests.data import trees
from tests.hardening.verdicts import unclear
from tests.report.records import Made

FILE = Path(tempfile.mkdtemp(prefix="compshift-fuzz-")) / "_features.json"
PARSED = ("header", "record")  # these functions are given JSON that was parsed before


def _footer(content: bytes) -> None:
    FILE.write_bytes(b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1")
    try:
        list(column_chunks(FILE))
    except ValueError as error:  # readers of tables turn it into a sentence
        raise cs.InputError(str(error)) from None


def _npz(content: bytes) -> None:
    path = FILE.with_name("features.npz")
    path.write_bytes(content)
    cs.data.read_features(path, ["a"])


def _header(content: bytes) -> None:
    one = np.zeros((1, 1), np.int64)
    arrays = {"seen_groups": one, "groups": one, "coef": np.zeros((1, 2)), "feature_mean": np.zeros(2)}
    names = ("seen_weight", "bias", "learned_bias", "effective_sample_size", "log_prior", "parameter_log_prior")
    header = json.loads(content)
    if isinstance(header, dict):
        unpack(header, arrays | dict.fromkeys(names, np.zeros(1)))


def _record(content: bytes) -> None:
    record = json.loads(content)
    if isinstance(record, dict):
        check_about(record) if "plans" in record else check_record(record)


TARGETS: dict[str, Callable[[bytes], object]] = {
    "cache": lambda content: (FILE.write_bytes(content), read_glue_cache(FILE)),
    "manifest": lambda content: (FILE.write_bytes(content), read_manifest(FILE.parent)),
    "footer": _footer,
    "npz": _npz,
    "header": _header,
    "record": _record,
}


def seeds(target: str) -> list[bytes]:
    """Return small valid inputs to start from."""
    if target == "cache":
        objects = trees.glue_features([1, 0], length=4)
        return [trees.pickled(objects, lambda found, p=p: pickle.dumps(found, protocol=p)) for p in (2, 3, 4)]
    if target == "record":
        return [json.dumps(Made().records()[0]).encode()]
    if target == "header":
        numbers = {"bias_gap": 0, "gradient": 0, "n_iter": 1, "converged": True, "n_targets": 1}
        parameters = {"alpha": 1, "prior": "uniform", "bias": "learned", "support": "all", "tol": 1, "max_iter": 1}
        header = {"names": ["a"], "values": [["x"]], "feature_names": None, "one_dimensional": True, **numbers}
        return [json.dumps({**header, "parameters": {**parameters, "verbose": False}}).encode()]
    return [b'{"shards": 1, "key": "k"}', b"\x15\x04\x19\x00\x16\x02\x19\x1c\x19\x1c\x00\x00\x00"]


def main(target: str, seconds: str = "60") -> None:
    """Run one target for some seconds."""
    corpus = Path("out/fuzz") / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)

    def one(content: bytes) -> None:
        try:
            TARGETS[target](content)
        except cs.InputError as error:
            if unclear(str(error)):
                raise AssertionError(str(error)) from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            if target not in PARSED:
                raise

    options = [f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/found-", "-max_len=4000", "-rss_limit_mb=3000"]
    atheris.Setup([sys.argv[0], str(corpus), "-timeout=20", *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
