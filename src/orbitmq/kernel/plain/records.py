"""Plain kernel: records."""
