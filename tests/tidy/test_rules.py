"""Each rule finds what it is for, and leaves alone what it is not for."""

from __future__ import annotations

import textwrap

import pytest
from tests.tidy import rules
from tests.tidy.cycles import check_cycles
from tests.tidy.rules import Source


def found_by(rule: str, path: str, text: str) -> list[str]:
    """Findings of one rule, by its name."""
    source = Source.parse(path, textwrap.dedent(text))
    findings = [
        *rules.check_imports(source),
        *rules.check_sizes(source),
        *rules.check_calls(source),
        *rules.check_package_file(source),
        *rules.check_wiring(source),
        *rules.check_text(source.path, source.text),
    ]
    return [finding for finding in findings if finding.startswith(f"{rule}: ")]


STORE = "src/orbitmq/store/log/segment.py"
WIRED = "src/orbitmq/broker/roles.py"
TOO_LONG = "def long():\n" + "    pass\n" * rules.FUNCTION_LINES_MAX


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        ("import-table", STORE, "from orbitmq.wire.frame import Frame"),
        ("import-table", STORE, "import orbitmq.transport.server"),
        ("import-table", STORE, "from orbitmq import transport"),
        ("import-table", STORE, "from orbitmq.testing import manual_clock"),
        ("import-table", STORE, "def late():\n    from orbitmq.broker import Broker"),
        ("import-table", "src/orbitmq/record/ids.py", "from orbitmq.runtime.clock import Clock"),
        ("import-table", "src/orbitmq/transport/server.py", "from orbitmq.store import MessageStore"),
        ("import-table", "src/orbitmq/surprise/module.py", "import os"),
        ("relative-import", STORE, "from .layout import UNIT"),
        ("pure-package", STORE, "import asyncio"),
        ("pure-package", "src/orbitmq/wire/frame.py", "from socket import socket"),
        ("pure-package", "src/orbitmq/model/route.py", "import time"),
        ("file-size", STORE, "\n" * (rules.FILE_LINES_MAX + 1)),
        ("function-size", STORE, TOO_LONG),
        ("function-size", STORE, "class Segment:\n" + textwrap.indent(TOO_LONG, "    ")),
        ("function-size", STORE, "if True:\n" + textwrap.indent(TOO_LONG, "    ")),
        ("parameter-count", STORE, "def many(a, b, c, d, e, f, *, g, h): ..."),
        ("parameter-count", STORE, "class A:\n    def many(self, a, b, c, d, e, f, g, h): ..."),
        ("wiring", WIRED, "def open(self):\n    self.roles.wake = self._wake"),
        ("wiring", WIRED, "def open(self):\n    roles = self._roles\n    roles.epoch = 3"),
        ("wiring", WIRED, "def open(self):\n    self.topics.on_version = self.groups.on_version = f"),
        ("wiring", WIRED, "def open(self):\n    rpc = RpcClient()\n    rpc.sign = self.security.signer"),
        ("wiring", WIRED, "class A:\n    def __init__(self, gate):\n        gate.is_master = self.holds"),
        (
            "late-callback",
            WIRED,
            "class A:\n    def __init__(self):\n        self.on_lost: Callable[[], None] | None = None",
        ),
        ("task-owner", "src/orbitmq/broker/delay.py", "import asyncio\nasyncio.create_task(work())"),
        ("task-owner", "src/orbitmq/broker/delay.py", "loop.create_task(work())"),
        ("clock", "src/orbitmq/broker/delay.py", "import time\nnow = time.time()"),
        ("clock", "src/orbitmq/broker/delay.py", "from time import monotonic"),
        ("test-skip", "tests/unit/test_a.py", "import pytest\npytest.skip('no')"),
        ("test-skip", "tests/unit/test_a.py", "import pytest\n@pytest.mark.skipif(True)\ndef test(): ..."),
        ("package-file", "src/orbitmq/store/__init__.py", "def helper(): ..."),
        ("package-file", "src/orbitmq/store/__init__.py", "__version__ = '1'"),
        ("machine-path", "docs/a.md", "'''see /ho" + "me/me/notes'''"),
        ("registry-host", "docs/a.md", "'''from py" + "pi.org'''"),
        ("unfinished", STORE, "# TO" + "DO later"),
    ],
)
def test_rule_on_a_breach_reports_it_by_name(rule: str, path: str, text: str) -> None:
    assert found_by(rule, path, text)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (
            "import-table",
            STORE,
            "from orbitmq.record.codec import encode_record\nfrom orbitmq.errors import X",
        ),
        ("import-table", "src/orbitmq/broker/a.py", "from orbitmq.wire.frame import Frame"),
        ("import-table", "src/orbitmq/cli/main.py", "from orbitmq import __version__"),
        ("import-table", "src/orbitmq/testing/kit.py", "from orbitmq.broker import Broker"),
        ("import-table", "tests/unit/test_a.py", "from orbitmq.testing import kit"),
        ("pure-package", STORE, "import threading"),
        ("function-size", STORE, "def fits():\n" + "    pass\n" * (rules.FUNCTION_LINES_MAX - 1)),
        ("parameter-count", STORE, "class A:\n    def fits(self, a, b, c, d, *, e, f, g): ..."),
        ("task-owner", "src/orbitmq/runtime/tasks.py", "loop.create_task(work())"),
        ("clock", "src/orbitmq/runtime/clock.py", "import time\nnow = time.time()"),
        ("clock", "src/orbitmq/transport/connection.py", "now = loop.time()"),
        ("wiring", WIRED, "def count(self):\n    self.stats.misses += 1"),
        ("wiring", WIRED, "def hold(self, waiting):\n    waiting.granted = self.revocation.version"),
        ("wiring", WIRED, "def answer(self):\n    header = Header()\n    header.code = self.code()"),
        ("wiring", "src/orbitmq/client/a.py", "def open(self):\n    self.roles.wake = self._wake"),
        ("late-callback", WIRED, "class A:\n    def __init__(self):\n        self.at: int | None = None"),
        ("test-skip", "tests/apache/harness.py", "import pytest\npytest.skip('no Java')"),
        ("test-skip", "tests/unit/test_a.py", "reader.skip(4)"),
        ("package-file", "src/orbitmq/store/__init__.py", "'''Doc.'''\nfrom a import b\n__all__ = ['b']"),
        ("machine-path", "scripts/a.sh", "'''#!/usr/bin/env bash'''"),
        ("machine-path", "docs/a.md", "'''docs/work/notes and ~/.cache/orbitmq'''"),
        ("unfinished", STORE, "TOPIC = 'SCHEDULE_TOPIC_XXXX'"),
    ],
)
def test_rule_on_allowed_code_stays_silent(rule: str, path: str, text: str) -> None:
    assert found_by(rule, path, text) == []


