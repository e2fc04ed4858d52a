"""Builds the docs site into site/: pages of docs/, a reference generated from the code, ``mkdocs build --strict``.

Usage: python scripts/build_docs.py [--pages-only]

Nothing generated is committed: build/docs holds the pages as mkdocs sees them, so a reference cannot be out of date.
Links that leave docs/ (to the README, to sources) become links to a page of the site if there is one, and plain text
otherwise.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from orbitmq.auth.config import AuthConfig
from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.quotas import LimitsConfig
from orbitmq.broker.statistics.metrics import BROKER_FAMILIES
from orbitmq.broker.tables.groups import GROUP_ATTRIBUTES
from orbitmq.cli.main import main as orbitmq_command
from orbitmq.client import options as client_options
from orbitmq.filtersrv.config import FilterServerConfig
from orbitmq.metrics.families import LEFT_OUT, Declared
from orbitmq.metrics.process import ProcessMetrics
from orbitmq.model.topic import TOPIC_ATTRIBUTES, Attribute
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.metrics import NAME_SERVER_FAMILIES
from orbitmq.namesrv.server import NameServer
from orbitmq.proxy.metrics import PROXY_FAMILIES
from orbitmq.requests import BY_CODE, Server
from orbitmq.runtime.apache_options import BROKER_KEYS, REFUSED
from orbitmq.runtime.options import Option, options_of, render_value
from orbitmq.store.config import StoreConfig
from orbitmq.transport.tls import TlsConfig

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "build" / "docs"
SITE: Final = ROOT / "site"
IMAGES: Final = ROOT / "docs" / "images"
LOGO: Final = ROOT / "src" / "orbitmq" / "console" / "static" / "icon.svg"
MERMAID: Final = "mermaid@11.12.0"
REFERENCE: Final = ROOT / "docs" / "reference" / "README.md"
OUTSIDE: Final = {
    "README.md": "about/readme.md",
    "ARCHITECTURE.md": "about/architecture.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "CHANGELOG.md": "about/changelog.md",
    "packaging/README.md": "about/packaging.md",
    "benchmarks/README.md": "about/benchmarks.md",
    "src/orbitmq/transport/README.md": "about/transport.md",
    "src/orbitmq/store/README.md": "about/store.md",
    "tests/apache/README.md": "about/tests-apache.md",
    "tests/golden/README.md": "about/tests-golden.md",
}
"""Files outside docs/ that are pages of the site too."""
NAV: Final[tuple[tuple[str, str], ...]] = (
    ("", "index.md"),
    ("", "tutorial.md"),
    ("How to", "how-to/*.md"),
    ("Clients", "client.md delivery.md threads.md for-kafka-users.md java-names.md filters.md"),
    ("Spark", "spark*.md pipeline*.md"),
    (
        "Operate",
        "operations.md sizing.md scale.md admin.md failover.md console.md mcp.md from-apache.md faq.md",
    ),
    ("Reference", "reference/*.md"),
    ("Formats", "formats/*.md"),
    ("Decisions", "decisions/README.md decisions/0*.md"),
    ("About", "glossary.md release.md about/*.md"),
)
_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_IMAGE: Final = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


# -- pages ---------------------------------------------------------------------------------------------


def site_pages() -> dict[Path, str]:
    """Returns the site path of every hand-written page by its repository path."""
    docs = ROOT / "docs"
    pages = {path: path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))}
    pages |= {ROOT / name: target for name, target in OUTSIDE.items() if (ROOT / name).exists()}
    return pages


def with_site_links(text: str, source: Path, pages: Mapping[Path, str]) -> str:
    """Returns the page with links that work on the site. Code in fences is not changed."""
    own = pages[source]

    def link(found: re.Match[str]) -> str:
        label, target, anchor = found.group(1), found.group(2), found.group(3) or ""
        if "://" in target or target.startswith("mailto:"):
            return found.group()
        path = (source.parent / target).resolve()
        if path.is_dir() and (path / "README.md") in pages:
            path = path / "README.md"
        if path == REFERENCE and anchor:
            # In the repository one page describes all four; on the site each has its page.
            page = f"reference/{anchor.removeprefix('#')}.md"
            return f"[{label}]({os.path.relpath(page, Path(own).parent)})"
        if path in pages:
            return f"[{label}]({os.path.relpath(pages[path], Path(own).parent)}{anchor})"
        if path.exists() and path.is_relative_to(ROOT):
            return f"{label} (`{path.relative_to(ROOT).as_posix()}`)"
        return found.group()  # mkdocs reports the error

    def image(found: re.Match[str]) -> str:
        path = (source.parent / found.group(2)).resolve()
        if not path.is_relative_to(IMAGES):
            return found.group()
        target = f"images/{path.relative_to(IMAGES).as_posix()}"
        return f"![{found.group(1)}]({os.path.relpath(target, Path(own).parent)})"

    def linked(prose: str) -> str:
        return _IMAGE.sub(image, _LINK.sub(link, prose))

    parts: list[str] = []
    position = 0
    for fence in _FENCE.finditer(text):
        parts.append(linked(text[position : fence.start()]))
        parts.append(fence.group())
        position = fence.end()
    return "".join([*parts, linked(text[position:])])


def title_of(path: Path) -> str:
    found = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return found.group(1).replace("`", "") if found else path.stem


def nav(pages: Path) -> list[Any]:
    """Returns the menu: the existing entries of NAV, and all other pages under "More"."""
    used: set[Path] = set()
    menu: dict[str, list[Any]] = {}
    for section, patterns in NAV:
        for pattern in patterns.split():
            for path in sorted(pages.glob(pattern)):
                if path not in used:
                    used.add(path)
                    menu.setdefault(section, []).append({title_of(path): path.relative_to(pages).as_posix()})
    for path in sorted(set(pages.rglob("*.md")) - used):
        menu.setdefault("More", []).append({title_of(path): path.relative_to(pages).as_posix()})
    top = menu.pop("", [])
    return [*top, *({section: entries} for section, entries in menu.items())]


def summary_of(page: Path) -> str:
    """Returns the first sentence of a page, without Markdown."""
    body = re.sub(r"^---.*?^---$|^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", body):
        text = " ".join(paragraph.split())
        if text and text[0] not in "#|!<-:":
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", text)
            return re.split(r"(?<=\.)\s", plain, maxsplit=1)[0].rstrip(":")
    return ""


def llms_text(pages: Path) -> str:
    """Returns llms.txt: what the project is, and every page of the menu with its first sentence."""
    lines = ["# orbitmq", "", f"> {summary_of(pages / 'index.md')}", "", "## Start", ""]

    def entry(title: str, page: str) -> str:
        summary = summary_of(pages / page)
        address = re.sub(r"README$", "index", page.removesuffix(".md"))
        return f"- [{title}]({address}.html)" + (f": {summary}" if summary else "")

    for item in nav(pages):
        for title, content in item.items():
            if isinstance(content, str):
                lines.append(entry(title, content))
            else:
                lines += ["", f"## {title}", "", *(entry(*pair) for one in content for pair in one.items())]
    return "\n".join([*lines, ""])


# -- reference -----------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yields the lines of a Markdown table."""
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join('---' for _ in names)} |"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"
    yield ""


