"""Plain kernel: frames."""
