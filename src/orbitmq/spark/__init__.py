"""Spark data sources for topics and raw stores, built on the Python Data Source API ([guide](docs/spark.md)).

Importing this package imports neither PySpark nor pyarrow.
"""

from orbitmq.spark.register import register

__all__ = ["register"]
