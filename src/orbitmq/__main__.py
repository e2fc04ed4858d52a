"""``python -m orbitmq``: the ``orbitmq`` command."""

from __future__ import annotations

from orbitmq.cli.main import main

if __name__ == "__main__":
    main(prog_name="python -m orbitmq")
