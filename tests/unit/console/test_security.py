"""Who may change what: roles, tokens, other origins, other hosts, users and the audit log. Without HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from tests.unit.console.cluster import NAME_SERVER, Browser, Cluster, browse

from orbitmq.admin import Admin
from orbitmq.console import app as console_app
from orbitmq.console import security
from orbitmq.console.pages.table import ACTIONS, PAGES
from orbitmq.console.security import COOKIE, AuditLog, Sessions, UserFile, host_allowed, same_origin
from orbitmq.console.serve import serve_console
from orbitmq.console.settings import ConsoleSettings, Role
from orbitmq.errors import ConfigError
from orbitmq.testing.manual_clock import ManualClock

T = TypeVar("T")
FORM = {"topic": "orders", "group": "g", "cluster": "DefaultCluster", "confirmed": "1", "typed": "orders"}
OWN = {"origin": "http://localhost"}


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of three users; the password of each is its name and ``-password``."""
    monkeypatch.setattr(security, "_COST", 16)
    monkeypatch.setattr(console_app, "_LOGIN_WAIT_S", 0)
    file = tmp_path / "users"
    for name in ("viewer", "operator", "admin"):
        UserFile.add(file, name, Role.parse(name), f"{name}-password")
    return file


def cluster() -> Cluster:
    made = Cluster()
    made.store("orders", b"x")
    return made


def visit(users: Path, work: Callable[[Browser], Awaitable[T]]) -> T:
    return browse(cluster(), work, ConsoleSettings(users=users))


async def login(browser: Browser, user: str, password: str = "", **more: str) -> httpx.Response:
    form = {"user": user, "password": password or f"{user}-password", **more}
    return await browser.client.post("/login", data=form)


def token(browser: Browser) -> str:
    found = browser.console.sessions.find(browser.client.cookies.get(COOKIE))
    assert found is not None
    return found.token


def outcomes(browser: Browser) -> list[str]:
    return [entry["outcome"] for entry in browser.console.services.audit.last()]


# -- login ---------------------------------------------------------------------------------------------


def test_every_page_leads_to_the_login_and_reads_nothing(users: Path) -> None:
    async def work(browser: Browser) -> None:
        for path in PAGES:
            answer = await browser.get(re.sub(r"\{\w+\}", "x", path))
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login"), path
        assert browser.cluster.asked == []

    visit(users, work)


def test_wrong_password_is_refused_and_noted_without_the_password(users: Path) -> None:
    async def work(browser: Browser) -> None:
        for user, password in (("admin", "guess"), ("nobody", "guess"), ("admin", "viewer-password")):
            refused = await login(browser, user, password)
            assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        assert outcomes(browser) == ["refused"] * 3
        assert "guess" not in str(browser.console.services.audit.last())

    visit(users, work)


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "http://evil.example", "/\\evil.example", "/\t/evil.example"]
)
def test_login_leads_only_to_pages_of_the_console(users: Path, wanted: str) -> None:
    async def work(browser: Browser) -> None:
        place = (await login(browser, "viewer", next=wanted)).headers["location"]
        assert place in ("/", "/%09/evil.example")
        assert (await login(browser, "viewer", next="/topics?x=1")).headers["location"] == "/topics?x=1"

    visit(users, work)


def test_login_from_another_origin_is_refused(users: Path) -> None:
    async def work(browser: Browser) -> None:
        form = {"user": "admin", "password": "admin-password"}
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            answer = await browser.client.post("/login", data=form, headers=headers)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)

    visit(users, work)


def test_cookie_is_strict_and_headers_forbid_everything_else(users: Path) -> None:
    async def work(browser: Browser) -> None:
        cookie = (await login(browser, "viewer")).headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        for path in ("/", "/nowhere", "/static/none", "/login"):
            headers = (await browser.get(path)).headers
            assert "default-src 'none'" in headers["content-security-policy"], path
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-frame-options"] == "DENY"

    visit(users, work)


def test_logout_needs_the_token_and_ends_the_session(users: Path) -> None:
    async def work(browser: Browser) -> None:
        await login(browser, "viewer")
        assert (await browser.client.post("/logout", data={"token": "guess"})).status_code == 403
        assert (await browser.get("/")).status_code == 200
        key = browser.client.cookies[COOKIE]
        assert (await browser.client.post("/logout", data={"token": token(browser)})).status_code == 303
        browser.client.cookies.set(COOKIE, key)
        assert (await browser.get("/")).headers["location"].startswith("/login"), (
            "the old cookie is worthless"
        )

    visit(users, work)


