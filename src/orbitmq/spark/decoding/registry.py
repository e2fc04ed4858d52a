"""Fetches schemas from a registry with Confluent's HTTP interface, such as Confluent's, Karapace, Apicurio or
Redpanda.

The schema of an id never changes, so schemas are cached for the life of the process. The latest version of a subject
is requested every time. An unavailable registry fails the job but never a message: ``RegistryUnavailable`` stops a
task, while ``SchemaNotFound`` is an error of the body that names the schema.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any, Final, Literal, cast

from orbitmq.errors import ConfigError, OrbitError

__all__ = [
    "RegisteredSchema",
    "Registry",
    "RegistryAccess",
    "RegistryError",
    "RegistryUnavailable",
    "SchemaNotFound",
    "registry_of",
]

logger = logging.getLogger(__name__)

Form = Literal["AVRO", "JSON", "PROTOBUF"]

_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_SCHEMAS_MAX: Final = 1000
_REGISTRIES_MAX: Final = 16
PAUSES_S: Final = (0.1, 0.5, 1.0)
"""Pauses between attempts at a registry that does not answer. There is one more attempt than pauses."""
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
_NOT_FOUND: Final = 404


class RegistryError(OrbitError):
    """The registry refused the request, or its answer is unusable."""


class RegistryUnavailable(RegistryError):
    """The registry did not answer in time. The same request may succeed later."""


class SchemaNotFound(RegistryError):
    """The subject, version or schema id does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAccess:
    """A registry's address and credentials. Sent to the executors."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """Sent as ``Authorization: Bearer``, instead of user and password."""
    trust_file: str = ""
    """Certificates to trust, as PEM; empty means those of the machine."""
    timeout_s: float = 10.0
    """Timeout of one request."""

    @classmethod
    def parse(
        cls, url: str, *, token: str = "", trust_file: str = "", timeout_s: float = 10.0
    ) -> RegistryAccess:
        """Parses an address that may include user and password. Raises ``ConfigError``."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"a schema registry is given as http://host:port or https://host:port, not {url!r}"
            )
        if parts.username and token:
            raise ConfigError("the schema registry is given both a user and a token: give one of them")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = host if parts.port is None else f"{host}:{parts.port}"
        return cls(
            url=urllib.parse.urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")),
            user=urllib.parse.unquote(parts.username or ""),
            password=urllib.parse.unquote(parts.password or ""),
            token=token,
            trust_file=trust_file,
            timeout_s=timeout_s,
        )

    def headers(self) -> dict[str, str]:
        """Returns the headers that every request needs."""
        found = {"Accept": _ACCEPT}
        if self.token:
            found["Authorization"] = f"Bearer {self.token}"
        elif self.user:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            found["Authorization"] = f"Basic {pair}"
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """One schema of a registry."""

    schema_id: int
    """The id in the header of a body."""
    form: Form
    text: str
    """The registered text: JSON for Avro and JSON Schema, a .proto file for Protobuf."""
    references: tuple[tuple[str, str, int], ...] = ()
    """Import name, subject and version of each reference."""
    subject: str = ""
    version: int = 0


