"""An S3 server on this machine (moto, from PyPI) and Hadoop's file system of S3 (from Maven), both fetched once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from tests.apache.artifacts import HERE, ApacheUnavailable, build_product, run_tool, unavailable
from tests.apache.servers import ApacheServer
from tests.support.ports import free_ports

__all__ = ["S3", "s3", "s3a_jars"]

MOTO: Final = "moto[server]==5.2.5"
START_TIMEOUT_S: Final = 60.0


def _moto() -> Path:
    """Returns the server's program, in its own virtual environment."""

    def build(target: Path) -> None:
        run_tool([sys.executable, "-m", "venv", str(target)], HERE)
        run_tool([str(target / "bin" / "python"), "-m", "pip", "install", "-q", MOTO], HERE)

    return build_product("moto", MOTO, build, in_place=True) / "bin" / "moto_server"


def s3a_jars() -> list[str]:
    """Returns the jars that Spark needs for ``s3a://``."""
    pom = HERE / "poms" / "s3a.xml"

    def build(target: Path) -> None:
        workspace = target.parent / f"{target.name}.fetch"
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.mkdir(parents=True)
        shutil.copy(pom, workspace / "pom.xml")
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        run_tool([*command, f"-DoutputDirectory={target}"], workspace)
        shutil.rmtree(workspace, ignore_errors=True)

    return sorted(map(str, build_product("s3a", pom.read_text(), build).glob("*.jar")))


class S3(ApacheServer):
    """The server, initially empty."""

    def __init__(self) -> None:
        super().__init__("moto", None)
        self.port = free_ports()[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        """What programs read that use it."""
        self.spark = {
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }
        """Settings of Spark that use it."""

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server and waits until it answers."""
        self._command = [str(_moto()), "-H", "127.0.0.1", "-p", str(self.port)]
        super().start()
        self.wait_ready(self._answers, timeout_s=timeout_s)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/moto-api/", timeout=2.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def create_bucket(self, name: str) -> None:
        httpx.put(f"{self.url}/{name}", timeout=10.0, trust_env=False).raise_for_status()


@pytest.fixture
def s3() -> Iterator[S3]:
    """Yields an S3 server. If it or the jars cannot be fetched, the test is skipped, or fails where skipping is not
    allowed.
    """
    try:
        _moto()
        s3a_jars()
    except (ApacheUnavailable, OSError, subprocess.SubprocessError) as error:
        unavailable(f"no S3 server or no jars for s3a://: {error}")
    with S3() as server:
        yield server
