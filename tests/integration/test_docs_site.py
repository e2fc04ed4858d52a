"""The site builds without a warning, its programs print the output shown on the pages, and its commands exist."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import click
import pytest
from scripts import build_docs, type_docs

import orbitmq.client
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.statistics.metrics import BROKER_FAMILIES
from orbitmq.cli.main import main as orbitmq_command
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.metrics import NAME_SERVER_FAMILIES
from orbitmq.proxy.metrics import PROXY_FAMILIES
from orbitmq.requests import BY_CODE
from orbitmq.runtime.options import options_of
from orbitmq.store.config import StoreConfig
from orbitmq.testing import run_broker

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
NAME_SERVER: Final = "127.0.0.1:9876"
PAGES: Final = (
    "tutorial.md",
    "threads.md",
    *sorted(f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md")),
)
RUN_ELSEWHERE: Final = {
    "admin.md": "tests/integration/test_admin.py",
    "arrow.md": "tests/integration/test_arrow.py",
    "client.md": "tests/integration/test_docs.py",
    "filters.md": "scripts/type_docs.py",
    "how-to/5x-clients.md": "scripts/type_docs.py",
    "pipelines.md": "tests/spark/test_pipeline_cases.py",
    "spark.md": "tests/spark/test_guide.py",
}
"""Pages whose programs another test runs, one after the other."""
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FENCED: Final = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_OUTPUT: Final = re.compile(r"\A\s*It prints(, in some order)?:\s*\Z")


class Program(NamedTuple):
    line: int
    source: str
    output: list[str] | None
    in_order: bool


def programs(page: str) -> Iterator[Program]:
    """Yields Python blocks, each with the output shown on the page."""
    text = (DOCS / page).read_text("utf-8")
    blocks = list(_BLOCK.finditer(text))
    for block, following in itertools.zip_longest(blocks, blocks[1:]):
        if block.group(1) != "python":
            continue
        output, in_order = None, True
        if following is not None and following.group(1) == "text":
            said = _OUTPUT.match(text[block.end() : following.start()])
            if said:
                output, in_order = following.group(2).splitlines(), said.group(1) is None
        yield Program(text.count("\n", 0, block.start()) + 1, block.group(2), output, in_order)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in RUN_ELSEWHERE and any(programs(page))]
)
def test_programs_of_a_page_print_what_it_says(page: str, tmp_path: Path) -> None:
    found = list(programs(page))
    with run_broker(recallMessageEnable=True) as broker:
        for program in found:
            done = subprocess.run(
                [
                    sys.executable,
                    "-W",
                    "error",
                    "-c",
                    program.source.replace(NAME_SERVER, broker.name_server),
                ],
                capture_output=True,
                text=True,
                timeout=60,
                cwd=tmp_path,
                check=False,
            )
            where = f"{page}:{program.line}"
            assert done.returncode == 0, f"{where}\n{done.stderr}"
            assert program.output is not None, f"{where} does not say what it prints"
            printed = done.stdout.splitlines()
            if not program.in_order:
                printed.sort()
            assert printed == program.output, where


def test_no_page_has_a_program_that_no_test_runs() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    with_programs = {page for page in pages if any(programs(page))}
    assert with_programs - {*PAGES, *RUN_ELSEWHERE} == set()
    for page, test in RUN_ELSEWHERE.items():
        assert page in with_programs
        if test == "scripts/type_docs.py":
            assert page in type_docs.pages_to_type()
        else:
            assert Path(page).stem in (ROOT / test).read_text(), f"{test} does not name {page}"


def test_class_of_the_filter_page_selects_expensive_messages() -> None:
    (program,) = programs("filters.md")
    names: dict[str, Any] = {}
    exec(compile(program.source, "filters.md", "exec"), names)  # our own document
    match = names["Expensive"]().match
    assert [match(SimpleNamespace(properties={"price": text})) for text in ("99", "100")] == [False, True]
    assert not match(SimpleNamespace(properties={}))


def console_lines() -> Iterator[tuple[str, str]]:
    """Yields page and command of every line with a prompt, including blocks inside a list."""
    for path in sorted(DOCS.rglob("*.md")):
        page = path.relative_to(DOCS).as_posix()
        for _, kind, text, _ in type_docs.blocks(page):
            if kind == "console":
                for line in text.splitlines():
                    if line.strip().startswith("$ orbitmq "):
                        yield page, line.strip().removeprefix("$ orbitmq ")


def test_every_page_with_commands_is_typed_or_names_the_test_that_runs_them() -> None:
    with_commands = {page for page, _ in console_lines()}
    assert with_commands - {*type_docs.pages_to_type(), *type_docs.LEFT_OUT} == set()
    for page, test in type_docs.LEFT_OUT.items():
        assert (DOCS / page).exists()
        assert (ROOT / test).exists(), f"{page}: there is no {test}"


def test_no_command_stands_in_an_indented_block_where_nothing_checks_it() -> None:
    for path in DOCS.rglob("*.md"):
        page = path.relative_to(DOCS).as_posix()
        if page == "how-to/secure.md":
            continue  # tests/integration/test_access_control.py types its lists
        outside = _FENCED.sub("", path.read_text("utf-8"))
        assert not re.findall(r"^ {4,}(?:orbitmq|pip) .*", outside, re.MULTILINE), page


KNOWN_OPTIONS: Final = {
    "broker": {option.key for kind in (BrokerConfig, StoreConfig) for option in options_of(kind)},
    "namesrv": {option.key for option in options_of(NameServerConfig)},
}


@pytest.mark.parametrize(("page", "line"), list(console_lines()))
def test_command_of_a_page_is_one_there_is(page: str, line: str) -> None:
    arguments = shlex.split(line, comments=True)
    command: click.Command = orbitmq_command
    context = click.Context(command, info_name="orbitmq")
    names = []
    while isinstance(command, click.Group) and arguments:
        name = arguments.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{page}: no command {name!r}"
        names.append(name)
        command, context = found, click.Context(found, info_name=name, parent=context)
    parsed = command.make_context(names[-1], list(arguments), parent=context.parent)
    for setting in parsed.params.get("overrides", ()):
        assert setting.partition("=")[0] in KNOWN_OPTIONS[names[0]], f"{page}: {setting}"


@pytest.mark.slow
def test_site_builds_without_a_warning_and_has_every_reference(tmp_path: Path) -> None:
    assert build_docs.build(tmp_path / "docs", tmp_path / "site", drawn=False) == 0
    for name in ("options", "commands", "metrics", "requests", "defaults", "api-client", "api-sync"):
        assert (tmp_path / "site" / "reference" / f"{name}.html").exists()
    reference = tmp_path / "docs" / "reference"
    options = (reference / "options.md").read_text()
    for keys in KNOWN_OPTIONS.values():
        assert all(f"`{key}`" in options for key in keys)
    requests = (reference / "requests.md").read_text()
    assert re.search(r"\| 310 \| `SEND_MESSAGE_V2` \| broker \|", requests)
    assert re.search(r"\| 105 \| `GET_ROUTEINFO_BY_TOPIC` \| name server \|", requests)
    assert all(f"`{code.name}`" in requests for code in BY_CODE.values())
    commands = (reference / "commands.md").read_text()
    for name in ("up", "demo", "broker", "namesrv", "store verify"):
        assert f" orbitmq {name}\n" in commands
    metrics = (reference / "metrics.md").read_text()
    for family in (*BROKER_FAMILIES, *NAME_SERVER_FAMILIES, *PROXY_FAMILIES):
        assert f"`{family.name}`" in metrics
    page = (tmp_path / "site" / "index.html").read_text()
    loaded = re.findall(r"(?:src|href)=\"(https?:[^\"]+)\"", page)
    assert loaded == ["https://squidfunk.github.io/mkdocs-material/"], (
        "the theme's own link, and nothing loaded"
    )
    llms = (tmp_path / "site" / "llms.txt").read_text()
    assert llms.startswith("# orbitmq\n\n> Apache RocketMQ for Python and data teams")
    for target in re.findall(r"\]\(([^)]+)\)", llms):
        assert (tmp_path / "site" / target).exists(), target
    drawn = (tmp_path / "site" / "about" / "architecture.html").read_text()
    assert '<pre class="mermaid">' in drawn
    client = (tmp_path / "site" / "reference" / "api-client.html").read_text()
    assert re.findall(r'<h2 id="[\w.]*\.(\w+)"', client)[:2] == ["Producer", "PushConsumer"]
    for name in orbitmq.client.__all__:
        if getattr(getattr(orbitmq.client, name), "__module__", "").endswith("errors"):
            continue
        assert f"{name}</span>" in client, f"{name} is not in the API reference"


@pytest.mark.soak
def test_tutorial_and_how_tos_can_be_typed_from_top_to_bottom() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "type_docs.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("tutorial.md: ")


def test_metrics_listed_as_absent_are_absent_and_named_exactly() -> None:
    ours = {family.name for family in BROKER_FAMILIES}
    for names, _ in build_docs.NOT_EXPORTED:
        for name in names:
            assert name not in ours
            assert name.removesuffix("_total") not in ours


def test_link_out_of_the_docs_becomes_one_of_the_site_or_plain_text() -> None:
    pages = build_docs.site_pages()
    source = DOCS / "index.md"
    text = (
        "[a](../ARCHITECTURE.md#x) [b](../Makefile) [c](https://example.org) [d](faq.md)\n"
        "[f](reference/README.md#metrics)\n```\n[e](../Makefile)\n```\n"
    )
    assert build_docs.with_site_links(text, source, pages) == (
        "[a](about/architecture.md#x) b (`Makefile`) [c](https://example.org) [d](faq.md)\n"
        "[f](reference/metrics.md)\n```\n[e](../Makefile)\n```\n"
    )


def test_pages_are_free_of_paths_that_exist_on_one_machine_only() -> None:
    assert os.sep == "/"
    for path in DOCS.rglob("*.md"):
        assert str(ROOT) not in path.read_text("utf-8"), path