# -- roles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIONS)
def test_action_is_refused_and_noted_below_its_role(users: Path, name: str) -> None:
    async def work(browser: Browser) -> None:
        for role in Role:
            if role >= ACTIONS[name].role:
                break
            key, session = browser.console.sessions.open("alice", role)
            browser.client.cookies.set(COOKIE, key)
            answer = await browser.client.post(f"/do/{name}", data={**FORM, "token": session.token})
            assert answer.status_code == 403, answer.text
            [entry, *_] = browser.console.services.audit.last()
            assert (entry["outcome"], entry["user"], entry["action"]) == ("refused", "alice", name)
        assert browser.cluster.asked == []
        assert ACTIONS[name].role > Role.VIEWER, "viewers change nothing"

    visit(users, work)


def test_operators_send_and_move_and_only_admins_create_and_delete() -> None:
    operator = {name for name, action in ACTIONS.items() if action.role == Role.OPERATOR}
    assert operator == {"send", "offsets", "dlq-resend", "dlq-edit", "dlq-drop", "dlq-stop"}


def test_operator_gets_the_plan_of_a_send(users: Path) -> None:
    async def work(browser: Browser) -> str:
        key, session = browser.console.sessions.open("alice", Role.OPERATOR)
        browser.client.cookies.set(COOKIE, key)
        form = {"token": session.token, "topic": "orders", "body": "x"}
        return (await browser.client.post("/do/send", data=form)).text

    assert "Store one message" in visit(users, work)


def test_session_without_login_is_an_admin_and_has_a_plan_first() -> None:
    async def work(browser: Browser) -> None:
        answer = await browser.post("topic-delete", **{**FORM, "confirmed": ""})
        assert answer.status_code == 200
        assert "Delete topic orders" in answer.text
        mistyped = await browser.post("topic-delete", **{**FORM, "typed": "order"})
        assert "Delete topic orders" in mistyped.text
        assert outcomes(browser) == [], "nothing was done, and nothing refused"

    browse(cluster(), work)


# -- forgery -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {},
    ],
)
def test_another_origin_cannot_change_anything(users: Path, headers: dict[str, str]) -> None:
    async def work(browser: Browser) -> None:
        key, session = browser.console.sessions.open("alice", Role.ADMIN)
        del browser.client.headers["origin"]
        browser.client.cookies.set(COOKIE, key)
        form = {**FORM, "token": session.token}
        assert (await browser.client.post("/do/topic-delete", data=form, headers=headers)).status_code == 403
        for guess in ("guess", ""):
            form["token"] = guess
            answer = await browser.client.post("/do/topic-delete", data=form, headers=OWN)
            assert answer.status_code == 403
        assert browser.cluster.asked == []
        assert outcomes(browser) == ["refused"] * 3

    visit(users, work)


def test_change_without_a_session_is_refused(users: Path) -> None:
    async def work(browser: Browser) -> int:
        return (await browser.client.post("/do/topic-delete", data=FORM)).status_code

    assert visit(users, work) == 401


def test_form_without_a_length_or_too_large_is_not_read(users: Path) -> None:
    async def work(browser: Browser) -> list[int]:
        key, _ = browser.console.sessions.open("alice", Role.ADMIN)
        browser.client.cookies.set(COOKIE, key)
        codes = []
        for length in ("", "x", str(8 * 1024 * 1024 + 1)):
            headers = {"content-length": length, "content-type": "application/x-www-form-urlencoded"}
            answer = await browser.client.post("/do/send", content=b"a=b", headers=headers)
            codes.append(answer.status_code)
        return codes

    assert visit(users, work) == [413] * 3


def test_host_of_another_name_is_refused() -> None:
    async def work(browser: Browser) -> list[int]:
        hosts = ("localhost", "127.0.0.1:8080", "evil.example", "")
        return [(await browser.client.get("/", headers={"host": host})).status_code for host in hosts]

    assert browse(cluster(), work) == [200, 200, 421, 421]


def test_read_only_console_has_no_changes() -> None:
    async def work(browser: Browser) -> None:
        assert "Preview" not in (await browser.get("/topics")).text
        assert (await browser.client.post("/do/send", data=FORM)).status_code == 404

    browse(cluster(), work, ConsoleSettings(read_only=True))


def test_address_others_can_reach_needs_a_login() -> None:
    serving = serve_console(Admin(NAME_SERVER), ConsoleSettings(), host="0.0.0.0", port=0)
    with pytest.raises(ConfigError, match="needs a login"):
        asyncio.run(serving.__aenter__())


