"""The bytes of messages and their properties, the same on disk and on the wire. No I/O, no clock."""
