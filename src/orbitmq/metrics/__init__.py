"""Metrics of a running server, for Prometheus: families and their text form, request times, a small HTTP server."""
