"""kombu's own transport tests, out of its source distribution, against a broker of orbitmq."""

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


@pytest.mark.soak  # downloads, and takes the better part of a minute
def test_published_transport_tests_pass(tmp_path: Path) -> None:
    version = importlib.metadata.version("kombu")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        f"kombu=={version}",
    ]
    subprocess.run(pip, cwd=tmp_path, check=True, timeout=300)
    with tarfile.open(tmp_path / f"kombu-{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"kombu-{version}"
    (root / "t" / "integration" / "test_rocketmq.py").write_text(MODULE)
    paths = [str(SOURCE), *(path for path in sys.path if path)]
    with run_broker() as broker:
        environment = {
            **os.environ,
            "ROCKETMQ_URL": f"rocketmq://{broker.name_server}//",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        options = (
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            "--rootdir",
            str(root),
            "-o",
            "python_classes=test_*",
        )
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "t/integration/test_rocketmq.py"],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert "22 passed" in ended.stdout, ended.stdout[-4000:]
