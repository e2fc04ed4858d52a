"""Runs kombu's and Celery's own tests, from their source distributions, against an orbitmq broker."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orbitmq.testing import run_broker

SOURCE = Path(__file__).parents[1] / "src"
MODULE = """
import os
import kombu
import pytest
import orbitmq_kombu
from .common import BaseExchangeTypes, BaseMessage, BasicFunctionality


@pytest.fixture()
def connection():
    return kombu.Connection(os.environ["ROCKETMQ_URL"], transport_options={"queue_count": 1})


@pytest.fixture()
def invalid_connection():
    return kombu.Connection("rocketmq://127.0.0.1:1", connect_timeout=0.5)


class test_Basic(BasicFunctionality): ...
class test_Exchanges(BaseExchangeTypes): ...
class test_Message(BaseMessage): ...
"""


@pytest.mark.soak  # downloads, and takes most of a minute
def test_published_transport_tests_pass(tmp_path: Path) -> None:
    root = source("kombu", tmp_path)
    (root / "t" / "integration" / "test_rocketmq.py").write_text(MODULE)
    printed = run_tests(root, "t/integration/test_rocketmq.py", "-o", "python_classes=test_*")
    assert "22 passed" in printed, printed[-4000:]


@pytest.mark.soak  # as above
def test_published_tests_of_remote_control_pass(tmp_path: Path) -> None:
    """Celery's tests of ``inspect`` and ``revoke``: broadcasts to a worker, and its replies within a second."""
    root = source("celery", tmp_path)
    options = ("-p", "orbitmq_kombu", "-p", "celery.contrib.pytest", "-o", "python_classes=test_*")
    backend = f"file://{tmp_path}/results"
    (tmp_path / "results").mkdir()
    printed = run_tests(root, "t/integration/test_inspect.py", *options, TEST_BACKEND=backend)
    assert "13 passed" in printed, printed[-4000:]


def source(package: str, directory: Path) -> Path:
    """Returns the unpacked source distribution of an installed package."""
    version = importlib.metadata.version(package)
    options = ("-q", "--no-deps", "--no-binary", ":all:")
    pip = [sys.executable, "-m", "pip", "download", *options, f"{package}=={version}"]
    subprocess.run(pip, cwd=directory, check=True, timeout=300)
    with tarfile.open(directory / f"{package}-{version}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / f"{package}-{version}"


def run_tests(root: Path, module: str, *options: str, **environment: str) -> str:
    """Returns pytest's output for one of their modules, run against an orbitmq broker."""
    paths = [str(SOURCE), *(path for path in sys.path if path)]
    with run_broker() as broker:
        url = f"rocketmq://{broker.name_server}//"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        ended = subprocess.run(
            [*command, "--rootdir", str(root), *options, module],
            cwd=root,
            env={
                **os.environ,
                "ROCKETMQ_URL": url,
                "TEST_BROKER": url,
                "PYTHONPATH": os.pathsep.join(paths),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout
