"""Offline tools: dump, verify, repair, and read-only access to a store directory."""