def _accepted(option: Option) -> str:
    if option.choices:
        return ", ".join(option.choices)
    kind = option.type
    if isinstance(kind, types.UnionType):
        kind = next(member for member in kind.__args__ if member is not type(None))
    if hasattr(kind, "__members__"):
        return ", ".join(str(member.value) for member in kind)
    if kind is bool:
        return "true, false"
    name = {int: "number", float: "number", str: "text"}.get(kind, getattr(kind, "__name__", str(kind)))
    if option.low is not None and option.high is not None:
        return f"{name}, {option.low:g} to {option.high:g}"
    if option.low is not None:
        return f"{name}, {option.low:g} or more"
    return name


def _meaning(option: Option) -> str:
    refused = "".join(f" {value} is refused: {reason}." for value, reason in option.refused.items())
    idle = f" No effect: {option.without_effect}." if option.without_effect else ""
    return option.doc + refused + idle


def compatibility_page() -> str:
    """Lists which of Apache's options and attributes have an effect here, which are refused, and which change
    nothing.
    """
    configs = (BrokerConfig, StoreConfig, AuthConfig, TlsConfig, LimitsConfig)
    declared = {option.key: option for config in configs for option in options_of(config)}
    acted_on = {key for key, option in declared.items() if not option.without_effect}
    idle = {key: option.without_effect for key, option in declared.items() if option.without_effect}
    kept = BROKER_KEYS - declared.keys() - REFUSED.keys()
    lines = [
        "# Compatibility: options and attributes",
        "",
        f"Of the {len(BROKER_KEYS)} keys of Apache's `broker.conf`, {len(BROKER_KEYS & acted_on)} have their effect "
        "([options](options.md)). The others are refused, or accepted with a warning at start, in `orbitmq doctor` "
        "and below a comment in the answer of `getBrokerConfig`. A key that is not Apache's or ours is refused.",
        "",
        "## Refused values",
        "",
        "A broker does not start with them, and `updateBrokerConfig` answers with code 1 and the reason.",
        "",
    ]
    lines += table(
        ("key", "accepted", "reason"),
        [
            *(
                (
                    f"`{key}`",
                    ", ".join(sorted(value or "empty" for value in refusal.accepted)),
                    refusal.reason,
                )
                for key, refusal in sorted(REFUSED.items())
            ),
            *(
                (f"`{key}={value}`", ", ".join(option.choices), reason)
                for key, option in sorted(declared.items())
                for value, reason in option.refused.items()
            ),
        ],
    )
    lines += ["## Options without effect", ""]
    lines += table(("key", "reason"), ((f"`{key}`", reason) for key, reason in sorted(idle.items())))
    lines += ["Kept for tools that read them, and not acted on:", ""]
    lines += [", ".join(f"`{key}`" for key in sorted(kept)), ""]
    for title, attributes in (
        ("Attributes of topics", TOPIC_ATTRIBUTES),
        ("Attributes of groups", GROUP_ATTRIBUTES),
    ):
        lines += [
            f"## {title}",
            "",
            "A refused value is answered with code 1 and the reason. A file of Apache's may hold it; the broker then "
            "logs a warning when it starts.",
            "",
        ]
        lines += table(
            ("attribute", "served", "refused"),
            (
                (f"`{name}`", _attribute_values(attribute), attribute.refused)
                for name, attribute in attributes.items()
            ),
        )
    return "\n".join(lines)


