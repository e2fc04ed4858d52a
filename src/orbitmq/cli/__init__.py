"""The ``orbitmq`` command: parsing and printing only."""
