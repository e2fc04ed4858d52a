"""The ``orbitmq`` command: parsing and printing, no logic of its own."""
