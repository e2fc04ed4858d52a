"""The line protocol of a driver process: one JSON object per line, responses by id, events by handle."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.apache.process import ChildProcess, HarnessTimeout, StartFailed

__all__ = ["ClientError", "Driver", "Inbox"]

START_TIMEOUT_S: Final = 120.0
CALL_TIMEOUT_S: Final = 120.0


class ClientError(Exception):
    """The official client raised; `kind` is its exception's class, `code` the response code where it has one."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.kind: str = error.get("type", "")
        self.code: int | None = error.get("code")
        self.text: str = error.get("message", "")
        details = ", ".join(f"{name} {error[name]}" for name in ("code", "cause", "at") if error.get(name))
        super().__init__(f"{self.kind}: {self.text} ({details})")


class Inbox:
    """Events of one handle, in order of arrival."""

    def __init__(self) -> None:
        self._events: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._arrived = threading.Condition()

    def put(self, event: dict[str, Any]) -> None:
        with self._arrived:
            self._events[event["event"]].append(event)
            self._arrived.notify_all()

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self._arrived:
            return list(self._events[kind])

    def wait(
        self, kind: str, enough: Callable[[list[dict[str, Any]]], bool], *, timeout_s: float, what: str
    ) -> list[dict[str, Any]]:
        """Returns the events of that kind as soon as ``enough`` accepts them. It is called after every event, so it
        should look only at those it has not seen. The time limit restarts with every event.
        """
        with self._arrived:
            found = self._events[kind]
            while not enough(found):
                count = len(found)
                if not self._arrived.wait_for(lambda: len(found) > count, timeout_s):  # noqa: B023 - called here
                    raise HarnessTimeout(f"waited {timeout_s} s for {what}; {count} came")
            return list(found)


class Driver:
    """A driver process. Thread-safe: calls may overlap, and each waits for its own response."""

    def __init__(
        self, name: str, command: Callable[[Path], Sequence[str]], workdir: Path | None = None
    ) -> None:
        self._removed_at_close = workdir is None
        self.workdir = workdir or Path(tempfile.mkdtemp(prefix=f"orbitmq-{name}-"))
        self.child = ChildProcess(name, command(self.workdir), self.workdir, pipe_output=True)
        self._ids = itertools.count(1)
        self._handles = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Any]] = {}
        self._inboxes: defaultdict[str, Inbox] = defaultdict(Inbox)
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        self.child.start()
        self._reader = threading.Thread(target=self._read, name=f"{self.child.name}-reader", daemon=True)
        self._reader.start()
        self.child.wait_ready(self._ready.is_set, timeout_s=START_TIMEOUT_S)

    def close(self) -> None:
        """Ends the process immediately, including its clients; stop those first where a clean exit matters."""
        self.child.kill()
        if self._reader is not None:
            self._reader.join(5.0)
        if self._removed_at_close:
            shutil.rmtree(self.workdir, ignore_errors=True)

    def kill(self) -> None:
        """Simulates a crash of every client in this process."""
        self.close()

    def call(self, op: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        """Runs one operation and returns its result; raises ClientError with the client's exception."""
        return self.result(self.submit(op, **fields), op, timeout_s)

    def result(self, future: Future[Any], op: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        try:
            return future.result(timeout_s)
        except TimeoutError:
            raise HarnessTimeout(f"no answer to {op} in {timeout_s} s:\n{self.child.log_tail()}") from None

    def submit(self, op: str, /, **fields: Any) -> Future[Any]:
        """Starts one operation; the future holds its result."""
        future: Future[Any] = Future()
        with self._lock:
            # The id comes first, so that a driver can return it even when it cannot read the rest.
            request: dict[str, Any] = {"id": next(self._ids), "op": op}
            request |= {name: value for name, value in fields.items() if value is not None}
            self._pending[request["id"]] = future
            stdin = self.child.process.stdin
            assert stdin is not None
            try:
                stdin.write(json.dumps(request).encode() + b"\n")
                stdin.flush()
            except OSError as error:
                del self._pending[request["id"]]
                raise StartFailed(f"{self.child.name} is gone:\n{self.child.log_tail()}") from error
        return future

    def abandon(self) -> None:
        """Drops every client left in this process; they stop in the background."""
        self.call("abandon")
        with self._lock:
            self._inboxes.clear()

    def new_handle(self, kind: str) -> str:
        return f"{kind}-{next(self._handles)}"

    def inbox(self, handle: str) -> Inbox:
        with self._lock:
            return self._inboxes[handle]

    def _read(self) -> None:
        stdout = self.child.process.stdout
        assert stdout is not None
        try:
            for line in stdout:
                record = json.loads(line)
                if "event" not in record:
                    self._settle(record)
                elif record["event"] == "ready":
                    self._ready.set()
                else:
                    self.inbox(record["handle"]).put(record)
        finally:
            with self._lock:
                orphans = list(self._pending.values())
                self._pending.clear()
            for future in orphans:
                future.set_exception(StartFailed(f"{self.child.name} ended:\n{self.child.log_tail()}"))

    def _settle(self, record: dict[str, Any]) -> None:
        with self._lock:
            future = self._pending.pop(record["id"])
        if record["ok"]:
            future.set_result(record.get("result"))
        else:
            future.set_exception(ClientError(record["error"]))
