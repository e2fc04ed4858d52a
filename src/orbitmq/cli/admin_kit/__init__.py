"""The framework of the ``orbitmq admin`` commands: declarations, output, execution, completion."""
