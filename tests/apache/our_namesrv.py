"""Our name server as a process, with the interface of Apache's in tests and benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.apache.servers import ApacheServer, cluster_info, write_properties
from tests.support.ports import free_ports

__all__ = ["OurNamesrv"]

START_TIMEOUT_S: Final = 30.0


class OurNamesrv(ApacheServer):
    """``orbitmq namesrv``. ``stop()``, ``kill()`` and a second ``start()`` keep port and files."""

    def __init__(self, port: int = 0, *, workdir: Path | None = None, **conf: str | int | bool) -> None:
        super().__init__("orbitmq-namesrv", workdir)
        self.port = port or free_ports()[0]
        self.address = f"127.0.0.1:{self.port}"
        self._conf = {
            "listenPort": self.port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.workdir / "namesrv" / "kvConfig.json"),
            **conf,
        }
        config = self.workdir / "namesrv.conf"
        write_properties(config, self._conf)
        self._command = [sys.executable, "-m", "orbitmq.cli.main", "namesrv", "-c", str(config)]

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server and waits until it answers requests."""
        super().start()
        self.wait_ready(lambda: cluster_info(self.address) is not None, timeout_s=timeout_s)
