"""An in-memory network: ordered streams with delay, arbitrary chunking, cuts, resets and hosts that vanish."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.loop import PROCESS, Process, SimLoop

CONNECT_GIVES_UP_S = 60.0


class SimSocket:
    """The result of ``bind_port``: a reserved address."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network = network
        self._address = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._network.release(self._address)


class SimServer:
    """Replaces ``asyncio.Server``."""

    def __init__(self, network: Network, bound: SimSocket) -> None:
        self._network = network
        self.sockets = [bound]

    def close(self) -> None:
        self._network.release(self.sockets[0].getsockname())

    async def wait_closed(self) -> None:
        return


class SimTransport(asyncio.Transport):
    """One end of a connection. Its writes arrive at the other end later, in order."""

    def __init__(self, network: Network, process: Process, peer_address: tuple[str, int]) -> None:
        super().__init__({"peername": peer_address, "sockname": (process.host, 0)})
        self.network = network
        self.process = process
        self.protocol: Any = None
        self.other: SimTransport | None = None
        self._high = 64 * 1024
        self._unread = 0
        """Bytes written here that the other end has not taken."""
        self._write_paused = False
        self._closing = False
        self.lost = False
        self._reading = True
        self._inbox: deque[bytes] = deque()
        self._arrives_at = 0.0
        self._waiting: deque[tuple[str, bytes]] = deque()
        """Written while the network was cut: sent again when it heals."""

    # -- writing
    def write(self, data: Any) -> None:
        if self._closing or self.lost or not data:
            return
        self._send("data", bytes(data))
        self._unread += len(data)
        if self._unread > self._high and not self._write_paused:
            self._write_paused = True
            self.protocol.pause_writing()

    def _send(self, kind: str, data: bytes = b"") -> None:
        if self.network.is_cut(self.process.host, self._host_of_other()) or self._waiting:
            self._waiting.append((kind, data))
            return
        self._put(kind, data)

    def _host_of_other(self) -> str:
        assert self.other is not None
        return self.other.process.host

    def _put(self, kind: str, data: bytes) -> None:
        other = self.other
        assert other is not None
        loop = self.network.loop
        # Never the same time twice: timers that are due at the same time run in arbitrary order.
        self._arrives_at = max(self._arrives_at + 1e-6, loop.now + self.network.delay())
        loop.call_at(self._arrives_at, other.arrived, kind, data, context=other.process.context)

    def send_again(self) -> None:
        """Resends after the network has healed."""
        waiting, self._waiting = self._waiting, deque()
        for kind, data in waiting:
            self._put(kind, data)

    # -- arriving
    def arrived(self, kind: str, data: bytes) -> None:
        if self.lost:
            return
        if kind == "data":
            self._inbox.append(data)
            self._deliver()
        else:
            if kind == "end":
                while self._inbox and not self.lost:
                    self.protocol.data_received(self._inbox.popleft())
            self._lose()

    def _deliver(self) -> None:
        while self._inbox and self._reading and not self.lost:
            data = self._inbox.popleft()
            piece = len(data)
            if piece > 1 and self.network.loop.chance.random() < self.network.chunking:
                piece = self.network.loop.chance.randrange(1, piece)
                self._inbox.appendleft(data[piece:])
            self.protocol.data_received(data[:piece])
            if self.other is not None:
                self.network.loop.call_soon(self.other.taken, piece, context=self.other.process.context)

    def taken(self, count: int) -> None:
        self._unread -= count
        if self._write_paused and self._unread <= self._high // 4 and not self.lost:
            self._write_paused = False
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return 0 if self.lost else self._unread

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver()

    def is_reading(self) -> bool:
        return self._reading

    # -- ending
    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._send("end")
        self.network.loop.call_soon(self._lose)

    def abort(self) -> None:
        self._closing = True
        if not self.lost:
            self._send("reset")
            self.network.loop.call_soon(self._lose)

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._closing = True
        self.network.forget(self)
        if self.other is not None and not self.other.lost and self.other._closing is False:
            self._send("end")
        self.protocol.connection_lost(None)

    def die(self) -> None:
        """Ends this end's process; the operating system notifies the other end, if its machine still runs."""
        self.lost = True
        self._closing = True
        self.network.forget(self)
        if not self.network.is_silent(self.process.host):
            self._send("reset")


