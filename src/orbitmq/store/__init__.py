"""The message store: commit log, consume queues, index, recovery. Read README.md in this folder first."""
