"""Access to the machine: clock, files, tasks, options and logging."""
