"""A schema registry in this process, with the part of Confluent's HTTP interface that readers use."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class RegistryStub:
    """Schemas by id and by subject; counts what it is asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.authorizations: set[str | None] = set()
        self.failing = 0
        """So many requests are answered with 503."""
        self.compiles = True
        self._schemas: list[dict[str, Any]] = []
        self._serialized: dict[int, str] = {}

    def register(
        self,
        subject: str,
        text: str,
        form: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
        compiled: bytes = b"",
    ) -> int:
        number = 101 + len(self._schemas)
        version = 1 + sum(one["subject"] == subject for one in self._schemas)
        document = {"id": number, "subject": subject, "version": version, "schema": text}
        if form != "AVRO":
            document["schemaType"] = form
        if references:
            document["references"] = references
        self._schemas.append(document)
        if compiled:
            self._serialized[number] = base64.b64encode(compiled).decode()
        return number

    def answer(self, path: str) -> tuple[int, Any]:
        if self.failing:
            self.failing -= 1
            return 503, {"error_code": 50003, "message": "leader is elected"}
        parts = urlsplit(path)
        serialized = self.compiles and parse_qs(parts.query).get("format") == ["serialized"]
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                found = [one for one in self._schemas if str(one["id"]) == number]
                keys = ("schema", "schemaType", "references")
                found = [{key: one[key] for key in keys if key in one} | {"_": one["id"]} for one in found]
            case ["subjects", subject, "versions"]:
                versions = [one["version"] for one in self._schemas if one["subject"] == subject]
                return (200, versions) if versions else (404, {"error_code": 40401, "message": "no subject"})
            case ["subjects", subject, "versions", version]:
                found = [one for one in self._schemas if one["subject"] == subject]
                found = (
                    found[-1:] if version == "latest" else [x for x in found if str(x["version"]) == version]
                )
                found = [dict(one) | {"_": one["id"]} for one in found]
            case _:
                found = []
        if not found:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        number = found[0].pop("_")
        if serialized and number in self._serialized:
            found[0]["schema"] = self._serialized[number]
        return 200, found[0]


@contextmanager
def run_registry() -> Iterator[RegistryStub]:
    stub = RegistryStub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stub.asked.append(self.path)
            stub.authorizations.add(self.headers["Authorization"])
            code, document = stub.answer(self.path)
            data = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def framed(number: int, content: bytes) -> bytes:
    """A body with Confluent's header."""
    return b"\0" + number.to_bytes(4, "big") + content
