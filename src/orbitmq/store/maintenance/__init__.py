"""Flush, checkpoint, recovery, retention and the marker files of a store."""
