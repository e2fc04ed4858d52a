"""The commands of ``orbitmq admin``, one declaration each, by area."""
