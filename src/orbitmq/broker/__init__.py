"""The broker: composition root, state tables, and one module of handlers per area of requests."""
