"""Offline tools: dump, verify, read-only access to a store directory."""
