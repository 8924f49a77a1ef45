"""Which linear algebra library may use how many threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread_for_scipy() -> Iterator[None]:
    """Keep SciPy's linear algebra to one thread.

    The wheels of NumPy and SciPy each bring a BLAS with a pool of threads that spin while they wait. In an optimiser
    the two take turns, and SciPy's idle threads slow NumPy's matrix products down two to four times; what SciPy itself
    computes there are short vectors.
    """
    controller = ThreadpoolController()
    paths = [library["filepath"] for library in controller.info() if library["user_api"] == "blas"]
    with controller.select(filepath=[path for path in paths if "scipy.libs" in Path(path).parts]).limit(limits=1):
        yield
