"""The commands of ``orbitmq admin``, by area."""
