"""Send a few messages and consume them, without asyncio.

python examples/quickstart.py [name server, default 127.0.0.1:9876]
"""

import sys
import threading

from orbitmq import ConsumeFromWhere, Message, ReceivedMessage, sync

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
done = threading.Event()
seen: list[str] = []

with sync.Producer("quickstart-producer", name_server) as producer:
    for number in range(3):
        result = producer.send(
            Message("quickstart", f"hello {number}", tags="greeting", keys=[f"key-{number}"])
        )
        print(f"sent {result.message_id} to queue {result.queue.queue_id}")

consumer = sync.PushConsumer("quickstart-consumer", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)


@consumer.listen("quickstart", "greeting")
def handle(message: ReceivedMessage) -> None:
    print(f"received {message.text()!r} with keys {message.keys}")
    seen.append(message.text())
    if len(seen) >= 3:
        done.set()


with consumer:
    assert done.wait(30), "no messages within 30 s"
