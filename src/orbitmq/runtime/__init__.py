"""What touches the machine: clock, files, tasks, options, logging."""
