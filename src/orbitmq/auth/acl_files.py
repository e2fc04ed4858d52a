"""Access lists of 4.x: ``conf/plain_acl.yml`` and ``conf/acl/`` (Apache: ``PlainAccessValidator``,
``PlainPermissionManager``).

The order of the checks, the error texts and the file format are those of Apache 4.9.7. Files are checked for changes
every few seconds. If a changed file cannot be read, its previous accounts stay in force. The checks are stricter than
in 4.9.7, which checks only nine requests: every request needs the rights that a 5.x user needs for it
(``auth/needs.py``). Publishing requires PUB, consuming requires SUB, and reading a topic's metadata requires either.
Anything that no permission of a topic or group can grant requires an admin account. ``authCompatibility=apache``
restores the checks of 4.9.7. Signatures are compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orbitmq.auth.control import checked_fields
from orbitmq.auth.model import Action, Need, ResourceType
from orbitmq.auth.needs import APACHE_ROWS, ROWS, Asked
from orbitmq.auth.signature import ACCESS_KEY, is_signed
from orbitmq.auth.stored import BrokerFacts
from orbitmq.errors import ConfigError, NoPermission, ServerError
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.runtime.safe_file import SafeFile

if TYPE_CHECKING:
    from orbitmq.wire.frame import Frame

__all__ = ["ADMIN_CODES", "Account", "AclFiles", "address_matches", "check_address_pattern", "parse_perm"]

logger = logging.getLogger(__name__)

KEY_LENGTH_MIN: Final = 7
_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_DENY, _PUB, _SUB = 0, 1, 2
_PERMS: Final = {"DENY": _DENY, "PUB": _PUB, "SUB": _SUB, "PUB|SUB": _PUB | _SUB, "SUB|PUB": _PUB | _SUB}
ADMIN_CODES: Final = frozenset({17, 25, 215, 200, 207})
"""Requests that 4.9.7 accepts only from admin accounts."""
_R: Final = RequestCode
_CHECKED: Final = frozenset(
    {_R.SEND_MESSAGE, _R.SEND_MESSAGE_V2, _R.CONSUMER_SEND_MSG_BACK, _R.PULL_MESSAGE, _R.QUERY_MESSAGE}
    | {_R.HEART_BEAT, _R.UNREGISTER_CLIENT, _R.GET_CONSUMER_LIST_BY_GROUP, _R.UPDATE_CONSUMER_OFFSET}
)
"""Requests for which 4.9.7 checks topic and group permissions. Its other requests need only a signature."""
_PERMITTED: Final = frozenset({Action.PUB, Action.SUB, Action.GET})
"""Actions that topic and group permissions can grant. Other actions require an admin account."""


def _refusal(text: str) -> ServerError:
    """Returns an error with code 1 and the name of Apache's exception, which clients of 4.x look for."""
    return ServerError(f"org.apache.rocketmq.acl.common.AclException: {text}")


@dataclass(frozen=True, slots=True)
class Account:
    """One account of an access list file."""

    access_key: str
    secret_key: str = field(repr=False)
    white_address: str = ""
    admin: bool = False
    default_topic: int = _DENY
    default_group: int = _DENY
    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_perm(text: object) -> int:
    """Returns the permission bits of a word such as ``PUB|SUB``; ``DENY`` for an unknown word, like Apache."""
    return _PERMS.get(str(text).strip().upper() if text is not None else "", _DENY)


def _perm_map(lines: object) -> dict[str, int]:
    perms: dict[str, int] = {}
    for line in lines if isinstance(lines, list) else ():
        name, separator, perm = str(line).partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"Parse Resource format error for {line}.")
        if perm.strip().upper() not in _PERMS:
            raise ConfigError(f"Parse resource permission error for {line}.")
        perms[name.strip()] = parse_perm(perm)
    return perms


def account_of(raw: Mapping[str, Any]) -> Account:
    """Returns the account described by its YAML form. Raises ``ConfigError``."""
    key, secret = str(raw.get("accessKey") or ""), str(raw.get("secretKey") or "")
    if len(key) < KEY_LENGTH_MIN or len(secret) < KEY_LENGTH_MIN:
        raise ConfigError(
            f"The accessKey={key} and its secretKey cannot be null and length should longer than 6"
        )
    white = str(raw.get("whiteRemoteAddress") or "").strip()
    check_address_pattern(white)
    return Account(
        key,
        secret,
        white,
        raw.get("admin") is True,
        parse_perm(raw.get("defaultTopicPerm")),
        parse_perm(raw.get("defaultGroupPerm")),
        _perm_map(raw.get("topicPerms")),
        _perm_map(raw.get("groupPerms")),
        dict(raw),
    )


