"""Replication between the brokers of a group: the log as a stream of bytes, and the tables a slave copies."""
