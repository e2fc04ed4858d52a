"""Reads queues by offset, by time and through a filter."""
