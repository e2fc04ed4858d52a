"""The console over a cluster with access control: users and rules, and people who log in with users of the broker."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.console.kit import chromium, running_console, watched_page
from tests.console.test_browser import confirm

from orbitmq.admin import AdminOptions
from orbitmq.client.options import Credentials
from orbitmq.client.sync import LoopThread
from orbitmq.console.serve import RunningConsole
from orbitmq.console.settings import ConsoleSettings
from orbitmq.testing import run_broker

pytestmark = pytest.mark.slow

AUTH: Final = "org.apache.rocketmq.auth"
SECURED: Final[dict[str, Any]] = {
    "authenticationEnabled": True,
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"root","password":"root-secret-1"}',
    "authorizationEnabled": True,
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
TOKEN: Final = re.compile(r'name="token" value="([^"]+)"')
ROOT: Final = AdminOptions(credentials=Credentials("root", "root-secret-1"))


@dataclass(frozen=True, slots=True)
class Secured:
    name_server: str
    console: RunningConsole
    loop: LoopThread

    @property
    def url(self) -> str:
        return self.console.url.rstrip("/")


@pytest.fixture(
    scope="module", params=["ours", pytest.param("apache", marks=[pytest.mark.apache, pytest.mark.soak])]
)
def secured(request: pytest.FixtureRequest) -> Iterator[Secured]:
    with contextlib.ExitStack() as stack:
        if request.param == "ours":
            name_server = stack.enter_context(run_broker(**SECURED)).name_server
        else:
            request.getfixturevalue("apache_tools")
            from tests.apache.artifacts import LATEST
            from tests.apache.servers import ApacheBroker, ApacheNamesrv

            names = stack.enter_context(ApacheNamesrv(LATEST))
            stack.enter_context(ApacheBroker(LATEST, names, **SECURED))
            name_server = names.address
        loop = LoopThread()
        stack.callback(loop.close)
        settings = ConsoleSettings(sample_s=1.0, broker_login=True)
        console = stack.enter_context(running_console(loop, name_server, settings, ROOT))
        yield Secured(name_server, console, loop)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def log_in(page: Page, user: str, password: str) -> None:
    page.goto("/login")
    page.locator("input[name=user]").fill(user)
    page.locator("input[name=password]").fill(password)
    page.locator("main button[type=submit]").click()


def test_users_and_rules_are_made_changed_and_deleted(browser: Browser, secured: Secured) -> None:
    with watched_page(browser, secured.url) as page:
        log_in(page, "root", "root-secret-1")
        page.goto("/access")
        users, rules = page.locator("table").first, page.get_by_role("region", name="Rules")
        expect(users).to_contain_text("root")
        page.get_by_text("Create or change a user").click()
        form = page.locator("details[open]")
        form.locator("input[name=username]").fill("app")
        form.locator("input[name=password]").fill("app-secret-1")
        form.get_by_role("button", name="Preview").click()
        expect(page.locator(".confirm")).to_contain_text("Create the Normal user app")
        confirm(page)
        expect(page.locator(".note.good")).to_contain_text("User app")
        expect(users).to_contain_text("app")
        page.get_by_text("Add a rule").click()
        form = page.locator("details[open]")
        form.locator("input[name=subject]").fill("app")
        form.locator("input[name=resource]").fill("Topic:orders")
        form.locator("input[name=ips]").fill("127.0.0.1")
        form.get_by_label("Pub").check()
        form.get_by_role("button", name="Preview").click()
        expect(page.locator(".confirm")).to_contain_text(
            "Allow User:app to Pub on Topic:orders from 127.0.0.1"
        )
        confirm(page)
        expect(rules).to_contain_text("Topic:orders")
        expect(rules).to_contain_text("127.0.0.1")
        page.get_by_role("button", name=re.compile("Delete rule of User:app")).click()
        confirm(page)
        expect(page.locator("main")).to_contain_text("No rules")
        page.get_by_text("Create or change a user").click()
        form = page.locator("details[open]")
        form.locator("input[name=username]").fill("app")
        form.locator("select[name=user_status]").select_option("disable")
        form.get_by_role("button", name="Preview").click()
        confirm(page)
        expect(users.locator("tr", has_text="app")).to_contain_text("disable")
        page.get_by_role("button", name="Delete app").click()
        confirm(page, typed="app")
        expect(users).not_to_contain_text("app")
        page.goto("/audit")
        expect(page.locator("tbody")).to_contain_text("user-store")
        assert "app-secret-1" not in page.content()


def opened(secured: Secured, user: str, password: str) -> httpx.Client | None:
    client = httpx.Client(base_url=secured.url, headers={"origin": secured.url}, timeout=30.0)
    answer = client.post("/login", data={"user": user, "password": password})
    if answer.status_code == 303:
        return client
    client.close()
    return None


def post(client: httpx.Client, action: str, **form: str) -> httpx.Response:
    token = TOKEN.search(client.get("/").text)
    assert token is not None
    return client.post(f"/do/{action}", data={"token": token.group(1), "confirmed": "1", **form})


def test_people_log_in_with_users_of_the_broker_and_may_what_those_may(secured: Secured) -> None:
    root = opened(secured, "root", "root-secret-1")
    assert root is not None
    cluster = "DefaultCluster"
    with contextlib.closing(root):
        made = post(root, "user-store", cluster=cluster, username="clerk", password="clerk-secret")
        assert made.status_code == 303, made.text
        post(root, "topic-store", cluster=cluster, topic="open", read="1", write="1", perm="6")
        rule = {"cluster": cluster, "subject": "clerk", "resource": "Topic:open", "actions": "Pub"}
        assert post(root, "rule-store", **rule).status_code == 303
        assert opened(secured, "clerk", "wrong-secret") is None
        assert opened(secured, "nobody", "clerk-secret") is None
        clerk = opened(secured, "clerk", "clerk-secret")
        assert clerk is not None, "a user without rights on the cluster may look at pages"
        with contextlib.closing(clerk):
            refused = post(clerk, "send", topic="closed", body="x")
            assert refused.status_code == 400, refused.text
            assert "no permission" in refused.text
            assert (
                post(clerk, "user-delete", cluster=cluster, username="root", typed="root").status_code == 403
            )
        changed = post(root, "user-store", cluster=cluster, username="clerk", user_status="disable")
        assert changed.status_code == 303
        assert opened(secured, "clerk", "clerk-secret") is None
        assert post(root, "user-delete", cluster=cluster, username="clerk", typed="clerk").status_code == 303


def test_broker_that_checks_no_signature_lets_nobody_log_in(secured: Secured) -> None:
    """Its users mean nothing: any password would do."""
    with run_broker(initAuthenticationUser=SECURED["initAuthenticationUser"]) as broker:
        settings = ConsoleSettings(sample_s=3600.0, broker_login=True)
        with running_console(secured.loop, broker.name_server, settings, ROOT) as console:
            open_one = Secured(broker.name_server, console, secured.loop)
            assert opened(open_one, "root", "root-secret-1") is None
            assert opened(open_one, "root", "anything") is None
