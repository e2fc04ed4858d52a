"""Replication between the brokers of a group: the log as a stream of bytes, and who has it."""
