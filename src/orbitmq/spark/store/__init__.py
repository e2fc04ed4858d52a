"""Reads the files of a store without a broker. ``store_source`` is the entry point for Spark, ``files`` splits the
log into blocks, ``queues`` finds one topic's records, ``damaged_log`` reads around damage, and ``stream`` follows a
live store."""
