"""The bytes of one message and its properties, the same on disk and on the wire. Pure: no I/O, no clock."""
