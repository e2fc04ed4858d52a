"""What the commands of ``orbitmq admin`` are made of: declarations, printing, running, completion."""
