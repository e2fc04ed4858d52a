"""``python -m orbitmq``: the ``orbitmq`` command."""

from __future__ import annotations

from orbitmq.cli.entry import main

if __name__ == "__main__":
    main("python -m orbitmq")
