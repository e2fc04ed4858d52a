"""A complete application to read and run: the shop of ``orbitmq demo``."""
