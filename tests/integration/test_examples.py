"""Every example runs against our broker: scripts to their end, the web service under uvicorn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.support.ports import free_ports

from orbitmq.testing import run_broker

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = {
    "quickstart": "received 'hello ",
    "asyncio_pipeline": "100 results, sum 9900",
    "transaction": "TransactionState.COMMIT",
    "exactly_once": "balance 50",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
def test_example_runs_to_its_end(name: str) -> None:
    with run_broker() as broker:
        ended = subprocess.run(
            [sys.executable, str(ROOT / "examples" / f"{name}.py"), broker.name_server],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 0, ended.stderr
    assert ENDINGS[name] in ended.stdout


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {
        *ENDINGS,
        "fastapi_app",
        "orders_service",  # these two in test_service_and_worker.py
        "orders_worker",
    }


@pytest.mark.slow
def test_web_service_sends_and_consumes() -> None:
    port = free_ports()[0]
    command = [sys.executable, "-m", "uvicorn", "examples.fastapi_app:app", "--port", str(port)]
    with run_broker() as broker:
        environment = os.environ | {"NAMESRV_ADDR": broker.name_server}
        service = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as browser:
                sent = until_ok(service, lambda: browser.post("/messages", params={"text": "grüße"}))
                assert len(sent.json()["id"]) == 32
                until_ok(service, lambda: browser.get("/messages"), wanted=["grüße"])
            service.terminate()  # uvicorn ends the clients in order: no complaint about tasks or sockets
            _, errors = service.communicate(timeout=20)
        finally:
            service.kill()
            service.communicate()
    assert "Application shutdown complete" in errors, errors
    assert "Traceback" not in errors, errors


def until_ok(
    service: subprocess.Popen[str], ask: Callable[[], httpx.Response], wanted: object = None
) -> httpx.Response:
    """Returns the response once the service returns the wanted one (any, if None)."""
    deadline = time.monotonic() + 20.0
    while True:
        assert service.poll() is None, service.communicate()[1]
        try:
            answer = ask()
            if answer.status_code == 200 and wanted in (None, answer.json()):
                return answer
            told = answer.text
        except httpx.TransportError as error:
            told = str(error)
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
