"""Login, sessions and request forgery protection.

Every change is a POST. It is refused unless it comes from a page of this console (checked by the Origin or
Sec-Fetch-Site header, and by the Host header against DNS rebinding), carries the session's token, and the session's
role is high enough. The cookie is HttpOnly and SameSite=Strict.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.admin import Admin
from orbitmq.console.settings import Role
from orbitmq.errors import ConfigError
from orbitmq.runtime.clock import Clock

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "COOKIE",
    "AuditLog",
    "SecureHeaders",
    "Session",
    "Sessions",
    "UserFile",
    "hash_password",
    "same_origin",
    "token_matches",
]

COOKIE: Final = "orbitmq_console"
_SESSION_S: Final = 12 * 3600
_SESSIONS_MAX: Final = 10_000
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(slots=True)
class Session:
    """One browser's session."""

    token: str
    """Included in every form. A page of another origin cannot read it."""
    user: str
    role: Role
    expires_s: float
    admin: Admin | None = None
    """A session with the user's own credentials, if users log in as users of the broker."""
    flashes: list[tuple[str, str]] = field(default_factory=list)
    """Messages to show on the next page, as pairs of kind and text."""


class Sessions:
    """The sessions of this process, by cookie value. Their number is limited; the oldest is evicted first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self.on_end: Callable[[Session], None] = lambda _session: None
        """Called for every session that ends, so that its connections can be closed."""

    def open(self, user: str, role: Role, admin: Admin | None = None) -> tuple[str, Session]:
        now_s = self._clock.monotonic()
        for key in [key for key, one in self._sessions.items() if one.expires_s < now_s]:
            self.end(key)
        while len(self._sessions) >= _SESSIONS_MAX:
            self.end(next(iter(self._sessions)))
        key = secrets.token_urlsafe(32)
        session = Session(secrets.token_urlsafe(32), user, role, now_s + _SESSION_S, admin)
        self._sessions[key] = session
        return key, session

    def find(self, key: str | None) -> Session | None:
        session = self._sessions.get(key or "")
        if session is None or session.expires_s < self._clock.monotonic():
            return None
        return session

    def end(self, key: str | None) -> None:
        session = self._sessions.pop(key or "", None)
        if session is not None:
            self.on_end(session)

    def end_all(self) -> list[Session]:
        """End every session and return all of them. The caller must close their connections."""
        ended = list(self._sessions.values())
        self._sessions.clear()
        return ended


def host_allowed(host: str, hosts: frozenset[str], *, needs_login: bool) -> bool:
    """Returns whether a Host header names this console.

    Without a login, only loopback names and ``hosts`` are accepted, so that another site cannot gain access by
    resolving its own name to 127.0.0.1.
    """
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name in _LOOPBACK or name in hosts:
        return True
    return needs_login and not hosts


def same_origin(headers: Mapping[str, str]) -> bool:
    """Returns whether a browser sent the request from a page of this host.

    Other programs can forge these headers, but they do not have the session's cookie.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return site is not None
    return origin.partition("://")[2] == headers.get("host", "")


def token_matches(session: Session, given: str) -> bool:
    return hmac.compare_digest(session.token.encode(), given.encode())


# -- users from a file -------------------------------------------------------------------------------------

_COST: Final = 2**14
_HASH: Final = re.compile(r"scrypt\$[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{86}==")


def hash_password(password: str, salt: bytes | None = None) -> str:
    """Returns a password's hash in the form ``scrypt$salt$hash``. The salt is random unless given."""
    salt = secrets.token_bytes(16) if salt is None else salt
    key = hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=8, p=1)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}"


class UserFile:
    """A file with lines of the form ``name:role:scrypt$salt$hash``, read again at each login.

    Raises ``ConfigError`` if it cannot be read or a line is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nobody = hash_password("nobody")
        self.read()

    def read(self) -> dict[str, tuple[Role, str]]:
        found: dict[str, tuple[Role, str]] = {}
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            parts = line.strip().split(":", 2)
            if len(parts) != 3 or not _HASH.fullmatch(parts[2]):
                raise ConfigError(f"{self._path}:{number}: not of the form name:role:scrypt$salt$hash")
            found[parts[0]] = (Role.parse(parts[1]), parts[2])
        return found

    def check(self, user: str, password: str) -> Role | None:
        """Returns the user's role, or None if the name or the password is wrong. Unknown names take the same time."""
        known = self.read().get(user)
        role, stored = known if known is not None else (Role.VIEWER, self._nobody)
        salt = base64.b64decode(stored.split("$")[1])
        right = hmac.compare_digest(hash_password(password, salt).encode(), stored.encode())
        return role if right and known is not None else None

    @staticmethod
    def add(path: Path, user: str, role: Role, password: str) -> None:
        """Add or replace a user in the file. Raises ``ConfigError`` for an unusable name."""
        if not user or user != user.strip() or user.startswith("#") or ":" in user or not user.isprintable():
            raise ConfigError(
                f"{user!r} cannot be the name of a user: it is empty, starts with #, starts or ends with a space,"
                " or contains a colon or a control character"
            )
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if line.split(":", 1)[0].strip() != user]
        kept.append(f"{user}:{role.name.lower()}:{hash_password(password)}")
        fresh = path.with_name(path.name + ".new")
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write("\n".join(kept) + "\n")
        fresh.replace(path)


# -- audit log ---------------------------------------------------------------------------------------------


class AuditLog:
    """Writes one JSON line for each attempted change. Without a path, the last thousand entries are kept in
    memory.
    """

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._kept: list[dict[str, Any]] = []

    def write(self, user: str, address: str, action: str, target: str, **more: Any) -> None:
        entry = {
            "at": self._clock.now_ms(),
            "user": user,
            "address": address,
            "action": action,
            "target": target,
            **more,
        }
        if self._path is None:
            self._kept = [*self._kept[-999:], entry]
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def last(self, count: int = 500) -> list[dict[str, Any]]:
        """Returns the last entries of the log, newest first."""
        if self._path is None:
            return self._kept[-count:][::-1]
        try:
            with open(self._path, "rb") as file:
                file.seek(0, os.SEEK_END)
                size = file.tell()
                file.seek(max(0, size - count * 2048))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines[::-1]:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the first line may be incomplete
        return found[:count]


class SecureHeaders:
    """Adds security headers to every response and refuses requests for other hosts."""

    def __init__(self, app: ASGIApp, allowed: Callable[[str], bool]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if not self._allowed(host):
            from starlette.responses import PlainTextResponse

            text = f"this console does not answer to the name {host!r}; see --host-name"
            await PlainTextResponse(text, 421)(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)
