"""Turns messages into log bytes, queue units and index entries."""
