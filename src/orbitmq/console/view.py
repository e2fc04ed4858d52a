"""Requests in the form that pages use, the possible results of a page, and the state of tables in the URL."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from orbitmq.admin import Admin, AdminError
from orbitmq.admin.messages import MessageView
from orbitmq.admin.previews import Preview
from orbitmq.console.security import Session
from orbitmq.console.services import Services
from orbitmq.console.settings import Role

__all__ = ["Action", "Done", "Form", "Listing", "Plan", "View", "link", "listing"]

T = TypeVar("T")
PAGE_ROWS: Final = 50
_PAGE_ROWS_MAX: Final = 500


def link(*parts: str, **query: object) -> str:
    """Returns a URL path of this console. Names are quoted, and empty query parameters are omitted."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    chosen = {name.rstrip("_"): str(value) for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(chosen)}" if chosen else path


class Form:
    """The fields of a form that a browser sent."""

    def __init__(self, data: FormData) -> None:
        self._data = data

    def text(self, name: str, default: str = "") -> str:
        value = self._data.get(name, default)
        return value.strip() if isinstance(value, str) else default

    def raw(self, name: str) -> str:
        value = self._data.get(name, "")
        return value if isinstance(value, str) else ""

    def required(self, name: str, what: str) -> str:
        """Returns a field. Raises ``AdminError``, which names ``what``, if it is empty."""
        value = self.text(name)
        if not value:
            raise AdminError(f"{what} is missing")
        return value

    def number(self, name: str, what: str, default: int | None = None) -> int:
        """Returns a field as an integer. Raises ``AdminError``, which names ``what``, if it is not one."""
        text = self.text(name)
        if not text and default is not None:
            return default
        try:
            return int(text.replace("_", "").replace(",", ""))
        except ValueError:
            raise AdminError(f"{what} must be a whole number, not {text!r}") from None

    def flag(self, name: str) -> bool:
        return self.text(name) in ("on", "true", "1", "yes")

    def many(self, name: str) -> list[str]:
        return [value for value in self._data.getlist(name) if isinstance(value, str)]

    def pairs(self) -> list[tuple[str, str]]:
        """Returns all fields except those that the confirmation page adds."""
        return [
            (name, value)
            for name, value in self._data.multi_items()
            if isinstance(value, str) and name not in ("token", "confirmed", "typed")
        ]


@dataclass(slots=True, kw_only=True)
class Plan:
    """The planned effect of an action, shown for confirmation."""

    title: str
    lines: list[str]
    button: str
    back: str
    danger: bool = False
    typed: str = ""
    """The text that a user must type to confirm; empty if none."""
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    command: str = ""
    """The command line that does the same."""


@dataclass(slots=True, kw_only=True)
class Done:
    """The outcome of an action."""

    text: str
    back: str
    kind: str = "good"


class Action(NamedTuple):
    """A change to the cluster: the role it requires, its plan, and its execution."""

    role: Role
    plan: Callable[[View, Form], Awaitable[Plan]]
    run: Callable[[View, Form], Awaitable[Done]]


@dataclass(slots=True)
class View:
    """A request, with the session of its user."""

    console: Services
    request: Request
    session: Session

    @property
    def admin(self) -> Admin:
        """The session with the cluster. Has the user's own credentials if they logged in as a user of the broker."""
        return self.session.admin or self.console.admin

    @property
    def now_ms(self) -> int:
        return self.console.admin.clock.now_ms()

    def may(self, role: Role) -> bool:
        return self.session.role >= role and not self.console.settings.read_only

    def name(self, parameter: str) -> str:
        """Returns a path parameter."""
        return str(self.request.path_params[parameter])

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default).strip()

    def number(self, name: str, default: int) -> int:
        try:
            return int(self.query(name) or default)
        except ValueError:
            return default

    def page(self, template: str, status: int = 200, /, **data: Any) -> Response:
        """Renders a page from a template."""
        html = self.console.templates.get_template(template).render(
            view=self,
            settings=self.console.settings,
            session=self.session,
            path=self.request.url.path,
            theme=self.request.cookies.get("theme", ""),
            flashes=self._flashes(),
            Role=Role,
            **data,
        )
        return HTMLResponse(html, status, headers={"cache-control": "no-store"})

    def _flashes(self) -> list[tuple[str, str]]:
        found, self.session.flashes = self.session.flashes, []
        return found

    def redirect(self, path: str, text: str = "", kind: str = "good") -> Response:
        if text:
            self.session.flashes = [*self.session.flashes[-4:], (kind, text)]
        return RedirectResponse(path, 303)

    def body_start(self, message: MessageView) -> str:
        return self.console.masking.start(message)

    def preview(self, limits: Preview) -> Preview:
        """Returns the limits with this console's masking."""
        return self.console.masking.preview(limits)


@dataclass(slots=True)
class Listing:
    """A page of rows, and links to the other pages."""

    rows: list[Any]
    total: int
    page: int
    pages: int
    sort: str
    search: str
    _query: dict[str, str] = field(default_factory=dict)

    def at(self, **changes: object) -> str:
        """Returns a link to this table with some of its state changed."""
        merged = self._query | {name: str(value) for name, value in changes.items()}
        return "?" + urlencode({name: value for name, value in merged.items() if value})

    def by(self, column: str) -> str:
        """Returns a link to this table sorted by a column, or in reverse order if it already is."""
        return self.at(sort=f"-{column}" if self.sort == column else column, page="")

    def mark(self, column: str) -> str:
        return "ascending" if self.sort == column else "descending" if self.sort == f"-{column}" else "none"


def listing(
    view: View, rows: Iterable[T], columns: Mapping[str, Callable[[T], Any]], default: str, search_in: str
) -> Listing:
    """Filter, sort and paginate rows as the URL's parameters request. ``search_in`` is the column to search.

    ``columns`` maps each column to its sort key. Unknown values (None) sort last.
    """
    search = view.query("q")
    wanted = search.casefold()
    key = columns[search_in]
    found = [row for row in rows if wanted in str(key(row)).casefold()] if wanted else list(rows)
    sort = view.query("sort") or default
    column = columns.get(sort.lstrip("-"))
    if column is None:
        sort, column = default, columns[default.lstrip("-")]
    chosen = column
    known = [row for row in found if chosen(row) is not None]
    # Unknown values sort last in either direction.
    unknown = [row for row in found if chosen(row) is None]
    known.sort(key=chosen, reverse=sort.startswith("-"))
    size = min(max(view.number("rows", PAGE_ROWS), 1), _PAGE_ROWS_MAX)
    pages = max(1, -(-len(found) // size))
    page = min(max(view.number("page", 1), 1), pages)
    ordered = (known + unknown)[(page - 1) * size : page * size]
    query = {name: value for name, value in view.request.query_params.items() if value}
    return Listing(ordered, len(found), page, pages, sort, search, query)


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
