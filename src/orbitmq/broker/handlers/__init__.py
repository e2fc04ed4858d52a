"""Request handlers, one module per area; each takes just the collaborators it needs."""
