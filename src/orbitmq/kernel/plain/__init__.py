"""The reference implementation of the kernel in short, simple Python. The crate ``kernel/`` is its compiled twin."""
