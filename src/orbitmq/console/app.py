"""The console application: routes, sessions, the sampler, and the single path for every change."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from importlib import resources
from types import TracebackType
from typing import Final, Self

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from orbitmq.admin import Admin, AdminError, AdminOptions
from orbitmq.admin import auth as broker_users
from orbitmq.admin.errors import UnknownNameError
from orbitmq.console import formats
from orbitmq.console.history import History
from orbitmq.console.masking import HIDDEN, Masking
from orbitmq.console.pages.table import ACTIONS, PAGES
from orbitmq.console.sampler import Sampler
from orbitmq.console.security import (
    COOKIE,
    AuditLog,
    SecureHeaders,
    Session,
    Sessions,
    UserFile,
    host_allowed,
    same_origin,
    token_matches,
)
from orbitmq.console.services import Services
from orbitmq.console.settings import ConsoleSettings, Role
from orbitmq.console.view import Action, Form, View, link
from orbitmq.errors import NoMessage, NoPermission, OrbitError, TopicNotFound
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.wire.bodies import HeartbeatData

__all__ = ["Console"]

logger = logging.getLogger(__name__)

Page = Callable[[View], Awaitable[Response]]
_FORM_BYTES_MAX: Final = 8 * 1024 * 1024
_LOGIN_WAIT_S: Final = 0.5
_STATIC_TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}


class Console:
    """The console. As an async context manager, it makes ``app`` serve requests until the block ends."""

    def __init__(self, admin: Admin, settings: ConsoleSettings | None = None) -> None:
        # Pages pass on addresses from URLs, forms and message ids, so only the cluster's brokers may get requests.
        admin.restrict_to_cluster()
        self.admin = admin
        self.settings = ConsoleSettings() if settings is None else settings
        self.sessions = Sessions(admin.clock)
        self.sessions.on_end = self._session_ended
        self.users = UserFile(self.settings.users) if self.settings.users else None
        self.tasks = TaskOwner("console")
        self._static = _read_static()
        self.services = self._services()
        self.app = self._application()

    async def __aenter__(self) -> Self:
        self.tasks.start(every(self.settings.sample_s, self.services.sampler.round, first_s=0.0), "sampler")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self.sessions.end_all():
            await _close_admin(session)
        await self.tasks.close()
        self.services.history.close()

    def _services(self) -> Services:
        admin, settings, state = self.admin, self.settings, self.settings.state
        if state is not None:
            state.mkdir(parents=True, exist_ok=True)
        history = History(state / "history.sqlite" if state else None, hours=settings.history_hours)
        return Services(
            admin=admin,
            settings=settings,
            sampler=Sampler(admin, history),
            history=history,
            audit=AuditLog(state / "audit.jsonl" if state else None, admin.clock),
            masking=Masking(settings.bodies, settings.masks),
            tasks=self.tasks,
            templates=self._environment(),
        )

    def _session_ended(self, session: Session) -> None:
        if session.admin is not None:
            self.tasks.start(_close_admin(session), "session-end")

    def _environment(self) -> jinja2.Environment:
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("orbitmq.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(formats.FILTERS)
        environment.globals.update(link=link, static=self._static_link)
        return environment

    def _static_link(self, name: str) -> str:
        return f"/static/{name}?v={hashlib.sha256(self._static[name]).hexdigest()[:12]}"

    # -- routes ----------------------------------------------------------------------------------------

    def _application(self) -> Starlette:
        routes = [Route(path, self._shown(page), methods=["GET"]) for path, page in PAGES.items()]
        routes += [
            Route("/static/{name:path}", self._file, methods=["GET"]),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/healthz", _healthy, methods=["GET"]),
        ]
        if not self.settings.read_only:
            routes.append(Route("/do/{action}", self._change, methods=["POST"]))

        def allowed(host: str) -> bool:
            return host_allowed(host, self.settings.hosts, needs_login=self.settings.needs_login)

        return Starlette(
            routes=routes,
            middleware=[Middleware(SecureHeaders, allowed=allowed)],
            exception_handlers={HTTPException: self._http_error, 500: self._http_error},
        )

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404)
        kind = _STATIC_TYPES[name.rsplit(".", 1)[-1]]
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(self._static[name], headers=headers, media_type=kind)

    def _view(self, request: Request) -> tuple[View | None, str]:
        """Returns the request with its session, and the cookie to set if the session is new.

        The view is None if a login is needed.
        """
        session = self.sessions.find(request.cookies.get(COOKIE))
        if session is not None:
            return View(self.services, request, session), ""
        if self.settings.needs_login:
            return None, ""
        key, session = self.sessions.open("local", Role.ADMIN)
        return View(self.services, request, session), key

    def _shown(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            view, fresh = self._view(request)
            if view is None:
                wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(link("login", next=wanted), 303)
            try:
                response = await page(view)
            except (UnknownNameError, TopicNotFound, NoMessage) as error:
                response = view.page("error.html", 404, title="Not found", error=str(error))
            except OrbitError as error:
                response = view.page("error.html", 502, title="That did not work", error=str(error))
            if fresh:
                self._set_cookie(response, fresh)
            return response

        return show

    def _set_cookie(self, response: Response, key: str) -> None:
        secure = self.settings.secure_cookies
        response.set_cookie(COOKIE, key, httponly=True, samesite="strict", secure=secure, path="/")

    async def _http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 500:
            logger.error("page failed path=%s", request.url.path, exc_info=error)
        reason = {
            404: "There is no such page.",
            405: "This page takes no such request.",
            500: "The console made a mistake; its log has the details.",
        }.get(status, error.detail if isinstance(error, HTTPException) else str(error))
        view, _ = self._view(request)
        if view is None or "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"error": reason}, status)
        return view.page("error.html", status, title=f"{status}", error=reason)

    # -- changes ---------------------------------------------------------------------------------------

    async def _form(self, request: Request) -> Form:
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _FORM_BYTES_MAX:
            raise HTTPException(413, f"a form may have {_FORM_BYTES_MAX} bytes")
        return Form(await request.form())

    async def _change(self, request: Request) -> Response:
        """Handle a POST that changes something.

        Checks session, origin and role and shows the plan. After confirmation, executes the change and records it in
        the audit log.
        """
        view, _ = self._view(request)
        if view is None:
            raise HTTPException(401, "log in first")
        name = request.path_params["action"]
        action = ACTIONS.get(name)
        if action is None:
            raise HTTPException(404)
        form = await self._form(request)
        if not same_origin(request.headers) or not token_matches(view.session, form.text("token")):
            self._refused(view, name, form, "not sent by a page of this console")
            raise HTTPException(
                403, "This request was not sent by a page of this console. Go back and reload."
            )
        if not view.may(action.role):
            if self.settings.read_only:
                self._refused(view, name, form, "the console is read-only")
                raise HTTPException(403, "This console was started with --read-only.")
            needed = action.role.name.lower()
            self._refused(view, name, form, f"needs the role {needed}")
            raise HTTPException(
                403, f"This needs the role {needed}; you are {view.session.role.name.lower()}."
            )
        try:
            plan = await action.plan(view, form)
            confirmed = form.text("confirmed") == "1"
            mistyped = confirmed and plan.typed != "" and form.text("typed") != plan.typed
            if not confirmed or mistyped:
                return view.page("confirm.html", plan=plan, name=name, pairs=form.pairs(), mistyped=mistyped)
            return await self._run(view, name, action, form)
        except OrbitError as error:
            self._refused(view, name, form, str(error), "failed")
            back = request.headers.get("referer", "/")
            return view.page("error.html", 400, title="Nothing was changed", error=str(error), back=back)

    async def _run(self, view: View, name: str, action: Action, form: Form) -> Response:
        done = await action.run(view, form)
        self._note(view, name, form, "done", done.text)
        return view.redirect(done.back, done.text, done.kind)

    def _refused(self, view: View, name: str, form: Form, why: str, outcome: str = "refused") -> None:
        self._note(view, name, form, outcome, why)

    def _note(self, view: View, name: str, form: Form, outcome: str, text: str) -> None:
        client = view.request.client
        hidden = {"password", "body"}
        if not self.services.masking.shows_all:
            hidden |= {"properties", "text"}
        shown = {
            key: HIDDEN if key in hidden else value[:200]
            for key, value in form.pairs()
            if key not in ("back",)
        }
        named = (form.text(field) for field in ("topic", "group", "broker", "username", "subject"))
        target = next(filter(None, named), "")
        address = client.host if client else ""
        self.services.audit.write(
            view.session.user, address, name, target, outcome=outcome, text=text, form=shown
        )

    # -- login -----------------------------------------------------------------------------------------

    async def _login_page(self, request: Request) -> Response:
        return self._login_form(request, "")

    def _login_form(self, request: Request, error: str, status: int = 200) -> Response:
        if not self.settings.needs_login:
            return RedirectResponse("/", 303)
        view = View(self.services, request, Session("", "", Role.VIEWER, 0.0))
        wanted = request.query_params.get("next", "/")
        return view.page("login.html", status, error=error, wanted=wanted)

    async def _login(self, request: Request) -> Response:
        form = await self._form(request)
        if not self.settings.needs_login or not same_origin(request.headers):
            raise HTTPException(403, "This request was not sent by a page of this console.")
        user, password = form.text("user"), form.raw("password")
        opened = await self._opened(user, password)
        client = request.client.host if request.client else ""
        if opened is None:
            self.services.audit.write(user, client, "login", "", outcome="refused")
            await asyncio.sleep(_LOGIN_WAIT_S)
            return self._login_form(request, "Wrong name or password.", 403)
        key, session = opened
        self.services.audit.write(user, client, "login", "", outcome="done", text=session.role.name.lower())
        wanted = form.text("next", "/")
        safe = wanted if wanted.startswith("/") and not wanted.startswith(("//", "/\\")) else "/"
        response = RedirectResponse(safe, 303)
        self._set_cookie(response, key)
        return response

    async def _opened(self, user: str, password: str) -> tuple[str, Session] | None:
        if not user or not password:
            return None
        if self.users is not None:
            role = await asyncio.to_thread(self.users.check, user, password)
            return None if role is None else self.sessions.open(user, role)
        admin, role = await self._broker_user(user, password)
        return None if role is None else self.sessions.open(user, role, admin)

    async def _broker_user(self, user: str, password: str) -> tuple[Admin, Role | None]:
        """Log in at the brokers with the user's own credentials.

        Super users become admins and other users operators; the broker checks the permissions of each request.
        """
        admin = self._admin_of(user, password)
        await admin.__aenter__()
        role: Role | None = None
        try:
            clusters = (await admin.cluster_info()).cluster_addr_table
            cluster = next(iter(clusters), None)
            if cluster is None:
                raise AdminError("no cluster is registered")
            # The user's type comes from the broker's list; a signed request checks the password.
            known = await broker_users.users(self.admin, broker=None, cluster=cluster, username=user)
            address = (await admin.targets(None, cluster))[0]
            await _say_hello(admin, address)
            async with self._admin_of(user, secrets.token_hex(16)) as impostor:
                with contextlib.suppress(NoPermission):
                    await _say_hello(impostor, address)
                    raise AdminError("the broker does not check signatures: set authenticationEnabled=true")
            found = next((one for one in known.users if one.user_status.lower() != "disable"), None)
            if found is not None:
                role = Role.ADMIN if found.user_type.lower() == "super" else Role.OPERATOR
        except OrbitError as error:
            logger.warning("login refused user=%s reason=%s", user, error)
        if role is None:
            await admin.__aexit__(None, None, None)
        return admin, role

    def _admin_of(self, user: str, password: str) -> Admin:
        from orbitmq.client.options import Credentials

        base = self.admin.options
        options = AdminOptions(
            timeout_s=base.timeout_s,
            connect_timeout_s=base.connect_timeout_s,
            credentials=Credentials(user, password, ""),
            tls=base.tls,
        )
        admin = Admin(";".join(self.admin.name_servers), options, clock=self.admin.clock)
        admin.restrict_to_cluster()
        return admin

    async def _logout(self, request: Request) -> Response:
        form = await self._form(request)
        key = request.cookies.get(COOKIE)
        session = self.sessions.find(key)
        if session is None or not token_matches(session, form.text("token")):
            raise HTTPException(403, "This request was not sent by a page of this console.")
        self.sessions.end(key)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, path="/")
        return response


async def _close_admin(session: Session) -> None:
    if session.admin is not None:
        await session.admin.__aexit__(None, None, None)


async def _say_hello(admin: Admin, address: str) -> None:
    """Send a heartbeat without groups, which every user may send and which changes nothing.

    Raises if the broker refuses it.
    """
    body = HeartbeatData(client_id="orbitmq-console-login").encode()
    await admin.ask(address, RequestCode.HEART_BEAT, None, body)


async def _healthy(request: Request) -> Response:
    return Response(json.dumps({"ok": True}), media_type="application/json")


def _read_static() -> dict[str, bytes]:
    """Returns all files below ``static`` by name. They are few and small, so they are kept in memory."""
    found: dict[str, bytes] = {}
    root = resources.files("orbitmq.console") / "static"
    for entry in root.iterdir():
        if entry.is_file():
            found[entry.name] = entry.read_bytes()
        else:
            found.update((f"{entry.name}/{inner.name}", inner.read_bytes()) for inner in entry.iterdir())
    return found
