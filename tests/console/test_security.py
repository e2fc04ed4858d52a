"""Who may change what: roles, tokens, other origins, other hosts, masked bodies. Plain HTTP, without a browser."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

import httpx
import pytest
from tests.console.kit import running_console

from orbitmq.client import Message, Producer
from orbitmq.client.sync import LoopThread
from orbitmq.console.pages.table import ACTIONS, PAGES
from orbitmq.console.security import UserFile, host_allowed, same_origin
from orbitmq.console.serve import RunningConsole, serve_console
from orbitmq.console.settings import Bodies, ConsoleSettings, Role
from orbitmq.errors import ConfigError
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

TOKEN: Final = re.compile(r'name="token" value="([^"]+)"')


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningBroker]:
    with run_broker() as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def with_login(
    cluster: RunningBroker, loop: LoopThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningConsole]:
    tmp_path = tmp_path_factory.mktemp("console")
    users = tmp_path / "users"
    for name in ("viewer", "operator", "admin"):
        UserFile.add(users, name, Role.parse(name), f"{name}-password")
    settings = ConsoleSettings(users=users, state=tmp_path / "state")
    with running_console(loop, cluster.name_server, settings) as running:
        yield running


def logged_in(running: RunningConsole, name: str) -> tuple[httpx.Client, str]:
    client = httpx.Client(base_url=running.url, headers={"origin": running.url.rstrip("/")}, timeout=30.0)
    answer = client.post("/login", data={"user": name, "password": f"{name}-password"})
    assert answer.status_code == 303, answer.text
    found = TOKEN.search(client.get("/topics/orders/send").text) or TOKEN.search(client.get("/").text)
    assert found is not None, "every page has the token in its log-out form"
    return client, found.group(1)


def test_without_login_every_page_leads_to_the_login(with_login: RunningConsole) -> None:
    with httpx.Client(base_url=with_login.url, timeout=30.0) as client:
        for path in PAGES:
            answer = client.get(re.sub(r"\{\w+\}", "x", path))
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login"), path


def test_wrong_password_is_refused_and_noted(with_login: RunningConsole) -> None:
    with httpx.Client(base_url=with_login.url, headers={"origin": with_login.url.rstrip("/")}) as client:
        for data in ({"user": "admin", "password": "guess"}, {"user": "nobody", "password": "x"}):
            assert client.post("/login", data=data).status_code == 403
    entries = with_login.console.services.audit.last()
    assert [entry["outcome"] for entry in entries[:2]] == ["refused", "refused"]


@pytest.mark.parametrize("name", ACTIONS)
def test_viewer_cannot_change_anything_by_hand_made_requests(with_login: RunningConsole, name: str) -> None:
    client, token = logged_in(with_login, "viewer")
    form = {"token": token, "confirmed": "1", "topic": "orders", "group": "g", "cluster": "DefaultCluster"}
    with contextlib.closing(client):
        answer = client.post(f"/do/{name}", data=form | {"typed": "orders", "body": "x"})
    assert answer.status_code == 403, answer.text
    assert with_login.console.services.audit.last()[0]["outcome"] == "refused"


def test_operator_may_send_and_not_delete(with_login: RunningConsole) -> None:
    client, token = logged_in(with_login, "operator")
    with contextlib.closing(client):
        form = {"token": token, "topic": "orders", "body": "sent"}
        assert "Store one message" in client.post("/do/send", data=form).text
        assert client.post("/do/send", data=form | {"confirmed": "1"}).status_code == 303
        form = {
            "token": token,
            "topic": "orders",
            "cluster": "DefaultCluster",
            "confirmed": "1",
            "typed": "orders",
        }
        assert client.post("/do/topic-delete", data=form).status_code == 403
        assert client.get("/topics/orders").status_code == 200


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
def test_another_origin_cannot_change_anything(with_login: RunningConsole, headers: dict[str, str]) -> None:
    client, token = logged_in(with_login, "admin")
    with contextlib.closing(client):
        client.headers.pop("origin")
        form = {"token": token, "topic": "orders", "body": "x", "confirmed": "1"}
        assert client.post("/do/send", data=form, headers=headers).status_code == 403
        mine = {"origin": with_login.url.rstrip("/")}
        assert client.post("/do/send", data=form | {"token": "guess"}, headers=mine).status_code == 403
        assert client.post("/do/send", data={**form, "token": ""}, headers=mine).status_code == 403


def test_cookie_is_strict_and_headers_forbid_everything_else(with_login: RunningConsole) -> None:
    with httpx.Client(base_url=with_login.url, headers={"origin": with_login.url.rstrip("/")}) as client:
        answer = client.post("/login", data={"user": "viewer", "password": "viewer-password"})
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        policy = client.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_login_leads_only_to_pages_of_the_console(with_login: RunningConsole) -> None:
    with httpx.Client(base_url=with_login.url, headers={"origin": with_login.url.rstrip("/")}) as client:
        for wanted in ("//evil.example", "http://evil.example", "/\\evil.example"):
            form = {"user": "viewer", "password": "viewer-password", "next": wanted}
            assert client.post("/login", data=form).headers["location"] == "/"


def test_host_of_another_name_is_refused(cluster: RunningBroker, loop: LoopThread) -> None:
    with (
        running_console(loop, cluster.name_server, ConsoleSettings()) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        assert client.get("/").status_code == 200
        assert client.get("/", headers={"host": "evil.example"}).status_code == 421


def test_read_only_console_has_no_changes(cluster: RunningBroker, loop: LoopThread) -> None:
    with (
        running_console(loop, cluster.name_server, ConsoleSettings(read_only=True)) as running,
        httpx.Client(base_url=running.url, headers={"origin": running.url.rstrip("/")}) as client,
    ):
        assert "Preview" not in client.get("/topics").text
        assert client.post("/do/send", data={"topic": "orders"}).status_code == 404


def test_bodies_are_masked_or_off(cluster: RunningBroker, loop: LoopThread) -> None:
    async def send() -> str:
        async with Producer("mask", cluster.name_server) as producer:
            body = '{"password": "hunter2", "mail": "a@b.example", "fine": 1}'
            return (await producer.send(Message("masked", body, keys="k"))).message_id

    message_id = loop.run(send())
    paths = (
        "/topics/masked/messages",
        f"/messages/{message_id}?topic=masked",
        "/topics/masked/messages.ndjson",
    )
    for bodies in (Bodies.MASK, Bodies.OFF):
        with (
            running_console(loop, cluster.name_server, ConsoleSettings(bodies=bodies)) as running,
            httpx.Client(base_url=running.url, timeout=30.0) as client,
        ):
            for path in (*paths, f"/topics/masked/send?like={message_id}"):
                text = client.get(path).text
                assert "hunter2" not in text, path
                assert "a@b.example" not in text, path
            assert ("fine" in client.get(paths[0]).text) == (bodies is Bodies.MASK)
            assert client.get(f"/messages/{message_id}/body?topic=masked").status_code == 502


def test_address_others_can_reach_needs_a_login(cluster: RunningBroker, loop: LoopThread) -> None:
    from orbitmq.admin import Admin

    serving = serve_console(Admin(cluster.name_server), ConsoleSettings(), host="0.0.0.0", port=0)
    with pytest.raises(ConfigError, match="needs a login"):
        loop.run(serving.__aenter__())


def test_names_and_origins_that_are_ours() -> None:
    assert host_allowed("127.0.0.1:8080", frozenset(), needs_login=False)
    assert host_allowed("[::1]:8080", frozenset(), needs_login=False)
    assert not host_allowed("evil.example:8080", frozenset(), needs_login=False)
    assert host_allowed("any.example", frozenset(), needs_login=True)
    assert not host_allowed("any.example", frozenset({"console.example"}), needs_login=True)
    assert same_origin({"origin": "http://h:1", "host": "h:1"})
    assert not same_origin({"origin": "http://h:2", "host": "h:1"})
    assert not same_origin({"host": "h:1"})