# -- addresses ---------------------------------------------------------------------------------------------


def _alternatives(pattern: str) -> list[str]:
    """Returns the patterns that a pattern with braces or commas stands for."""
    if pattern.endswith("}") and "{" in pattern:
        head, _, rest = pattern[:-1].partition("{")
        return [head + part.strip() for part in rest.split(",")]
    return [part.strip() for part in pattern.split(",")]


def check_address_pattern(pattern: str) -> None:
    """Check that an address pattern is well-formed. Raises ``ConfigError`` for one that would match nothing by
    mistake."""
    for part in _alternatives(pattern) if pattern else ():
        if not part or part in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
            continue
        if ":" in part or "*" in part or "-" in part:
            pieces = part.split(":" if ":" in part else ".")
            if len(pieces) > 8 or (":" not in part and len(pieces) != 4):
                raise ConfigError(f"address pattern {part!r} cannot be read")
            continue
        try:
            ipaddress.ip_address(part)
        except ValueError:
            raise ConfigError(f"address pattern {part!r} cannot be read") from None


def _piece_matches(pattern: str, piece: str, base: int) -> bool:
    if pattern == "*":
        return True
    try:
        value = int(piece, base)
        if "-" in pattern:
            low, _, high = pattern.partition("-")
            return int(low, base) <= value <= int(high, base)
        return int(pattern, base) == value
    except ValueError:
        return False


def address_matches(pattern: str, address: str) -> bool:
    """Whether the pattern matches an IP address. A blank pattern matches no address."""
    for part in _alternatives(pattern) if pattern.strip() else ():
        if part in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
            return True
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            continue
        if "*" not in part and "-" not in part:
            try:
                if ipaddress.ip_address(part) == parsed:
                    return True
            except ValueError:
                pass
            continue
        v6 = ":" in part
        if v6 != (parsed.version == 6):
            continue
        patterns = part.split(":" if v6 else ".")
        pieces = parsed.exploded.split(":" if v6 else ".")
        if len(patterns) == len(pieces) and all(
            _piece_matches(p, piece, 16 if v6 else 10) for p, piece in zip(patterns, pieces, strict=True)
        ):
            return True
    return False


