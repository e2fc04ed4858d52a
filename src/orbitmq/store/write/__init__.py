"""From messages to log bytes, queue units and index entries."""
