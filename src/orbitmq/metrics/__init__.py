"""Prometheus metrics of a running server: families and their text form, request durations, and a small HTTP
server."""
