"""Handle each message once: its effect and the record that it is done are one database transaction.

python examples/exactly_once.py [name server, default 127.0.0.1:9876]
"""

import sqlite3
import sys
import tempfile
import time

from orbitmq import ConsumeFromWhere, Message, ReceivedMessage, sync
from orbitmq.client.consume.dedup import Deduplicator, sqlite_connections

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
database = tempfile.NamedTemporaryFile(suffix=".db")
connect = sqlite_connections(database.name)
with connect() as setup:
    setup.execute("CREATE TABLE account (balance INTEGER)")
    setup.execute("INSERT INTO account VALUES (0)")

deduplicator = Deduplicator(
    connect=connect,
    group="accounting",
    key=lambda message: message.keys[0],  # the business key: a message that was sent twice also counts once
)
deduplicator.create_table()


def deposit(message: ReceivedMessage, connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE account SET balance = balance + ?", (int(message.text()),))


with sync.Producer("bank", name_server) as producer:
    for _ in range(2):  # a sender that repeats messages
        for number in range(5):
            producer.send(Message("deposits", "10", keys=[f"deposit-{number}"]))

consumer = sync.PushConsumer("accounting", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)
consumer.subscribe("deposits", handler=deduplicator.once(deposit))


def balance() -> int:
    with connect() as connection:
        return int(connection.execute("SELECT balance FROM account").fetchone()[0])


with consumer:
    deadline = time.monotonic() + 30
    while balance() < 50 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # the repeated messages arrive and change nothing
print(f"balance {balance()}")
