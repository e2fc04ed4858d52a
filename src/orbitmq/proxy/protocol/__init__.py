"""Protobuf messages of the 5.x client protocol."""
