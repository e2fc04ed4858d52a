"""Reads topics from brokers: ``topic_source`` is what Spark opens, ``planning`` the arithmetic of queue ranges,
``stream`` and ``progress`` a query over time, ``reading`` and ``pulls`` a task.
"""
