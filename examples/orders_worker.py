"""A worker that books orders; ``orders_service.py`` sends them.

NAMESRV_ADDR=127.0.0.1:9876 ORDERS_DB=orders.db orbitmq run examples.orders_worker:consumer --health-port 8081
"""

import os
import sqlite3
import time
from dataclasses import dataclass

from orbitmq import HandlerContext, PushConsumer

DATABASE = os.environ.get("ORDERS_DB", "orders.db")
WORKERS = 8

consumer = PushConsumer("orders-worker", start="first", workers=WORKERS, cached_count_max=500)


@dataclass
class Order:
    id: str
    amount: float
    seconds: float = 0.0


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(DATABASE, timeout=30, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount REAL, times INTEGER)")
    return connection


# A plain function: it runs on one of the consumer's threads, so it may block. Messages are delivered at least once,
# so booking the same order again must change nothing but the count.
@consumer.listen("orders", type=Order)
def book(order: Order, context: HandlerContext) -> None:
    time.sleep(order.seconds)
    connection = database()
    try:
        connection.execute(
            "INSERT INTO orders VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1",
            (order.id, order.amount),
        )
    finally:
        connection.close()
