"""Settings of the whole suite."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: more threads would only wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("compshift", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("compshift")
