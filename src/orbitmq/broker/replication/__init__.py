"""Replication between the brokers of a group: the log as a byte stream, and the tables that a slave copies."""
