"""The definition of the kernel: short and obvious Python, no tricks. The crate ``kernel/`` is its compiled twin."""