def _attribute_values(attribute: Attribute) -> str:
    if attribute.served or attribute.refused:
        return ", ".join(sorted(attribute.served)) or "none"
    if attribute.values:
        return ", ".join(sorted(attribute.values))
    return "any" if attribute.low is None else f"{attribute.low} to {attribute.high}"


def options_page() -> str:
    lines = [
        "# Options",
        "",
        "Keys of the properties files and of `--set`. *Live* options change while the server runs "
        "(`mqadmin updateBrokerConfig`, `updateNamesrvConfig`).",
        "",
    ]
    for title, config in (
        ("Broker", BrokerConfig),
        ("Access control of a broker", AuthConfig),
        ("TLS of a broker", TlsConfig),
        ("Limits of a broker", LimitsConfig),
        ("Store (in the broker's file)", StoreConfig),
        ("Name server", NameServerConfig),
        ("Filter server", FilterServerConfig),
    ):
        lines += [f"## {title}", ""]
        lines += table(
            ("key", "default", "accepts", "live", "meaning"),
            (
                (
                    f"`{option.key}`",
                    f"`{text}`" if (text := render_value(option.default)) else "",
                    _accepted(option),
                    "yes" if option.reload else "",
                    _meaning(option),
                )
                for option in sorted(options_of(config), key=lambda option: option.key.lower())
            ),
        )
    return "\n".join(lines)


