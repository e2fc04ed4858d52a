"""Entry point of the ``orbitmq`` script. A client-only installation lacks packages; the script names the extra."""

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
"""Imported package: the extra of ours that installs it."""


def main(prog_name: str | None = None) -> None:
    """Run the command. A package that is not installed is one line with the extra that brings it, and exit code 1."""
    try:
        from orbitmq.cli.main import main as command

        command(prog_name=prog_name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        # The command without click cannot do anything yet, and most who type it want servers too.
        extra = "server" if package == "click" else _EXTRAS[package]
        sys.stderr.write(f"orbitmq: this needs the package {package}: pip install 'orbitmq[{extra}]'\n")
        sys.exit(1)