class Network:
    """All hosts and their connections."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.delay_s = (0.0002, 0.002)
        self.slow = 0.0
        """Chance of a packet that takes up to a second (lost and sent again)."""
        self.chunking = 0.05
        self._listening: dict[tuple[str, int], tuple[Process, Callable[[], Any]]] = {}
        self._bound: dict[tuple[str, int], Process | None] = {}
        self._next_port = 20_000
        self._cuts: set[tuple[str, str]] = set()
        """Sender and receiver of packets that do not pass."""
        self._silent: set[str] = set()
        self._transports: list[SimTransport] = []
        loop.network = self

    def delay(self) -> float:
        chance = self.loop.chance
        if chance.random() < self.slow:
            return chance.uniform(0.2, 1.0)
        return chance.uniform(*self.delay_s)

    # -- addresses
    def bind(self, host: str, port: int) -> SimSocket:
        if not port:
            self._next_port += 7
            port = self._next_port
        holder = self._bound.get((host, port))
        if holder is not None and holder.alive:
            raise OSError(98, f"port {port} of {host} is in use")
        self._bound[host, port] = PROCESS.get()
        return SimSocket(self, host, port)

    def release(self, address: tuple[str, int]) -> None:
        self._listening.pop(address, None)
        self._bound.pop(address, None)

    def listen(self, factory: Callable[[], Any], bound: SimSocket) -> SimServer:
        process = PROCESS.get()
        assert process is not None
        self._listening[bound.getsockname()] = (process, factory)
        return SimServer(self, bound)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        process = PROCESS.get()
        assert process is not None
        await asyncio.sleep(self.delay() * 2)
        if self.is_cut(process.host, host) or self.is_cut(host, process.host) or host in self._silent:
            await asyncio.sleep(CONNECT_GIVES_UP_S)
            raise TimeoutError("connect timed out")
        target, accept = self._listening.get((host, port), (None, None))
        if target is None or accept is None or not target.alive:
            raise ConnectionRefusedError(111, f"connect to {host}:{port} refused")
        self._next_port += 1
        mine = SimTransport(self, process, (host, port))
        theirs = SimTransport(self, target, (process.host, 40_000 + self._next_port % 20_000))
        mine.other, theirs.other = theirs, mine
        self._transports += [mine, theirs]
        mine.protocol = factory()

        def accepted() -> None:
            theirs.protocol = accept()
            theirs.protocol.connection_made(theirs)

        target.context.copy().run(accepted)
        mine.protocol.connection_made(mine)
        return mine, mine.protocol

    # -- faults
    def is_cut(self, sender: str, receiver: str) -> bool:
        return bool(self._cuts) and (sender, receiver) in self._cuts

    def is_silent(self, host: str) -> bool:
        return host in self._silent

    def cut(self, one: str, other: str) -> None:
        """Drops all packets between two hosts."""
        self._cuts |= {(one, other), (other, one)}

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """Drops the packets of one host to the other; those in the opposite direction arrive."""
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Removes all cuts and sends the data written meanwhile."""
        self._cuts.clear()
        for transport in list(self._transports):
            if transport.process.alive:
                transport.send_again()

    def reset_some(self, share: float) -> None:
        """Resets some connections."""
        for transport in list(self._transports):
            if not transport.lost and self.loop.chance.random() < share and transport.protocol is not None:
                transport.process.context.copy().run(transport.abort)

    def process_died(self, process: Process, *, silent: bool) -> None:
        """Ends its connections: immediately or, if the machine lost power, silently."""
        if silent:
            self._silent.add(process.host)
        for address in [key for key, (owner, _) in self._listening.items() if owner is process]:
            self.release(address)
        for transport in list(self._transports):
            if transport.process is process:
                transport.die()

    def host_is_back(self, host: str) -> None:
        """The machine runs again, and answers packets of unknown connections with a reset."""
        self._silent.discard(host)
        for transport in list(self._transports):
            other = transport.other
            if other is not None and other.process.host == host and not other.process.alive:
                self.loop.call_later(
                    self.delay(), transport.arrived, "reset", b"", context=transport.process.context
                )

    def forget(self, transport: SimTransport) -> None:
        if transport in self._transports:
            self._transports.remove(transport)
