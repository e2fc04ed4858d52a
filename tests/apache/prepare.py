"""``python -m tests.apache.prepare``: fetches and builds the programs of these tests before any test runs.

Otherwise the first test that needs a client waits for its build, which counts against the test's time limit.
"""

from __future__ import annotations

from tests.apache.artifacts import ApacheUnavailable, missing_tools, prepare
from tests.apache.grpc_clients.run import prepare_clients


def main() -> None:
    """Builds what the tools of this machine allow; a test that lacks something reports it itself."""
    if missing_tools(go=True):
        return
    try:
        prepare(go=True)
        prepare_clients()
    except ApacheUnavailable as error:
        print(f"not prepared: {error}")  # noqa: T201 - a command


if __name__ == "__main__":
    main()
