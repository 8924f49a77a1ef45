"""Executors that run jobs: processes on this machine, a Dask cluster or a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Protocol

from compshift._checks import check_count
from compshift._errors import InputError, unknown_name

BACKENDS = ("loky", "dask", "ray")
"""Names of the backends: local processes, a Dask cluster and a Ray cluster."""

MAX_WORKER_GROWTH = 8 * 2**30
"""Memory growth of a worker process, in bytes, above which loky replaces it."""


class Executor(Protocol):
    """Interface of all backends: runs functions in worker processes."""

    @property
    def slots(self) -> int:
        """Number of jobs that can run in parallel."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that run one job each at a time; empty if jobs choose a device themselves."""

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        """Call ``function(argument)`` in a worker, and return a future of the result."""


@contextmanager
def start_executor(
    backend: str,
    jobs: int,
    *,
    threads: int = 1,
    devices: Sequence[str] = (),
    scheduler: str | None = None,
    address: str | None = None,
    patience: float = 10.0,  # seconds to wait for a scheduler to answer
) -> Iterator[Executor]:
    """Start the executor of a backend, and stop it at the end of the block.

    A local executor has ``jobs`` worker processes; on a Ray cluster, a job takes ``threads`` CPUs. ``devices`` are
    devices that run one job each, as returned by ``bench_devices``. ``scheduler`` is the address of a Dask scheduler,
    and ``address`` that of a Ray cluster; None starts a local cluster. ``patience`` is the number of seconds to wait
    for an answer.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    check_count(jobs, "jobs")
    for value, name, owner in ((scheduler, "scheduler", "dask"), (address, "address", "ray")):
        if value is not None and backend != owner:
            raise InputError(f"{name} is for the backend {owner!r}: leave it out, or use backend {owner!r}")
    if backend == "loky":
        opened = _loky(jobs, tuple(devices))
    elif backend == "dask":
        opened = _dask(jobs, scheduler, patience)
    else:
        opened = _ray(jobs, threads, address, patience, gpus=bool(devices))
    with opened as executor:
        yield executor


def bench_devices(wanted: str | None, backend: str) -> list[str]:
    """Return the devices that fine-tuning jobs run on, one job each; [] if ``wanted`` is None.

    ``wanted`` is "all" or numbers of CUDA devices, separated by commas. Ray itself gives each worker a GPU, which the
    worker sees as its only one, so with Ray ``wanted`` can only be "all".
    """
    if wanted is None:
        return []
    if backend == "dask":
        raise InputError("devices cannot be chosen with the backend 'dask': use 'loky' or 'ray'")
    if backend == "ray":
        if wanted != "all":
            raise InputError(f"devices is {wanted!r}, but Ray itself assigns GPUs to workers: pass 'all'")
        return ["cuda"]
    import torch

    from compshift.training.optimiser import check_cuda_number

    count = torch.cuda.device_count()
    if wanted == "all" and not count:
        raise InputError("devices is 'all', but PyTorch finds no CUDA device: leave devices out")
    numbers = map(str, range(count)) if wanted == "all" else wanted.split(",")
    found = [f"cuda:{check_cuda_number(f'cuda:{number.strip()}')}" for number in numbers]
    if len(set(found)) < len(found):
        raise InputError(f"devices is {wanted!r}: list every device once")
    return found


class _LokyExecutor:
    def __init__(self, jobs: int, devices: tuple[str, ...] = ()) -> None:
        self.slots = jobs
        self.devices = devices

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        return self._executor().submit(function, argument)  # type: ignore[no-any-return]

    def _executor(self) -> Any:
        from joblib.externals.loky import get_reusable_executor

        # loky returns a new pool if a worker has died. The long timeout lets idle workers keep their data loaded.
        return get_reusable_executor(
            max_workers=self.slots,
            timeout=3600,  # seconds after which an idle worker process exits
            initializer=_start_worker,
            initargs=(os.getpid(),),
        )

    def stop(self) -> None:
        self._executor().shutdown(wait=False, kill_workers=True)


def _start_worker(parent: int) -> None:
    """Import what jobs need, and make this worker exit when its parent has died.

    A killed parent cannot stop its workers. By default loky treats 300 MB of memory growth as a leak and replaces the
    worker, but here the growth is the loaded data, so the limit is raised.
    """
    from joblib.externals.loky import process_executor

    if hasattr(process_executor, "_MAX_MEMORY_LEAK_SIZE"):
        process_executor._MAX_MEMORY_LEAK_SIZE = MAX_WORKER_GROWTH

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    import compshift.bench.jobs  # noqa: F401 - while the parent loads data


@contextmanager
def _loky(jobs: int, devices: tuple[str, ...]) -> Iterator[Executor]:
    executor = _LokyExecutor(jobs, devices)
    try:
        with warnings.catch_warnings():
            # loky warns when it replaces a worker that exceeds the memory limit, but no job is lost.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
            yield executor
    finally:
        executor.stop()


class _DaskExecutor:
    devices: tuple[str, ...] = ()

    def __init__(self, client: Any, patience: float) -> None:
        self.client, self.patience = client, patience
        self.executor = client.get_executor(pure=False)

    @property
    def slots(self) -> int:
        self._check_connected()
        return max(1, int(sum(self.client.nthreads().values())))

    def _check_connected(self) -> None:
        """Wait while the client reconnects; raise an InputError if the scheduler is lost.

        Without this check, a lost scheduler would be recorded as the failure of a job.
        """
        limit = time.monotonic() + self.patience
        while self.client.status == "connecting" and time.monotonic() < limit:
            time.sleep(0.1)
        if self.client.status != "running":
            raise InputError(
                "the connection to the Dask scheduler is lost: restart the scheduler, then run the same command again "
                "to continue"
            )

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        self._check_connected()
        return self.executor.submit(function, argument)  # type: ignore[no-any-return]


@contextmanager
def _dask(jobs: int, scheduler: str | None, patience: float) -> Iterator[Executor]:
    _require("distributed", "dask")
    from distributed import Client, LocalCluster

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # _check_connected reports a lost connection

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
    except Exception as error:  # a server that is not a Dask scheduler can cause any error
        raise InputError(
            f"the server at {scheduler!r} is not a Dask scheduler ({_short(error)}): pass the address of one"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError:
            raise InputError(
                f"the Dask scheduler {scheduler!r} has no workers after {patience:g} s: start workers with "
                f"`dask worker {scheduler} --nthreads 1`"
            ) from None
        yield _DaskExecutor(client, patience)


class _RayExecutor:
    def __init__(self, slots: int, cpus: int, *, gpus: bool) -> None:
        self.slots = slots
        self.cpus = cpus  # CPUs per job
        self.gpus = int(gpus)  # GPUs per job
        self.devices = ("cuda",) * slots if gpus else ()

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        import ray

        task = ray.remote(function).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)
        return task.remote(argument).future()  # type: ignore[no-any-return]


@contextmanager
def _ray(jobs: int, threads: int, address: str | None, patience: float, *, gpus: bool) -> Iterator[Executor]:
    _require("ray", "ray")
    if address not in (None, "auto"):
        _check_answers(str(address), "address", patience)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # keep the user's CUDA_VISIBLE_DEVICES
    import ray

    local: dict[str, Any] = {"include_dashboard": False, "num_cpus": jobs} if address is None else {}
    try:
        ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **local)
    except Exception as error:  # ray has many error classes
        problem = (
            "a local Ray cluster cannot be started" if address is None else f"Ray cannot be reached at {address!r}"
        )
        remedy = "use another backend" if address is None else "pass the address of a running cluster"
        raise InputError(f"{problem} ({_short(error)}): {remedy}") from None
    try:
        found = ray.cluster_resources()
        if gpus:
            if found.get("GPU", 0) < 1:
                raise InputError("devices is 'all', but the Ray cluster has no GPUs: leave devices out")
            yield _RayExecutor(int(found["GPU"]), 1, gpus=True)
        elif address is None:
            yield _RayExecutor(jobs, 1, gpus=False)
        else:
            yield _RayExecutor(max(1, int(found.get("CPU", 1)) // threads), threads, gpus=False)
    finally:
        with suppress(Exception):
            ray.shutdown()


def _require(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise InputError(f"the backend {extra!r} is not installed: run pip install 'compshift[{extra}]'")


def _check_answers(address: str, name: str, patience: float, *, greeting: bool = False) -> None:
    """Check within ``patience`` seconds that a server answers at an address, because clients could wait for ever.

    With ``greeting``, the server must also send a first byte.
    """
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"{name} is {address!r}: pass an address with a port, such as tcp://10.0.0.1:8786")
    try:
        with socket.create_connection((host, int(port)), timeout=patience) as connection:
            if greeting and not connection.recv(1):
                raise OSError("the server closed the connection")
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no server answers at {address!r} within {patience:g} s ({_short(error)}): start the server, or pass "
            "another address"
        ) from None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
