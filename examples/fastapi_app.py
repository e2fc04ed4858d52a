"""A web service that sends messages, and consumes them in the background.

pip install fastapi uvicorn; NAMESRV_ADDR=127.0.0.1:9876 uvicorn examples.fastapi_app:app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from orbitmq import Message, Producer, PushConsumer, ReceivedMessage

seen: list[str] = []


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Created here, not at import: a client belongs to the event loop and the process that serve requests.
    consumer = PushConsumer("web-readers")

    @consumer.listen("web")
    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.text())

    async with Producer("web-writers") as producer, consumer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/messages")
async def send(text: str) -> dict[str, str]:
    result = await app.state.producer.send(Message("web", text))
    return {"id": result.message_id}


@app.get("/messages")
async def received() -> list[str]:
    return seen
