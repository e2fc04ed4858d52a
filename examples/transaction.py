"""Send a message that becomes visible only if a local transaction commits.

python examples/transaction.py [name server, default 127.0.0.1:9876]
"""

import sqlite3
import sys
import tempfile

from orbitmq import Message, ReceivedMessage, TransactionState, sync

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
database = tempfile.NamedTemporaryFile(suffix=".db")


def connect() -> sqlite3.Connection:
    return sqlite3.connect(database.name)


with connect() as setup:
    setup.execute("CREATE TABLE orders (transaction_id TEXT PRIMARY KEY, amount INTEGER)")


def pay(message: Message, transaction_id: str) -> TransactionState:
    """The local transaction: runs when the broker has stored the message, before it is visible to consumers."""
    with connect() as connection:
        connection.execute("INSERT INTO orders VALUES (?, ?)", (transaction_id, int(message.body)))
    return TransactionState.COMMIT


def paid(message: ReceivedMessage) -> TransactionState:
    """The broker checks back if it received no outcome: look it up in the database."""
    with connect() as connection:
        row = connection.execute(
            "SELECT 1 FROM orders WHERE transaction_id = ?", (message.transaction_id,)
        ).fetchone()
    return TransactionState.COMMIT if row else TransactionState.UNKNOWN


with sync.Producer("order-service", name_server, check=paid) as producer:
    result = producer.send_in_transaction(Message("orders-paid", "42"), pay)
    print(f"order {result.transaction_id}: {result.transaction_state}")
