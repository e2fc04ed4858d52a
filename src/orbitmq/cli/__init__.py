"""The ``orbitmq`` command, which only parses arguments and prints results."""
