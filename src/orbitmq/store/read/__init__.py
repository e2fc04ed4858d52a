"""Reading queues: by offset, by time, through a filter."""
