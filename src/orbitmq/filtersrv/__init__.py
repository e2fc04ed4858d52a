"""Filter servers: consumers pull from them the messages that a Python class selects. Off by default, never inside a
broker."""