class AclFiles:
    """The current accounts. Checks requests against them."""

    def __init__(
        self, fs: FileSystem, home: str, facts: BrokerFacts, *, clock: Clock, apache_rows: bool = False
    ) -> None:
        self._fs = fs
        self._clock = clock
        self.facts = facts
        self._apache = apache_rows
        self.main_path = posixpath.join(home, "conf", "plain_acl.yml")
        self._folder = posixpath.join(home, "conf", "acl")
        self.accounts: dict[str, Account] = {}
        self.white_addresses: list[str] = []
        self.versions: dict[str, dict[str, int]] = {}
        """Data versions by file path."""
        self._contents: dict[str, dict[str, Any]] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self.refused_count = 0
        self.version = 0
        """Counts the changes of accounts."""
        self.changed: list[Callable[[], None]] = []
        """Called when accounts have changed."""

    # -- files -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read all files; creates the main file if it is missing. Raises ``ConfigError``, because a broker with
        access control must not start with only some of its accounts."""
        if self._fs.stat(self.main_path) is None:
            self._save(self.main_path, {"accounts": []})
            logger.warning("access list created empty path=%s", self.main_path)
        contents = {path: self._read(path) for path in self._paths()}
        self._take(contents)

    def reload(self) -> None:
        """Load changed files. The accounts of an unreadable file stay as they are."""
        stamps = {path: self._stamp(path) for path in self._paths()}
        if stamps == self._stamps:
            return
        self._stamps = stamps
        contents: dict[str, dict[str, Any]] = {}
        for path in stamps:
            try:
                contents[path] = self._read(path)
            except ConfigError as error:
                logger.error("access list not reloaded, keeping the previous one error=%s", error)
                if path in self._contents:
                    contents[path] = self._contents[path]
        self._take(contents)
        logger.info("access lists reloaded accounts=%d", len(self.accounts))

    def _paths(self) -> list[str]:
        found = [self.main_path]
        waiting = [self._folder]
        while waiting:
            folder = waiting.pop()
            for name in sorted(self._fs.names(folder)) if self._fs.stat(folder) is not None else ():
                path = posixpath.join(folder, name)
                stat = self._fs.stat(path)
                if stat is not None and stat.is_directory:
                    waiting.append(path)
                elif name.endswith((".yml", ".yaml")):
                    found.append(path)
        return found

    def _stamp(self, path: str) -> tuple[int, int]:
        found = self._fs.stat(path)
        return (0, 0) if found is None else (found.modified_ms, found.size_bytes)

    def _read(self, path: str) -> dict[str, Any]:
        def parse(content: bytes) -> dict[str, Any]:
            import yaml  # here: a broker without access lists starts without the package

            try:
                value = yaml.safe_load(content.decode()) or {}
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path} cannot be read: {error}") from None
            if not isinstance(value, dict):
                raise ConfigError(f"{path} is not a map")
            for raw in _list(value.get("accounts")):
                try:
                    account_of(raw if isinstance(raw, dict) else {})
                except ConfigError as error:
                    raise ConfigError(f"{path}: {error}") from None
            for pattern in _list(value.get("globalWhiteRemoteAddresses")):
                check_address_pattern(str(pattern))
            return value

        handle = self._fs.open(path)
        try:
            content = self._fs.pread(handle, self._fs.file_size(handle), 0)
        finally:
            self._fs.close(handle)
        return parse(content)

    def _take(self, contents: dict[str, dict[str, Any]]) -> None:
        accounts: dict[str, Account] = {}
        white: list[str] = []
        for path, value in contents.items():
            white += [str(pattern) for pattern in _list(value.get("globalWhiteRemoteAddresses"))]
            for raw in _list(value.get("accounts")):
                account = account_of(raw)
                if account.access_key in accounts:
                    logger.warning("access key defined in two files, using the first path=%s", path)
                else:
                    accounts[account.access_key] = account
            version = _list(value.get("dataVersion"))
            first = version[0] if version and isinstance(version[0], dict) else {}
            self.versions[path] = {
                "counter": int(first.get("counter") or 0),
                "timestamp": int(first.get("timestamp") or 0),
            }
        self._contents = contents
        self._stamps = {path: self._stamp(path) for path in contents}
        self.accounts, self.white_addresses = accounts, white
        self.version += 1
        for subscriber in self.changed:
            subscriber()

    def _save(self, path: str, value: dict[str, Any]) -> None:
        import yaml

        version = _list(value.get("dataVersion"))
        counter = int(version[0].get("counter") or 0) if version and isinstance(version[0], dict) else -1
        value["dataVersion"] = [{"counter": counter + 1, "timestamp": self._clock.now_ms()}]
        text = yaml.safe_dump(value, allow_unicode=True, sort_keys=False).encode()
        SafeFile(self._fs, path, private=True).save(text)

    def _path_of(self, access_key: str) -> str | None:
        for path, value in self._contents.items():
            if any(raw.get("accessKey") == access_key for raw in _list(value.get("accounts"))):
                return path
        return None

    def store_account(self, changes: Mapping[str, Any]) -> None:
        """Create an account, or change the given members of an existing one. Raises ``ConfigError``, ``OSError``."""
        key = str(changes.get("accessKey") or "")
        old = self.accounts.get(key)
        merged = {**(old.raw if old is not None else {}), **changes}
        account_of(merged)
        path = self._path_of(key) or self.main_path
        value = dict(self._contents.get(path) or {})
        others = [raw for raw in _list(value.get("accounts")) if raw.get("accessKey") != key]
        value["accounts"] = [*others, merged]
        self._save(path, value)
        self.load()

    def delete_account(self, access_key: str) -> bool:
        """Delete an account from its file. Returns False if it does not exist."""
        path = self._path_of(access_key)
        if path is None:
            return False
        value = dict(self._contents[path])
        value["accounts"] = [
            raw for raw in _list(value.get("accounts")) if raw.get("accessKey") != access_key
        ]
        self._save(path, value)
        self.load()
        return True

    def store_white_addresses(self, addresses: list[str], path: str) -> bool:
        """Replace the white list of one of the files in use. Returns False if ``path`` is not one of them."""
        chosen = path or self.main_path
        if chosen not in self._contents:
            return False
        for address in addresses:
            check_address_pattern(address)
        value = dict(self._contents[chosen])
        value["globalWhiteRemoteAddresses"] = addresses
        self._save(chosen, value)
        self.load()
        return True

    # -- the check -------------------------------------------------------------------------------------

    def check(self, frame: Frame, address: str) -> None:
        """Check a request from a peer at that IP address. Raises ``ServerError`` if it is refused."""
        try:
            self._check(frame, address)
        except ServerError:
            self.refused_count += 1
            raise

    def _check(self, frame: Frame, address: str) -> None:
        if any(address_matches(pattern, address) for pattern in self.white_addresses):
            return
        try:
            fields = checked_fields(frame)
        except NoPermission as error:
            raise _refusal(error.remark) from None
        key = fields.get(ACCESS_KEY)
        if not key:
            raise _refusal("No accessKey is configured")
        account = self.accounts.get(key)
        if account is None:
            raise _refusal(f"No acl config for {key}")
        if account.white_address and address_matches(account.white_address, address):
            return
        if not is_signed(fields, frame.body, account.secret_key, version=frame.version, always_skip=True):
            raise _refusal(f"Check signature failed for accessKey={key}")
        try:
            needs = self._needs(frame, fields)
        except NoPermission as error:
            raise _refusal(error.remark) from None
        if any(need.name == _TRACE_TOPIC and Action.PUB in need.actions for need in needs or ()):
            return
        if not account.admin and (needs is None or frame.code in ADMIN_CODES or any(map(_is_admins, needs))):
            raise _refusal(f"Need admin permission for request code={frame.code}, but accessKey={key} is not")
        self._hold_all(account, needs or ())

    def _needs(self, frame: Frame, fields: Mapping[str, str]) -> list[Need] | None:
        """Returns the rights that a request needs; None if only an admin may send it."""
        code = frame.code
        if self._apache and code not in _CHECKED:
            return []
        row = (APACHE_ROWS if self._apache else ROWS).get(code)
        return None if row is None else list(row(Asked(fields, frame.body, self.facts)))

    def allows(self, name: str, need: Need, address: str) -> bool:
        """Whether an account whose signature was checked earlier currently has this right."""
        if any(address_matches(pattern, address) for pattern in self.white_addresses):
            return True
        account = self.accounts.get(name)
        if account is None:
            return False
        if account.white_address and address_matches(account.white_address, address):
            return True
        try:
            self._hold_all(account, (need,))
        except ServerError:
            return False
        return True

    def check_content(
        self, name: str, content: bytes, digest: bytes, needs: Iterable[Need], address: str
    ) -> str:
        """Check a gRPC request: ``digest`` is the raw HMAC-SHA1 of ``content``, and the account must have all of
        ``needs``. Returns the name of the account; empty for an address that needs no signature. Raises
        ``ServerError``."""
        try:
            return self._check_content(name, content, digest, needs, address)
        except ServerError:
            self.refused_count += 1
            raise

    def _check_content(
        self, name: str, content: bytes, digest: bytes, needs: Iterable[Need], address: str
    ) -> str:
        if any(address_matches(pattern, address) for pattern in self.white_addresses):
            return ""
        if not name:
            raise _refusal("No accessKey is configured")
        account = self.accounts.get(name)
        if account is None:
            raise _refusal(f"No acl config for {name}")
        if account.white_address and address_matches(account.white_address, address):
            return name
        if not hmac.compare_digest(hmac.digest(account.secret_key.encode(), content, "sha1"), digest):
            raise _refusal(f"Check signature failed for accessKey={name}")
        self._hold_all(account, needs)
        return name

    def _hold_all(self, account: Account, needs: Iterable[Need]) -> None:
        """Check that an account has all of these rights. Raises ``ServerError`` for the first missing one. An admin's
        permissions are checked only if it has any, and then only for publishing and consuming."""
        if account.admin and not account.topics and not account.groups:
            return
        for need in needs:
            if account.admin and not {Action.PUB, Action.SUB}.intersection(need.actions):
                continue
            try:
                self._hold(account, need)
            except ServerError:
                if need.instead is None:
                    raise
                self._hold(account, need.instead)

    def _hold(self, account: Account, need: Need) -> None:
        wanted = (_PUB if Action.PUB in need.actions else 0) | (_SUB if Action.SUB in need.actions else 0)
        if not wanted:  # something is only looked at
            wanted = _PUB | _SUB if need.type is ResourceType.TOPIC else _SUB
        if need.type is ResourceType.TOPIC:
            own, default, kind = account.topics.get(need.name), account.default_topic, "topic"
        else:
            own, default, kind = account.groups.get(need.name), account.default_group, "group"
        perm = default if own is None else own
        if not perm & wanted:
            raise _refusal(f"No default permission for {kind}:{need.name}")


def _is_admins(need: Need) -> bool:
    return need.type is ResourceType.CLUSTER or _PERMITTED.isdisjoint(need.actions)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