def _commands(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from _commands(found, f"{name} {child}", context)


def commands_page() -> str:
    lines = ["# Commands", "", "What `--help` prints of every command.", ""]
    for name, text in _commands(orbitmq_command, "orbitmq", None):
        lines += [f"{'#' * min(4, 1 + len(name.split()))} {name}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def _families(families: Iterable[Declared]) -> Iterator[str]:
    yield from table(
        ("metric", "kind", "labels", "meaning"),
        (
            (f"`{one.name}`", one.kind.value, ", ".join(f"`{label}`" for label in one.labels), one.doc)
            for one in families
        ),
    )


_POP: Final = "POP keeps its state in the log here, without such a buffer or a revive scan"
NOT_EXPORTED: Final = (
    (("rocketmq_pop_buffer_scan_time_consume_milliseconds", "rocketmq_pop_offset_buffer_size"), _POP),
    (("rocketmq_pop_revive_lag_milliseconds", "rocketmq_pop_revive_latency_milliseconds"), _POP),
    (("rocketmq_timer_message_snapshot",), "would read the whole timer wheel at each scrape"),
    (
        (
            "rocketmq_topic_create_execution_time_milliseconds",
            "rocketmq_consumer_group_create_execution_time",
        ),
        "in `rocketmq_rpc_latency_milliseconds`, by request code",
    ),
    (
        ("rocketmq_timing_messages", "rocketmq_timer_enqueue_total", "rocketmq_timer_dequeue_total"),
        "timer messages are not counted by topic; see `rocketmq_timer_dequeue_lag`",
    ),
    (("target_info",), "describes the OpenTelemetry library"),
)
"""Metrics of Apache's exporter that ours has not, and why."""


def metrics_page() -> str:
    return "\n".join(
        [
            "# Metrics",
            "",
            "What `/metrics` tells; see [Monitor](../how-to/monitor.md) for how to switch it on. Names, kinds and "
            "labels that start with `rocketmq_` are those of Apache RocketMQ 5's exporter, but for the label "
            "`otel_scope_name`; a test compares them, and most figures, with a real 5.5.0 broker.",
            "",
            "## Broker",
            "",
            "Every sample has the labels `cluster`, `node_id` (the broker's name), `node_type` (`broker`), and "
            "those of `metricsLabel`.",
            "",
            *_families(BROKER_FAMILIES),
            "## Name server",
            "",
            "Every sample has the label `node_type` (`nameserver`), and those of `metricsLabel`.",
            "",
            *_families(NAME_SERVER_FAMILIES),
            "## Proxy",
            "",
            "Every sample has the labels `node_type` (`proxy`) and `cluster`.",
            "",
            *_families(PROXY_FAMILIES),
            "## All servers",
            "",
            *_families([*ProcessMetrics().declared(), LEFT_OUT]),
            "## In Apache's exporter and not here",
            "",
            *table(
                ("metric", "why"),
                ((", ".join(f"`{name}`" for name in names), why) for names, why in NOT_EXPORTED),
            ),
            "Apache's metrics of RocksDB, tiered storage and its controller are not here, since those parts are not.",
        ]
    )


async def _served() -> tuple[set[int], set[int]]:
    """Returns the request codes that a broker and a name server answer, determined by querying real ones."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(
            BrokerConfig(listen_port=0, bind_host="127.0.0.1", public_host="127.0.0.1"),
            StoreConfig(root=directory, segment_bytes=1 << 20, index_slots=100, index_entries=400),
        )
        name_server = NameServer(
            NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="", config_store_path="")
        )
        async with broker, name_server:
            return (
                {int(route.code) for route in broker.main_router.routes},
                {int(route.code) for route in name_server.router.routes},
            )


def requests_page() -> str:
    by_broker, by_name_server = asyncio.run(_served())
    rows = []
    for code in sorted(BY_CODE.values()):
        servers = [
            name
            for name, codes in (("broker", by_broker), ("name server", by_name_server))
            if int(code) in codes
        ]
        reason = "" if servers else code.refusal(Server.BROKER)
        rows.append((str(int(code)), f"`{code.name}`", ", ".join(servers), reason))
    served = sum(1 for row in rows if row[2])
    return "\n".join(
        [
            "# Requests",
            "",
            f"Every request code of Apache RocketMQ 5.5.0 and who answers it: {served} of {len(rows)}. The others "
            "are answered with code 3 and the reason.",
            "",
            *table(("code", "name", "answered by", "if not, why"), rows),
        ]
    )


API: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "client": ("asyncio client", ("orbitmq.client",)),
    "sync": ("plain client", ("orbitmq.client.sync",)),
    "arrow": ("Arrow tables", ("orbitmq.arrow",)),
    "testing": ("testing kit", ("orbitmq.testing", "orbitmq.testing.pipelines")),
    "admin": (
        "admin functions",
        tuple(
            f"orbitmq.admin.{name}"
            for name in ("session", "topics", "groups", "offsets", "messages", "brokers", "doctor", "errors")
        ),
    ),
    "errors": ("errors", ("orbitmq.errors", "orbitmq.client.errors")),
}
"""Page of the API reference: its title, and the modules whose public names it shows."""
FIRST: Final = frozenset({"Producer", "PushConsumer"})
"""Classes that begin the page of their module."""


def api_page(name: str) -> str:
    """Returns a page that mkdocstrings fills: every name of ``__all__`` with its docstring and signature."""
    title, modules = API[name]
    elsewhere = {module for page, (_, others) in API.items() if page != name for module in others}
    lines = [f"# API: {title}", ""]
    for module_name in modules:
        module = importlib.import_module(module_name)
        names = sorted(getattr(module, "__all__", ()), key=lambda name: (name not in FIRST, name))
        lines += [f"Module `{module_name}`.", ""]
        for one in names:
            home = getattr(getattr(module, one), "__module__", None) or module_name
            if home in elsewhere:
                continue
            path = f"{home}.{one}" if home.startswith("orbitmq.") else f"{module_name}.{one}"
            if f"::: {path}" not in lines:
                lines += [f"::: {path}", ""]
    return "\n".join(lines)


def _shown_default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
        return getattr(value, "__name__", None) or str(getattr(value, "name", value))
    return "" if field.default_factory is dataclasses.MISSING else "empty"


def defaults_page() -> str:
    """Lists every default of clients and servers."""
    lines = [
        "# All defaults",
        "",
        "Keyword arguments of the client's classes, then the options of the servers. Meanings of the latter are in "
        "[Options](options.md).",
        "",
        "## Client",
        "",
    ]
    rows = []
    seen: set[str] = set()
    for kind in (
        client_options.ClientOptions,
        client_options.ProducerOptions,
        client_options.ConsumerOptions,
        client_options.PushOptions,
        client_options.LitePullOptions,
        client_options.SimpleOptions,
    ):
        for field in dataclasses.fields(kind):
            key = f"{field.name}={_shown_default(field)}"
            if key not in seen:
                seen.add(key)
                of = kind.__name__.removesuffix("Options")
                rows.append((f"`{field.name}`", f"`{_shown_default(field)}`", of.lower()))
    lines += table(("argument", "default", "of"), rows)
    for title, config in (
        ("Broker", BrokerConfig),
        ("Store", StoreConfig),
        ("Access control", AuthConfig),
        ("TLS", TlsConfig),
        ("Name server", NameServerConfig),
    ):
        lines += [f"## {title}", ""]
        lines += table(
            ("option", "default"),
            (
                (f"`{option.key}`", f"`{text}`" if (text := render_value(option.default)) else "")
                for option in sorted(options_of(config), key=lambda option: option.key.lower())
            ),
        )
    return "\n".join(lines)


# -- the build -----------------------------------------------------------------------------------------


def write_pages(target: Path = PAGES) -> None:
    """Writes everything mkdocs needs."""
    shutil.rmtree(target, ignore_errors=True)
    pages = site_pages()
    for source, name in pages.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(with_site_links(source.read_text("utf-8"), source, pages), "utf-8")
    shutil.copytree(ROOT / "docs" / "images", target / "images")
    reference = target / "reference"
    reference.mkdir(exist_ok=True)
    generated: dict[str, Callable[[], str]] = {
        "options": options_page,
        "compatibility": compatibility_page,
        "commands": commands_page,
        "metrics": metrics_page,
        "requests": requests_page,
        "defaults": defaults_page,
        **{f"api-{name}": functools.partial(api_page, name) for name in API},
    }
    for name, page in generated.items():
        (reference / f"{name}.md").write_text(page(), "utf-8")
    shutil.copy(LOGO, target / "images")
    (target / "llms.txt").write_text(llms_text(target), "utf-8")


def diagrams(target: Path) -> list[str]:
    """Adds the library that draws Mermaid diagrams to the site, so that no page loads it from elsewhere.

    Returns the scripts to load. Without npm there are none, and diagrams are shown as text.
    """
    if shutil.which("npm") is None:
        return []
    with tempfile.TemporaryDirectory() as directory:
        packed = subprocess.run(
            ["npm", "pack", MERMAID], cwd=directory, capture_output=True, text=True, check=False
        )
        if packed.returncode:
            return []
        with tarfile.open(Path(directory) / packed.stdout.split()[-1]) as package:
            library = package.extractfile("package/dist/mermaid.min.js")
            assert library is not None
            (target / "javascripts").mkdir()
            (target / "javascripts" / "mermaid.min.js").write_bytes(library.read())
    return ["javascripts/mermaid.min.js"]


def build(target: Path = PAGES, site: Path = SITE, *, drawn: bool = True) -> int:
    """Builds the whole site; returns mkdocs' exit code. Without ``drawn``, diagrams are shown as text."""
    import yaml

    write_pages(target)
    config = target.parent / "mkdocs.yml"
    inherited = os.path.relpath(ROOT / "mkdocs.yml", config.parent)
    content = {
        "INHERIT": inherited,
        "docs_dir": str(target),
        "site_dir": str(site),
        "nav": nav(target),
        "extra_javascript": diagrams(target) if drawn else [],
    }
    config.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    # Not --quiet: warnings that are not logged are not counted either.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an advertisement of the theme's successor
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
    return done.returncode


if __name__ == "__main__":
    if "--help" in sys.argv:
        sys.stdout.write(inspect.cleandoc(__doc__ or "") + "\n")
    elif "--pages-only" in sys.argv:
        write_pages()
    else:
        code = build()
        if code == 0:
            sys.stdout.write(f"docs: {SITE / 'index.html'}\n")
        sys.exit(code)
