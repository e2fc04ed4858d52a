"""Entry point of the ``orbitmq`` script.

If a package is missing, as in a client-only installation, it names the extra to install.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["main"]

_EXTRAS: Final = {
    "click": "cli",
    "rich": "cli",
    "yaml": "cli",
    "cryptography": "server",
    "prometheus_client": "server",
    "google": "proxy",
    "httpx": "failover",
    "jinja2": "console",
    "multipart": "console",
    "starlette": "console",
    "uvicorn": "console",
    "mcp": "mcp",
    "duckdb": "sql",
    "pyspark": "spark",
    "pyarrow": "spark",
    "numpy": "spark",
}
"""The extra that installs each imported package."""


def main(prog_name: str | None = None) -> None:
    """Run the command. For a missing package, print one line that names the extra to install and exit with code 1."""
    try:
        from orbitmq.cli.main import main as command

        command(prog_name=prog_name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        # Without click no command works, and most users who type one also want servers.
        extra = "server" if package == "click" else _EXTRAS[package]
        sys.stderr.write(f"orbitmq: this needs the package {package}: pip install 'orbitmq[{extra}]'\n")
        sys.exit(1)
