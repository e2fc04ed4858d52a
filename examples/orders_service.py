"""A web service that takes orders and sends them; ``orders_worker.py`` is the other half.

pip install fastapi uvicorn; NAMESRV_ADDR=127.0.0.1:9876 uvicorn examples.orders_service:app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from orbitmq import Message, OrbitError, Producer


class Order(BaseModel):
    id: str
    amount: float
    seconds: float = 0.0  # how long the worker takes to book it


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Created here, not at import: a client belongs to the event loop and the process that serve requests. The bound
    # makes requests wait when brokers are slow, so that memory does not grow.
    async with Producer("orders-service", send_timeout_s=5.0, max_in_flight=500) as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def take(order: Order) -> dict[str, str]:
    # Returns 200 only after the broker has stored the order, so the caller no longer has to keep it.
    try:
        result = await app.state.producer.send(Message.json("orders", order.model_dump(), keys=order.id))
    except OrbitError as error:
        raise HTTPException(503, f"not taken, try again: {error}") from error
    return {"message": result.message_id}


@app.get("/ready")
async def ready() -> dict[str, int]:
    try:
        await app.state.producer.wait_ready("orders", timeout_s=0.5)
    except (OrbitError, TimeoutError) as error:
        raise HTTPException(503, str(error)) from error
    return {"in_flight": app.state.producer.in_flight}