class Registry:
    """A client of one registry. It may be used from any thread."""

    def __init__(self, access: RegistryAccess, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self.access = access
        self._pauses_s = pauses_s
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()
        self._context: ssl.SSLContext | None = None

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Returns the schema with an id. Raises ``SchemaNotFound``, ``RegistryUnavailable`` or ``RegistryError``."""
        return _schema(self._once(f"/schemas/ids/{schema_id}"), schema_id=schema_id)

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the newest version of a subject. Raises like ``by_id``."""
        return _schema(self._ask(f"/subjects/{_quoted(subject)}/versions/latest"))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """Returns one version of a subject. Raises like ``by_id``."""
        return _schema(self._once(f"/subjects/{_quoted(subject)}/versions/{version}"))

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Returns all versions of a subject, the oldest first. Raises like ``by_id``."""
        versions = self._ask(f"/subjects/{_quoted(subject)}/versions")
        if not isinstance(versions, list) or not all(isinstance(one, int) for one in versions):
            raise RegistryError(f"the registry at {self.access.url} returned no list of versions")
        return [self.version(subject, version) for version in sorted(versions)]

    def serialized(self, schema: RegisteredSchema) -> str:
        """Returns a Protobuf schema as compiled by the registry (base64), or its text if the registry does not
        compile."""
        if schema.subject and schema.version:
            path = f"/subjects/{_quoted(schema.subject)}/versions/{schema.version}"
        else:
            path = f"/schemas/ids/{schema.schema_id}"
        return _schema(self._once(f"{path}?format=serialized"), schema_id=schema.schema_id).text

    def _once(self, path: str) -> Any:
        with self._lock:
            if path in self._known:
                self._known.move_to_end(path)
                return self._known[path]
        answer = self._ask(path)
        with self._lock:
            self._known[path] = answer
            while len(self._known) > _SCHEMAS_MAX:
                self._known.popitem(last=False)
        return answer

    def _ask(self, path: str) -> Any:
        request = urllib.request.Request(self.access.url + path, headers=self.access.headers())
        failure = ""
        for attempt in range(len(self._pauses_s) + 1):
            if attempt:
                Event().wait(self._pauses_s[attempt - 1])
            try:
                return self._answer(request)
            except urllib.error.HTTPError as error:
                with error:
                    problem = _problem(error)
                if error.code == _NOT_FOUND:
                    raise SchemaNotFound(f"{self.access.url}{path}: {problem}") from None
                if error.code not in _PASSING:
                    raise RegistryError(f"{self.access.url}{path}: {problem}") from None
                failure = problem
            except OSError as error:  # refused, interrupted, timed out, unknown host, invalid certificate
                failure = str(error)
            except (ValueError, RecursionError) as error:
                raise RegistryError(f"{self.access.url}{path}: the answer is not JSON: {error}") from None
            logger.info("schema registry did not answer url=%s%s error=%s", self.access.url, path, failure)
        raise RegistryUnavailable(f"no schema from {self.access.url}{path}: {failure}")

    def _answer(self, request: urllib.request.Request) -> Any:
        if self._context is None and request.type == "https":
            self._context = ssl.create_default_context(cafile=self.access.trust_file or None)
        with urllib.request.urlopen(request, timeout=self.access.timeout_s, context=self._context) as answer:
            data = answer.read(_ANSWER_BYTES_MAX + 1)
        if len(data) > _ANSWER_BYTES_MAX:
            raise ValueError(f"longer than {_ANSWER_BYTES_MAX} bytes")
        return json.loads(data)


@functools.lru_cache(_REGISTRIES_MAX)
def registry_of(access: RegistryAccess) -> Registry:
    """Returns this process's client of a registry. Spark keeps its workers, so each schema is requested once per
    worker."""
    return Registry(access)


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        document = json.loads(error.read(4096))
        return f"{error.code} {document['message']}"
    except (ValueError, KeyError, TypeError, OSError):
        return f"{error.code} {error.reason}"


def _schema(document: Any, schema_id: int | None = None) -> RegisteredSchema:
    try:
        form = document.get("schemaType") or "AVRO"  # left out for Avro, the first form there was
        if form not in ("AVRO", "JSON", "PROTOBUF"):
            raise RegistryError(f"the schema is of type {form}; AVRO, JSON and PROTOBUF can be decoded")
        text = document["schema"]
        if not isinstance(text, str):
            raise TypeError("schema is not text")
        return RegisteredSchema(
            schema_id=int(document["id"] if schema_id is None else schema_id),
            form=cast(Form, form),
            text=text,
            references=tuple(
                (str(one["name"]), str(one["subject"]), int(one["version"]))
                for one in document.get("references") or ()
            ),
            subject=str(document.get("subject", "")),
            version=int(document.get("version", 0)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RegistryError(
            f"the registry's answer is not a schema: {type(error).__name__} {error}"
        ) from None
