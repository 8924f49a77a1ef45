"""Which linear algebra library may use how many threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_inside = 0
_limit: Any = None


@contextmanager
def one_thread_for_scipy() -> Iterator[None]:
    """Keep SciPy's linear algebra to one thread.

    The wheels of NumPy and SciPy each bring a BLAS with a pool of threads that spin while they wait. In an optimiser
    the two take turns, and SciPy's idle threads slow NumPy's matrix products down two to four times; what SciPy itself
    computes there are short vectors. The limit holds for the whole process, so that of several fits at once the first
    sets it and the last lifts it.
    """
    global _inside, _limit
    with _lock:
        _inside += 1
        if _inside == 1:
            controller = ThreadpoolController()
            paths = [library["filepath"] for library in controller.info() if library["user_api"] == "blas"]
            ours = [path for path in paths if "scipy.libs" in Path(path).parts]
            _limit = controller.select(filepath=ours).limit(limits=1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limit.restore_original_limits()
