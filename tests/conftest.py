"""Settings of the whole suite."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: more threads would only wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
from collections import Counter

import pytest
from hypothesis import settings

settings.register_profile("compshift", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("compshift")

SHARE = int(os.environ.get("TESTS_SHARE", "1"))
"""Every how many-th test of a file is run."""


@pytest.hookimpl(trylast=True)  # after tests were selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first test of each file and every ``SHARE``-th one after it."""
    kept, left_out, count = [], [], Counter()
    for item in items:
        (left_out if count[item.path] % SHARE else kept).append(item)
        count[item.path] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True)
def _no_methods_of_plugins_are_left():
    """Remove the methods that a test added to the registry by a plugin file."""
    yield
    registry = sys.modules.get("compshift.methods.registry")
    if registry is not None:
        for name, method in list(registry.METHODS.items()):
            if method.__module__.startswith(registry.PLUGIN_MODULE):
                del registry.METHODS[name]
