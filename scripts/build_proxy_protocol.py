"""Generates the module of the proxy's protocol from its .proto file, with the grpcio-tools of requirements/dev.txt.

.venv/bin/python scripts/build_proxy_protocol.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src"
PROTO = "orbitmq/proxy/protocol/rocketmq_v2.proto"


def main() -> None:
    """Writes the module and its stub next to the description."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.", PROTO]
    subprocess.run(command, cwd=SOURCES, check=True)


if __name__ == "__main__":
    main()
