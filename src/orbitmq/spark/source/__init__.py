"""Reads topics from brokers. ``topic_source`` is the entry point for Spark, and ``planning`` computes queue ranges.
``stream`` and ``progress`` handle a streaming query, ``reading`` and ``pulls`` a task."""
