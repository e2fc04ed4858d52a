"""Plain kernel: select."""
