"""The protocol without I/O: converts bytes to values and back. Nothing here uses a socket or a clock."""