def test_names_and_origins_that_are_ours() -> None:
    assert host_allowed("127.0.0.1:8080", frozenset(), needs_login=False)
    assert host_allowed("[::1]:8080", frozenset(), needs_login=False)
    assert not host_allowed("evil.example:8080", frozenset(), needs_login=False)
    assert host_allowed("any.example", frozenset(), needs_login=True)
    assert not host_allowed("any.example", frozenset({"console.example"}), needs_login=True)
    assert same_origin({"origin": "http://h:1", "host": "h:1"})
    assert not same_origin({"origin": "http://h:2", "host": "h:1"})
    assert not same_origin({"host": "h:1"})


# -- sessions, users and the audit log -----------------------------------------------------------------


def test_session_expires_and_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "_SESSIONS_MAX", 2)
    clock, ended = ManualClock(), []
    sessions = Sessions(clock)
    sessions.on_end = lambda session: ended.append(session.user)
    keys = [sessions.open(user, Role.VIEWER)[0] for user in ("a", "b", "c")]
    assert ended == ["a"]
    assert [sessions.find(key) is not None for key in keys] == [False, True, True]
    clock.advance(12 * 3_600_000 + 1)
    assert sessions.find(keys[2]) is None
    sessions.open("d", Role.VIEWER)
    assert ended == ["a", "b", "c"], "expired sessions are closed, too"
    assert sessions.find(None) is None


def test_file_of_users_is_read_at_every_login(users: Path) -> None:
    file = UserFile(users)
    assert file.check("admin", "admin-password") == Role.ADMIN
    assert file.check("admin", "viewer-password") is None
    assert file.check("nobody", "nobody") is None, "the stand-in for unknown names opens nothing"
    UserFile.add(users, "admin", Role.VIEWER, "fresh")
    assert file.check("admin", "admin-password") is None
    assert file.check("admin", "fresh") == Role.VIEWER
    assert users.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line", ["bob", "bob:admin", "bob:admin:plain", "bob:root:scrypt$AAAA$AAAA", "bob:admin:scrypt$A$AAAA"]
)
def test_line_that_is_no_user_is_refused_when_the_file_is_read(users: Path, line: str) -> None:
    users.write_text(f"# a comment\n\n{line}\n")
    with pytest.raises(ConfigError):
        UserFile(users)


@pytest.mark.parametrize("name", ["", "a:b", " a", "#a", "a\nroot:admin"])
def test_name_that_the_file_cannot_hold_is_refused(users: Path, name: str) -> None:
    before = users.read_bytes()
    with pytest.raises(ConfigError, match="cannot be the name of a user"):
        UserFile.add(users, name, Role.ADMIN, "x")
    assert users.read_bytes() == before


@pytest.mark.parametrize("is_file", [True, False])
def test_audit_log_has_the_newest_entries_first(tmp_path: Path, is_file: bool) -> None:
    path = tmp_path / "audit.jsonl" if is_file else None
    audit = AuditLog(path, ManualClock(7))
    assert audit.last() == []
    for number in range(4):
        audit.write("alice", "192.0.2.1", "send", f"t{number}", outcome="done")
    assert [entry["target"] for entry in audit.last(2)] == ["t3", "t2"]
    assert audit.last(1)[0] == {
        "at": 7,
        "user": "alice",
        "address": "192.0.2.1",
        "action": "send",
        "target": "t3",
        "outcome": "done",
    }
    if path is not None:
        assert path.stat().st_mode & 0o777 == 0o600
        path.write_bytes(b'{"target": "cut' + b"\n" + path.read_bytes())
        assert len(audit.last()) == 4


def test_confirmed_change_is_noted_with_hidden_secrets(users: Path) -> None:
    async def work(browser: Browser) -> dict[str, Any]:
        key, session = browser.console.sessions.open("alice", Role.ADMIN)
        browser.client.cookies.set(COOKIE, key)
        form = {"token": session.token, "confirmed": "1", "username": "bob", "password": "s3cret"}
        answer = await browser.client.post("/do/user-store", data={**form, "cluster": "DefaultCluster"})
        assert "Nothing was changed" in answer.text, "this broker has no users"
        entry: dict[str, Any] = browser.console.services.audit.last()[0]
        return entry

    entry = visit(users, work)
    assert (entry["outcome"], entry["target"]) == ("failed", "bob")
    assert "s3cret" not in str(entry)
