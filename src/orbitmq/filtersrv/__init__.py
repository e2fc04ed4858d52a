"""Filter servers: consumers pull from them what a Python class selects. Off by default, never inside a broker."""