def test_import_table_has_no_cycle() -> None:
    for package in rules.IMPORTS:
        for imported in rules.may_import(package) - {package}:
            assert package not in rules.may_import(imported), f"import-table: {package} <-> {imported}"


def test_a_cycle_is_found_behind_type_checking_and_inside_functions() -> None:
    texts = {
        "console/a.py": "if TYPE_CHECKING:\n    from orbitmq.console.pages import b\n",
        "console/pages/b.py": "from orbitmq.console.c import x\n",
        "console/c.py": "def f():\n    import orbitmq.console.a\n",
        "console/d.py": "import orbitmq.console.a\n",
    }
    sources = [Source.parse(f"src/orbitmq/{path}", text) for path, text in texts.items()]
    assert sorted(finding.split(":")[1].strip() for finding in check_cycles(sources)) == [
        "src/orbitmq/console/a.py",
        "src/orbitmq/console/c.py",
        "src/orbitmq/console/pages/b.py",
    ]


def test_exceptions_without_need_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LONG_FILES", {"src/a.py": "reason"})
    monkeypatch.setattr(rules, "LONG_FUNCTIONS", {"src/a.py:gone": "reason"})
    monkeypatch.setattr(rules, "MANY_PARAMETERS", {"src/missing.py:f": "reason"})
    findings = list(rules.check_exceptions([Source.parse("src/a.py", "def f(): ...\n")]))
    assert len(findings) == 3
    assert all(finding.startswith("stale-exception: ") for finding in findings)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("src/orbitmq/store/a.py", 'U = Struct(">qiq")\n', "layout: src/orbitmq/store/a.py:1: "),
        (
            "src/orbitmq/store/a.py",
            'import struct\nU = struct.Struct(">i")\n',
            "layout: src/orbitmq/store/a.py:2: ",
        ),
        ("src/orbitmq/store/a.py", 'x = struct.unpack_from(">i", b, 4)\n', "layout: "),
        ("src/orbitmq/store/a.py", "U = Struct(form)\n", "layout: "),
        ("src/orbitmq/store/a.py", "U.unpack_from(b, 4)\n", ""),
        ("src/orbitmq/other.py", 'U = Struct(">qiq")\n', "layout: src/orbitmq/other.py:1: '>qiq' stands in "),
        ("src/orbitmq/other.py", 'U = Struct(">i")\n', ""),
        ("src/orbitmq/other.py", 'U = Struct(">iqI")\n', ""),
        ("src/orbitmq/other.py", "U = 1\n", "stale-exception: OTHER_LAYOUTS names src/orbitmq/other.py"),
        ("tests/unit/a.py", 'U = Struct(">qiq")\n', ""),
    ],
)
def test_layouts_stand_in_one_file(
    path: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "src/orbitmq/other.py"
    monkeypatch.setattr(rules, "OTHER_LAYOUTS", {other: "reason"})
    texts = {rules.LAYOUT_FILE: 'UNIT = Struct(">qiq")\nINT = Struct(">i")\n', other: 'S = Struct(">h")\n'}
    findings = list(rules.check_layouts(Source.parse(*each) for each in {**texts, path: text}.items()))
    assert len(findings) == (1 if expected else 0), findings
    assert all(finding.startswith(expected) for finding in findings)


@pytest.mark.parametrize(
    ("path", "line", "found"),
    [
        ("src/a.py", '    """Gives the number of queues."""', True),
        ("src/a.py", '    """Read it; gives the end."""', True),
        ("docs/a.md", "Records lie one behind the other.", True),
        ("docs/a.md", "The broker keeps the offset; a slave is behind by two bytes.", False),
        ("src/a.json", "Records lie one behind the other.", False),
    ],
)
def test_wording_outside_the_glossary_is_reported(path: str, line: str, found: bool) -> None:
    findings = list(rules.check_wording(path, f"first line\n{line}\n"))
    assert [finding.startswith(f"wording: {path}:2: ") for finding in findings] == [True] * found
