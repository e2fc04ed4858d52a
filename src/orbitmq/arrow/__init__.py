"""Topics and store directories as Arrow tables, without Spark ([guide](docs/arrow.md)).

``read_topic`` and ``read_store`` return a lazy ``MessageTable`` that can be read repeatedly and is accepted by
DuckDB, Polars, pandas and any other reader of Arrow streams. Records are decoded by the same code as in Spark. Needs
``orbitmq[arrow]``.
"""

from orbitmq.arrow.settings import StoreSettings, TopicSettings
from orbitmq.arrow.tables import MessageTable, StoreTable, TopicTable, read_store, read_topic

__all__ = [
    "MessageTable",
    "StoreSettings",
    "StoreTable",
    "TopicSettings",
    "TopicTable",
    "read_store",
    "read_topic",
]
