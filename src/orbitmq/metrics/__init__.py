"""Figures about a running server, for Prometheus: families and their text, request times, a small HTTP server."""
