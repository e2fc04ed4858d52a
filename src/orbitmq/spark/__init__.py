"""Spark reads and writes topics, and reads raw stores, through the Python Data Source API."""
