"""The definition of the kernel in short, obvious Python. The crate ``kernel/`` is its compiled twin."""
