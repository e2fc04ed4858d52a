"""Statistics, metrics and runtime information of the broker."""
