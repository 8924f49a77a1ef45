"""Let atheris look for inputs that break the parsers of this package: guided by which of their lines an input reaches.

    python -m hardening.files.coverage_guided TARGET [SECONDS]

Not a part of `make hardening`: it needs atheris (`pip install atheris`, CPython 3.11 to 3.13), and finds more the
longer it runs. It ends at the first input that a reader neither answers nor refuses in one sentence, and keeps it in
out/fuzz/TARGET.
"""

import json
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["compshift.data", "compshift._files", "compshift.bench", "compshift.estimators"]
):
    from compshift._errors import InputError
    from compshift.bench.records import check_about, check_record
    from compshift.crm.io import from_file
    from compshift.data.feature_files import read_features
    from compshift.data.glue_cache import read_glue_cache
    from compshift.data.parquet_footer import column_chunks
    from compshift.data.table_files import read_manifest

from hardening.tally import unclear_text

FOLDER = Path(tempfile.mkdtemp(prefix="compshift-fuzz-"))


def _cache(content: bytes) -> None:
    path = FOLDER / "cache"
    path.write_bytes(content)
    read_glue_cache(path)


def _manifest(content: bytes) -> None:
    (FOLDER / "_features.json").write_bytes(content)
    read_manifest(FOLDER)


def _footer(content: bytes) -> None:
    path = FOLDER / "a.parquet"
    path.write_bytes(b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1")
    try:
        list(column_chunks(path))
    except ValueError as error:  # readers of tables make a sentence of it
        raise InputError(str(error)) from None


def _npz(content: bytes) -> None:
    path = FOLDER / "features.npz"
    path.write_bytes(content)
    read_features(path, ["a"])


def _header(content: bytes) -> None:
    import numpy as np

    one, two = np.zeros((1, 1), np.int64), np.zeros(1)
    arrays = {"seen_groups": one, "groups": one, "coef": np.zeros((1, 2)), "feature_mean": np.zeros(2)}
    arrays |= dict.fromkeys(("seen_weight", "bias", "learned_bias", "effective_sample_size"), two)
    arrays |= {"log_prior": two, "parameter_log_prior": two}
    header = json.loads(content)
    if isinstance(header, dict):
        from_file(header, arrays)


def _record(content: bytes) -> None:
    record = json.loads(content)
    if isinstance(record, dict):
        check_about(record) if "plans" in record else check_record(record)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "cache": _cache,
    "manifest": _manifest,
    "footer": _footer,
    "npz": _npz,
    "header": _header,
    "record": _record,
}


def seeds(target: str) -> list[bytes]:
    """Small valid inputs to start from."""
    from tests.data import trees
    from tests.report.records import Made

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


def main() -> None:
    """Run one target for some seconds."""
    target, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    corpus = Path("out/fuzz") / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)

    def one(content: bytes) -> None:
        try:
            TARGETS[target](content)
        except InputError as error:
            if unclear_text(str(error)) is not None:
                raise AssertionError(str(error)) from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            if target not in ("header", "record"):  # these are given text that was parsed before
                raise

    options = [f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/found-", "-max_len=4000", "-rss_limit_mb=3000"]
    atheris.Setup([sys.argv[0], str(corpus), "-timeout=20", *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
