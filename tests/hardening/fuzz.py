"""Search for files that break a reader, guided by coverage (needs atheris: CPython 3.11 to 3.13).

    python -m tests.hardening.fuzz FORMAT [SECONDS]

FORMAT is a name in formats.py, such as npz. The search ends at the first file that is neither accepted nor rejected in
one sentence, and keeps it in out/fuzz/FORMAT.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["compshift"]):
    from tests.hardening.formats import MAKERS
from tests.hardening.verdicts import Tally


def main(name: str, seconds: str = "60") -> None:
    """Read changed files of one format for some seconds."""
    forms = {form.name: form for make in MAKERS for form in make(Path(tempfile.mkdtemp(prefix="compshift-fuzz-")))}
    if name not in forms:
        raise SystemExit(f"there is no format {name!r}: use one of {', '.join(forms)}")
    form = forms[name]
    corpus = Path("out/fuzz") / name
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "valid").write_bytes(form.file.read_bytes())

    def one(content: bytes) -> None:
        form.file.write_bytes(content)
        tally = Tally(name, "files")
        tally.attempt(name, form.read, form.check)
        assert not tally.failures, tally.failures

    limits = [f"-max_total_time={seconds}", "-max_len=20000", "-rss_limit_mb=3000", "-timeout=20"]
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={corpus}/found-", *limits], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
