"""``compshift serve`` as a process: its errors, its stop, and that nothing is left of it."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import compshift as cs
from tests.cli.commands import COMMAND, environment
from tests.serve.service import Client, features, fitted

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

psutil = pytest.importorskip("psutil")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fitted("unnamed", tmp_path_factory.mktemp("model"))[0]


def test_what_cannot_be_served_is_one_sentence(call, tmp_path, model):
    (tmp_path / "empty").touch()
    (tmp_path / "torn").write_bytes(model.read_bytes()[:-40])
    (tmp_path / "folder").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, sentence in (
            (["absent"], "there is no model file 'absent': pass the path of a saved model"),
            (["empty"], "'empty'"),
            (["torn"], "'torn'"),
            (["folder"], "'folder' holds no run: pass the folder of a training run"),
            ([str(model), "--port", port], f"cannot listen on port {port} of '127.0.0.1' (address already in use)"),
            ([str(model), "--host", "no host"], "cannot listen on port 8000 of 'no host'"),
            ([str(model), "--port", "70000"], "--port is '70000'"),
            ([str(model), "--max-rows", "0"], "--max-rows is '0'"),
            ([str(model), "--timeout", "nan"], "--timeout"),
            ([str(model), "--prior", "flat"], "prior 'flat' is not known"),
            ([str(model), "--backbone", "minilm"], "--backbone is for models of images and texts"),
        ):
            result = call("serve", *arguments, cwd=tmp_path)
            assert result.returncode == 2, (arguments, result.err)
            assert sentence in result.err
            assert result.err.count("\n") == 1


def test_a_missing_package_names_the_extra(call, tmp_path, model, monkeypatch):
    monkeypatch.setattr("compshift.cli.serve.PACKAGES", ("fastapi", "no_such_package"))
    result = call("serve", str(model), cwd=tmp_path)
    assert result.err == "error: serving needs the package no_such_package: pip install 'compshift[serve]'\n"


@contextmanager
def service(model, folder, *options):
    """A service as a process, with its own folder for temporary files; yield the process and a client."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [*COMMAND, "serve", str(model), "--port", "0", *options],
        cwd=folder,
        env={**environment(), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith(f"serving {str(model)!r} at http://127.0.0.1:"), process.stderr.read()
        yield process, Client(int(line.rpartition(":")[2].partition("/")[0]))
    finally:
        process.kill()
        process.communicate(timeout=30)


def half_a_request(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
    connection.sendall(b'Content-Length: 100\r\n\r\n{"rows": ')
    return connection


def wait_until_active(client, count):
    deadline = time.monotonic() + 30
    while client.metric("compshift_active_requests") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_end(model, tmp_path, sent):
    with service(model, tmp_path) as (process, client), half_a_request(client.port) as connection:
        wait_until_active(client, 1)
        process.send_signal(sent)
        time.sleep(0.5)
        with pytest.raises(ConnectionError):
            client.get("/health")  # no new connections
        connection.sendall(b"[[0, 0, 0]]}".ljust(91))
        answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"probabilities" in answer
        assert process.wait(30) == 0
        assert process.stderr.read() == "stopped\n"


@pytest.mark.slow
def test_a_request_that_never_ends_does_not_keep_a_stopped_service(model, tmp_path):
    with service(model, tmp_path, "--timeout", "1") as (process, client), half_a_request(client.port):
        wait_until_active(client, 1)
        start = time.monotonic()
        process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_service_killed_while_it_answers(model, tmp_path, sent):
    body = json.dumps({"rows": np.random.default_rng(0).normal(size=(1000, 3)).tolist()})
    statuses, before = [], model.read_bytes()

    def ask():
        try:
            while True:
                statuses.append(client.send("POST", "/predict", body).status)
        except (OSError, ValueError, json.JSONDecodeError):
            return
        except Exception as error:  # http.client has errors of its own for a connection that ends
            statuses.append(type(error).__module__)

    with service(model, tmp_path) as (process, client), half_a_request(client.port):
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(statuses) < 20:
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sent)
        if sent == signal.SIGTERM:
            time.sleep(0.2)
            process.kill()  # in the middle of its graceful stop
        process.wait(30)
        for thread in threads:
            thread.join(30)
        assert set(statuses) <= {200, "http.client"}
        assert not [child for child in children if child.is_running()]
        assert os.listdir(tmp_path / "temporary") == []
        assert sorted(os.listdir(tmp_path)) == ["temporary"]
        assert os.listdir(model.parent) == [model.name]
        assert model.read_bytes() == before
        with service(model, tmp_path, "--port", str(client.port)) as (_, again):
            assert again.port == client.port
            answer = again.post(rows=features()[:2].tolist()).content["predictions"]["bird"]["probabilities"]
            np.testing.assert_allclose(answer, cs.load(model).predict_proba(features()[:2]))
