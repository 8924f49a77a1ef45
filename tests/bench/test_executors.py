"""Executors on real backends, and addresses that do not answer in time."""

import socket
import threading
import time

import pytest

from compshift import InputError
from compshift.bench.executors import bench_devices, start_executor


def test_addresses_without_a_server_raise_in_time():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for backend, option in (("dask", "scheduler"), ("ray", "address")):
        pytest.importorskip("distributed" if backend == "dask" else "ray")
        for address, sentence in (
            (f"127.0.0.1:{port}", "no server answers at .* within 2 s"),
            ("nowhere", "pass an address with a port"),
            ("host:port", "pass an address with a port"),
            ("127.0.0.1:99999", "no server answers"),
        ):
            start = time.monotonic()
            with pytest.raises(InputError, match=sentence), start_executor(backend, 1, patience=2, **{option: address}):
                pass
            assert time.monotonic() - start < 10


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "another server"])
def test_servers_of_another_kind_raise_in_time(answer):
    pytest.importorskip("distributed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_connections = []

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                open_connections.append(connection)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(InputError, match=r"no server answers|is not a Dask scheduler"),
            start_executor("dask", 1, scheduler=address, patience=2),
        ):
            pass
        for connection in open_connections:
            connection.close()


def test_addresses_for_another_backend_raise():
    with (
        pytest.raises(InputError, match="scheduler is for the backend 'dask'"),
        start_executor("loky", 1, scheduler="a:1"),
    ):
        pass
    with pytest.raises(InputError, match="address is for the backend 'ray'"), start_executor("loky", 1, address="a:1"):
        pass
    with pytest.raises(InputError, match="backend 'spark' is not known"), start_executor("spark", 1):
        pass
    with pytest.raises(InputError, match="jobs is 0"), start_executor("loky", 0):
        pass


def test_a_lost_scheduler_raises_one_sentence():
    from compshift.bench.executors import _DaskExecutor

    class Client:
        status = "closed"

        def get_executor(self, **_):
            return None

    executor = _DaskExecutor(Client(), patience=1.0)
    for attempt in (lambda: executor.slots, lambda: executor.submit(print, None)):
        with pytest.raises(InputError, match="the connection to the Dask scheduler is lost: restart the scheduler"):
            attempt()
    Client.status = "connecting"
    executor.patience = 0.2
    with pytest.raises(InputError, match="the connection to the Dask scheduler is lost"):
        executor.submit(print, None)


@pytest.fixture
def three_gpus(monkeypatch):
    """Let PyTorch report three CUDA devices."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.mark.usefixtures("three_gpus")
def test_devices_are_all_or_listed():
    assert bench_devices(None, "loky") == []
    assert bench_devices("all", "loky") == ["cuda:0", "cuda:1", "cuda:2"]
    assert bench_devices("2, 0", "loky") == ["cuda:2", "cuda:0"]
    assert bench_devices("all", "ray") == ["cuda"]
    for wanted, backend, sentence in (
        ("3", "loky", "PyTorch finds 3 CUDA devices, numbered from 0"),
        ("one", "loky", "device is 'cuda:one'"),
        ("1,1", "loky", "list every device once"),
        ("0", "ray", "Ray itself assigns GPUs to workers: pass 'all'"),
        ("all", "dask", "use 'loky' or 'ray'"),
    ):
        with pytest.raises(InputError, match=sentence):
            bench_devices(wanted, backend)


def test_devices_need_a_machine_that_has_some(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match="devices is 'all', but PyTorch finds no CUDA device"):
        bench_devices("all", "loky")
    with pytest.raises(InputError, match="PyTorch finds no CUDA device"):
        bench_devices("0", "loky")


@pytest.mark.usefixtures("three_gpus")
def test_a_worker_trains_on_the_device_of_its_job(monkeypatch):
    import torch

    from compshift.training.optimiser import make_accelerator

    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    with pytest.raises(InputError, match="PyTorch finds no CUDA device"):  # this machine has none
        make_accelerator("cuda:2", "float32", find_unused=False)
    assert chosen == [2]


@pytest.mark.slow
def test_ray_without_gpus_says_so():
    pytest.importorskip("ray")
    with pytest.raises(InputError, match="the Ray cluster has no GPUs"), start_executor("ray", 1, devices=["cuda"]):
        pass
