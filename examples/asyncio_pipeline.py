"""Send many messages concurrently, handle them with a coroutine, and iterate over messages.

python examples/asyncio_pipeline.py [name server, default 127.0.0.1:9876]
"""

import asyncio
import sys

from orbitmq import ConsumeFromWhere, LitePullConsumer, Message, Producer, PushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"


async def main() -> None:
    async with Producer("pipeline-producer", name_server) as producer:
        await asyncio.gather(*(producer.send(Message("pipeline-in", str(n))) for n in range(100)))

        consumer = PushConsumer("pipeline", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)

        @consumer.listen("pipeline-in")
        async def double(message: ReceivedMessage) -> None:
            await producer.send(Message("pipeline-out", str(2 * int(message.text()))))

        results: list[int] = []
        async with (
            consumer,
            LitePullConsumer("totals", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET) as reader,
        ):
            reader.subscribe("pipeline-out")
            async for message in reader:
                results.append(int(message.text()))
                if len(results) == 100:
                    break
    print(f"{len(results)} results, sum {sum(results)}")


asyncio.run(main())
