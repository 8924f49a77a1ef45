"""Executors that run jobs: processes on this machine, a Dask cluster or a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Protocol

from compshift._checks import check_count
from compshift._errors import InputError, unknown_name

BACKENDS = ("loky", "dask", "ray")

SCHEDULER_PATIENCE = 10.0
"""Seconds to wait for the answer of a scheduler."""

IDLE_SECONDS = 3600
"""Seconds after which a worker process without work ends."""

MAX_WORKER_GROWTH = 8 * 2**30
"""Bytes that a worker process may gain before loky replaces it."""


class Executor(Protocol):
    """Runs functions in other processes."""

    @property
    def slots(self) -> int:
        """Number of jobs that run side by side."""

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        """Call a function with an argument in a worker, and return a future of the result."""


@contextmanager
def start_executor(
    backend: str,
    jobs: int,
    *,
    threads: int = 1,
    scheduler: str | None = None,
    address: str | None = None,
    patience: float = SCHEDULER_PATIENCE,
) -> Iterator[Executor]:
    """Start the executor of a backend, with ``jobs`` processes if it is local, and stop it at the end."""
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    check_count(jobs, "jobs")
    for value, name, owner in ((scheduler, "scheduler", "dask"), (address, "address", "ray")):
        if value is not None and backend != owner:
            raise InputError(f"{name} is for the backend {owner!r}: leave it out, or use that backend")
    if backend == "loky":
        opened = _loky(jobs)
    elif backend == "dask":
        opened = _dask(jobs, scheduler, patience)
    else:
        opened = _ray(jobs, threads, address, patience)
    with opened as executor:
        yield executor


class _LokyExecutor:
    def __init__(self, jobs: int) -> None:
        self.slots = jobs

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        return self._executor().submit(function, argument)  # type: ignore[no-any-return]

    def _executor(self) -> Any:
        from joblib.externals.loky import get_reusable_executor

        # Returns a new pool if a worker has died. Workers keep their data loaded as long as there may be work.
        return get_reusable_executor(
            max_workers=self.slots, timeout=IDLE_SECONDS, initializer=_start_worker, initargs=(os.getpid(),)
        )

    def stop(self) -> None:
        self._executor().shutdown(wait=False, kill_workers=True)


def _start_worker(parent: int) -> None:
    """End this process when its parent is gone, and let it keep its data in memory.

    A parent that was killed cannot stop its workers. And loky takes memory growth of 300 MB for a leak and replaces
    the process; here the growth is the data.
    """
    from joblib.externals.loky import process_executor

    if hasattr(process_executor, "_MAX_MEMORY_LEAK_SIZE"):
        process_executor._MAX_MEMORY_LEAK_SIZE = MAX_WORKER_GROWTH

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _loky(jobs: int) -> Iterator[Executor]:
    executor = _LokyExecutor(jobs)
    try:
        with warnings.catch_warnings():
            # loky replaces a worker that has grown too much, and no job is lost.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
            yield executor
    finally:
        executor.stop()


class _DaskExecutor:
    def __init__(self, client: Any, patience: float) -> None:
        self.client, self.patience = client, patience
        self.executor = client.get_executor(pure=False)

    @property
    def slots(self) -> int:
        self._check_connected()
        return max(1, int(sum(self.client.nthreads().values())))

    def _check_connected(self) -> None:
        """Wait while the client reconnects, and raise if the scheduler is gone, so that no job is blamed for it."""
        limit = time.monotonic() + self.patience
        while self.client.status == "connecting" and time.monotonic() < limit:
            time.sleep(0.1)
        if self.client.status != "running":
            raise InputError("the Dask scheduler is gone: start it again, and the same command goes on from here")

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        self._check_connected()
        return self.executor.submit(function, argument)  # type: ignore[no-any-return]


@contextmanager
def _dask(jobs: int, scheduler: str | None, patience: float) -> Iterator[Executor]:
    _require("distributed", "dask")
    from distributed import Client, LocalCluster

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # a lost connection is reported in one sentence

    if scheduler is None:
        with (
            LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
            Client(cluster) as client,
        ):
            yield _DaskExecutor(client, patience)
        return
    _check_answers(scheduler, "scheduler", patience, greeting=not scheduler.startswith(("tls://", "ws")))
    try:
        client = Client(scheduler, timeout=patience)
    except Exception as error:  # a server of another kind can cause any error
        raise InputError(f"{scheduler!r} does not answer as a Dask scheduler ({_short(error)}): check it") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError:
            raise InputError(
                f"the Dask scheduler {scheduler!r} has no workers after {patience:g} s: start some, with "
                f"`dask worker {scheduler} --nthreads 1`"
            ) from None
        yield _DaskExecutor(client, patience)


class _RayExecutor:
    def __init__(self, slots: int, cpus: int) -> None:
        self.slots = slots
        self.cpus = cpus  # for each job

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        import ray

        task = ray.remote(function).options(num_cpus=self.cpus, max_retries=0)
        return task.remote(argument).future()  # type: ignore[no-any-return]


@contextmanager
def _ray(jobs: int, threads: int, address: str | None, patience: float) -> Iterator[Executor]:
    _require("ray", "ray")
    if address not in (None, "auto"):
        _check_answers(str(address), "address", patience)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # keep the user's CUDA_VISIBLE_DEVICES
    import ray

    quiet: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    if address is None:
        quiet["num_cpus"] = jobs
    try:
        ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **quiet)
    except Exception as error:  # ray has many error classes
        raise InputError(f"Ray cannot be reached at {address!r} ({_short(error)}): check the address") from None
    try:
        if address is None:
            yield _RayExecutor(jobs, 1)
        else:
            yield _RayExecutor(max(1, int(ray.cluster_resources().get("CPU", 1)) // threads), threads)
    finally:
        with suppress(Exception):
            ray.shutdown()


def _require(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise InputError(f"the backend {extra!r} is not installed: pip install 'compshift[{extra}]'")


def _check_answers(address: str, name: str, patience: float, *, greeting: bool = False) -> None:
    """Check within ``patience`` seconds that something listens at an address; the clients themselves may wait for ever.

    With ``greeting``, the server must send the first byte.
    """
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"{name} is {address!r}: pass an address with a port, as in tcp://10.0.0.1:8786")
    try:
        with socket.create_connection((host, int(port)), timeout=patience) as connection:
            if greeting and not connection.recv(1):
                raise OSError("the connection is closed at once")
    except (OSError, OverflowError) as error:
        raise InputError(
            f"nothing answers at {address!r} within {patience:g} s ({_short(error)}): start it there, or correct {name}"
        ) from None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
