"""A real etcd on free ports, for the tests of failover. On Debian its package is etcd-server."""

from __future__ import annotations

import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.apache.servers import ApacheServer
from tests.support.ports import free_ports

__all__ = ["Etcd", "EtcdTls", "etcd", "etcd_cluster", "memory_path", "require_etcd"]

START_TIMEOUT_S = 20.0
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 1024**3
"""A member needs about 150 MB."""


def require_etcd() -> None:
    """Skips the calling test when etcd is missing, but fails it where skipping is not allowed."""
    if shutil.which("etcd") is not None:
        return
    reason = "no etcd on this machine: tests of failover cannot run (Debian: apt-get install etcd-server)"
    if os.environ.get("CI") == "true" or os.environ.get("ORBITMQ_REQUIRE_APACHE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files: of the server, of a client, and of the authority that signed both."""

    authority: Path
    certificate: Path
    key: Path
    client: Path
    client_key: Path


def memory_dir(name: str) -> Path:
    """Returns a new directory, in memory if there is space. Every write to etcd waits for its disk, and when Spark or
    Apache's brokers keep the disk busy for seconds, leases of one second expire. Then no broker is elected, which is
    correct but not the subject of these tests.
    """
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    return Path(tempfile.mkdtemp(prefix=f"orbitmq-{name}-", dir=MEMORY if roomy else None))


class Etcd(ApacheServer):
    """One etcd. `kill()`, `stop()` and a second `start()` keep port and data."""

    def __init__(
        self, *, workdir: Path | None = None, tls: EtcdTls | None = None, name: str = "default"
    ) -> None:
        """With ``tls`` it accepts only TLS, from clients with a certificate."""
        super().__init__("etcd", workdir or memory_dir("etcd"))
        self._removed_at_close = workdir is None
        self.port, self.peer_port = free_ports(1)
        self._tls = tls
        self.member = name
        self.cluster: list[Etcd] = [self]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts etcd and waits until it has a leader; with 0 seconds it does not wait, for a member that needs
        others.
        """
        peer = f"http://127.0.0.1:{self.peer_port}"
        options = {
            "name": self.member,
            "data-dir": str(self.workdir / "data"),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(
                f"{one.member}=http://127.0.0.1:{one.peer_port}" for one in self.cluster
            ),
            # The shortest lease etcd grants is one and a half election time-outs.
            "heartbeat-interval": "50",
            "election-timeout": "500",
            "log-level": "error",
        }
        if self._tls is not None:
            options |= {
                "cert-file": str(self._tls.certificate),
                "key-file": str(self._tls.key),
                "trusted-ca-file": str(self._tls.authority),
                "client-cert-auth": "true",
            }
        self._command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
        super().start()
        if timeout_s:
            self.wait_ready(self.healthy, timeout_s=timeout_s)

    def healthy(self) -> bool:
        tls = self._tls
        context = ssl.create_default_context(cafile=None if tls is None else str(tls.authority))
        if tls is not None:
            context.load_cert_chain(tls.client, tls.client_key)
        try:
            answer = httpx.get(f"{self.url}/health", timeout=1.0, trust_env=False, verify=context)
            return answer.text.count("true") == 1
        except httpx.HTTPError:
            return False

    def is_leader(self) -> bool:
        """Returns whether it leads its cluster."""
        try:
            answer = httpx.post(f"{self.url}/v3/maintenance/status", json={}, timeout=1.0, trust_env=False)
        except httpx.HTTPError:
            return False
        status = answer.json()
        return bool(status.get("leader") == status.get("header", {}).get("member_id", "-"))


@contextmanager
def etcd_cluster(count: int) -> Iterator[list[Etcd]]:
    """Yields that many started members."""
    members = [Etcd(name=f"e{number}") for number in range(count)]
    try:
        for member in members:
            member.cluster = members
        for member in members:
            member.start(0.0 if count > 1 else START_TIMEOUT_S)
        for member in members:
            member.wait_ready(member.healthy, timeout_s=START_TIMEOUT_S)
        yield members
    finally:
        for member in members:
            member.close()


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    """Yields one etcd for the tests of a module; each test uses its own failover group."""
    require_etcd()
    with Etcd() as server:
        yield server


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """Works like ``tmp_path``, in memory: for brokers whose leases are as short as a slow sync."""
    path = memory_dir("failover")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
