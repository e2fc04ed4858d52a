"""orbitmq: Apache RocketMQ, rebuilt in Python. Importing this package does nothing else."""

__all__ = ["__version__"]

__version__ = "0.1.0"
