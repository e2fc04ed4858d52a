"""Queue reads: by offset, by time, through a filter."""
