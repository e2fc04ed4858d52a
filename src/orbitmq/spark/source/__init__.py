"""Reads topics from brokers. ``topic_source`` is the entry point for Spark, ``planning`` the arithmetic of queue
ranges, ``stream`` and ``progress`` handle a streaming query, ``reading`` and ``pulls`` a task."""
