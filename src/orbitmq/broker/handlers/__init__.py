"""Request handlers by area. Each takes the collaborators it needs and provides ``routes()``."""
