"""How long a user waits before anything happens."""

from collections.abc import Iterator

from measure import Row, process_seconds


def rows() -> Iterator[Row]:
    """Cost of the import, and of the command line's help."""
    base = process_seconds("-c", "import numpy, scipy")
    light = process_seconds("-c", "import numpy, scipy, compshift")
    extra = light - base
    yield Row("import compshift", "import numpy, scipy", f"+{1000 * extra:.0f} ms", "+300 ms", extra < 0.3)
    help_ = process_seconds("-m", "compshift", "--help")
    yield Row("compshift --help", "the clock", f"{1000 * help_:.0f} ms", "500 ms", help_ < 0.5)
    numpy = process_seconds("-c", "import numpy")
    yield Row("compshift --help", "import numpy", f"{help_ / numpy:.1f}×", "3×", help_ < 3 * numpy)
