"""The style rules a machine can hold, as functions from a source file to findings.

Every finding starts with the name of its rule. Each exception stands in a table here with its reason; a table
entry that no longer matches anything is a finding of its own, so the tables cannot rot.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

FILE_LINES_MAX: Final = 800
FUNCTION_LINES_MAX: Final = 70
PARAMETERS_MAX: Final = 7

_CORE: Final = frozenset({"codes", "errors"})

# What a package may import, beside itself: what stands here, and what those may import in turn.
IMPORTS: Final[Mapping[str, frozenset[str]]] = {
    "codes": frozenset(),
    "errors": frozenset({"codes"}),
    # The bytes of records and frames: one plain definition, one compiled twin.
    "kernel": _CORE,
    "record": _CORE | {"kernel"},
    "model": _CORE | {"record"},
    "wire": frozenset({"model", "record"}) | _CORE,
    # One declaration per request: headers, servers, ports, rights, admin commands.
    "requests": _CORE | {"wire"},
    "filter": _CORE | {"record"},
    "runtime": _CORE,
    "store": frozenset({"record", "model", "runtime"}),
    "transport": frozenset({"requests", "runtime"}),
    # Figures for Prometheus; each server fills them from its own tables.
    "metrics": frozenset({"transport"}),
    "namesrv": frozenset({"metrics", "transport"}),
    # Users, policies, access lists and signatures: who may send which request.
    "auth": frozenset({"requests", "runtime"}),
    "broker": frozenset({"auth", "filter", "metrics", "store", "transport"}),
    "filtersrv": frozenset({"auth", "transport"}),
    "client": frozenset({"transport"}),
    # Doors: ``import orbitmq.sync``, ``python -m orbitmq``.
    "sync": frozenset({"client"}),
    "__main__": frozenset({"cli"}),
    "admin": frozenset({"client"}),
    # Reads store directories by itself, without a broker, and refuses a bad SQL filter before any broker is asked.
    "spark": frozenset({"client", "filter", "store"}),
    # The same tables for readers of Arrow streams, without Spark.
    "arrow": frozenset({"spark"}),
    # Files that describe a data pipeline, run on Spark.
    "pipeline": frozenset({"spark"}),
    # Applications to read and run; ``orbitmq demo`` runs the shop.
    "examples": frozenset({"broker", "client", "namesrv", "spark", "store"}),
    "console": frozenset({"admin"}),
    # gRPC in front of brokers: over the network through the client, or inside a broker's process.
    "proxy": frozenset({"auth", "client", "metrics"}),
    # The command line starts every server, so it stands above all of them.
    "cli": frozenset(
        {
            "admin",
            "arrow",
            "broker",
            "examples",
            "filtersrv",
            "console",
            "namesrv",
            "pipeline",
            "proxy",
            "store",
        }
    ),
}
SHIPPED_KIT: Final = "testing"  # imports anything; nothing in the package imports it

# Packages that turn values into values: no socket, no clock, no thread, no file.
_IO_MODULES: Final = frozenset(
    {"asyncio", "select", "selectors", "socket", "ssl", "subprocess", "threading", "time", "uvloop"}
)
PURE: Final[Mapping[str, frozenset[str]]] = {
    "codes": _IO_MODULES,
    "errors": _IO_MODULES,
    "kernel": _IO_MODULES,
    "record": _IO_MODULES,
    "model": _IO_MODULES,
    "filter": _IO_MODULES,
    "wire": _IO_MODULES,
    "requests": _IO_MODULES,
    # Synchronous by design; only its flush runs on a thread.
    "store": frozenset({"asyncio", "select", "selectors", "socket", "ssl", "subprocess", "time", "uvloop"}),
}

LONG_FILES: Final[Mapping[str, str]] = {}
LONG_FUNCTIONS: Final[Mapping[str, str]] = {}
MANY_PARAMETERS: Final[Mapping[str, str]] = {
    "src/orbitmq/cli/broker_server.py:broker_command": "click gives a command one parameter per option",
    "src/orbitmq/runtime/options.py:option": "a declaration: each parameter is one word about the option",
    "src/orbitmq/wire/frame.py:_encode": "the one writer of both header forms; an object per frame would cost more",
}

# Records, queue units and frames are laid out in one place; a file with layouts of something else says of what.
LAYOUT_FILE: Final = "src/orbitmq/kernel/layout.py"
OTHER_LAYOUTS: Final[Mapping[str, str]] = {
    "src/orbitmq/broker/delivery/timer_files.py": "the timer wheel and its log, files of their own",
    "src/orbitmq/broker/replication/stream.py": "what frames the log on its way to a slave",
    "src/orbitmq/client/produce/sockets.py": "a time span as the operating system's sockets take it",
    "src/orbitmq/filter/program.py": "SQL programs, which are never stored or sent",
    "src/orbitmq/kernel/plain/sql.py": "the same programs, read",
    "src/orbitmq/proxy/http2/frames.py": "frames of HTTP/2 and gRPC",
    "src/orbitmq/record/ids.py": "unique keys, which are text in a property",
    "src/orbitmq/runtime/filesystem.py": "a lock as the operating system takes it",
    "src/orbitmq/store/index/index_file.py": "index files",
    "src/orbitmq/store/queues/queue_ext.py": "the extension files of queues",
    "src/orbitmq/store/maintenance/checkpoint.py": "the checkpoint file",
    "src/orbitmq/wire/bodies/offsets.py": "a request body of its own",
    "src/orbitmq/wire/bodies/registration.py": "a request body of its own",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file; ``path`` is relative to the root of the repository, with forward slashes."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Source:
        return cls(path, text, ast.parse(text, path))

    @property
    def package(self) -> str:
        """First name under ``orbitmq``: a package or a module; empty for the root and outside of it."""
        parts = self.path.removesuffix(".py").split("/")
        return parts[2] if parts[:2] == ["src", "orbitmq"] and parts[2] != "__init__" else ""


def may_import(package: str) -> frozenset[str]:
    """Everything ``package`` may import, itself included."""
    reached = {package}
    waiting = [package]
    while waiting:
        for name in IMPORTS[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return frozenset(reached)


def _imported_modules(source: Source) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
            elif node.module == "orbitmq":
                # ``from orbitmq import x``: x is a package or a name of the root.
                yield from ((node.lineno, f"orbitmq.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module or ""


def check_imports(source: Source) -> Iterator[str]:
    """import-table, relative-import, pure-package."""
    package = source.package
    if package and package != SHIPPED_KIT and package not in IMPORTS:
        yield f"import-table: {source.path}: package {package!r} is not in the table of tests/tidy/rules.py"
        return
    allowed = may_import(package) if package in IMPORTS else frozenset()
    for line, module in _imported_modules(source):
        where = f"{source.path}:{line}"
        if module.startswith("."):
            yield f"relative-import: {where}: write the full name instead of {module!r}"
            continue
        root, _, rest = module.partition(".")
        if root in PURE.get(package, frozenset()):
            yield f"pure-package: {where}: {package} does not import {root}"
        if root != "orbitmq" or package in ("", SHIPPED_KIT):
            continue
        target = rest.partition(".")[0]
        if target in ("", "__version__"):
            continue
        if target not in allowed:
            yield f"import-table: {where}: {package} may not import {target}"


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Qualified name, function, and whether it is a method."""
    waiting: list[tuple[str, ast.AST, bool]] = [("", tree, False)]
    while waiting:
        prefix, parent, in_class = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, node, in_class
                waiting.append((f"{prefix}{node.name}.", node, False))
            elif isinstance(node, ast.ClassDef):
                waiting.append((f"{prefix}{node.name}.", node, True))
            elif isinstance(node, ast.stmt | ast.ExceptHandler):
                waiting.append((prefix, node, in_class))


def _parameter_count(function: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> int:
    arguments = function.args
    count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    return count - 1 if in_class and not static else count


def check_sizes(source: Source) -> Iterator[str]:
    """file-size, function-size, parameter-count."""
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX and source.path not in LONG_FILES:
        yield f"file-size: {source.path} has {lines} lines, more than {FILE_LINES_MAX}"
    for name, function, in_class in _functions(source.tree):
        where = f"{source.path}:{name}"
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES_MAX and where not in LONG_FUNCTIONS:
            yield f"function-size: {where} has {length} lines, more than {FUNCTION_LINES_MAX}"
        count = _parameter_count(function, in_class)
        if count > PARAMETERS_MAX and where not in MANY_PARAMETERS:
            yield f"parameter-count: {where} takes {count} parameters, more than {PARAMETERS_MAX}"


def check_exceptions(sources: Iterable[Source]) -> Iterator[str]:
    """stale-exception: an entry of the tables above that nothing needs any more."""
    by_path = {source.path: source for source in sources}
    for path in LONG_FILES:
        if path not in by_path or by_path[path].text.count("\n") <= FILE_LINES_MAX:
            yield f"stale-exception: LONG_FILES names {path} without need"
    needed = {"function-size": LONG_FUNCTIONS, "parameter-count": MANY_PARAMETERS}
    for rule, table in needed.items():
        for where in table:
            path, _, name = where.partition(":")
            found = (
                [entry for entry in _functions(by_path[path].tree) if entry[0] == name]
                if path in by_path
                else []
            )
            if rule == "function-size":
                sizes = [(node.end_lineno or 0) - node.lineno + 1 for _, node, _ in found]
                limit = FUNCTION_LINES_MAX
            else:
                sizes = [_parameter_count(node, in_class) for _, node, in_class in found]
                limit = PARAMETERS_MAX
            if not any(size > limit for size in sizes):
                yield f"stale-exception: the {rule} table names {where} without need"


_STRUCT_CALLS: Final = frozenset({"calcsize", "iter_unpack", "pack", "pack_into", "unpack", "unpack_from"})


def _struct_formats(source: Source) -> Iterator[tuple[int, str]]:
    """Line and format of every use of ``struct`` that names one; the format is empty if it is not a literal."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = function.value if isinstance(function, ast.Attribute) else None
        of_module = isinstance(owner, ast.Name) and owner.id == "struct"
        if name == "Struct" or (of_module and name in _STRUCT_CALLS):
            text = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            yield node.lineno, text if isinstance(text, str) else ""


def check_layouts(sources: Iterable[Source]) -> Iterator[str]:
    """layout: only ``LAYOUT_FILE`` says how records, queue units and frames lie in bytes.

    Elsewhere in the package a format is a finding, but for files with layouts of something else; there it is one if
    ``LAYOUT_FILE`` has the same (those of a single number, like ``>i``, mean nothing by themselves).
    """
    found = {
        source.path: list(_struct_formats(source))
        for source in sources
        if source.path.startswith("src/orbitmq/")
    }
    ours = {text for _, text in found.get(LAYOUT_FILE, []) if len(text) > 2}
    for path, formats in found.items():
        for line, text in formats if path != LAYOUT_FILE else []:
            if path not in OTHER_LAYOUTS:
                yield f"layout: {path}:{line}: formats of records, units and frames stand in {LAYOUT_FILE}"
            elif text in ours:
                yield f"layout: {path}:{line}: {text!r} stands in {LAYOUT_FILE}: import it"
    for path in OTHER_LAYOUTS:
        if not found.get(path):
            yield f"stale-exception: OTHER_LAYOUTS names {path} without need"


WIRED: Final = ("src/orbitmq/broker/", "src/orbitmq/store/", "src/orbitmq/proxy/")
GENERATED: Final = ("src/orbitmq/proxy/protocol/rocketmq_v2_pb2.py",)
STATE: Final[Mapping[str, str]] = {
    "broker:stats": "counters, changed where something is counted",
    "proxy:call": "the state of a stream, set when it opens",
    "store:checkpoint": "the values of a file, set before it is written",
    "store:log": "the ends of the log, moved by its writer in the order of store/README.md",
    "store:report": "a result, filled while it is found",
    "store:result": "a result, filled while it is found",
}
"""Values that others fill, by package and name. Everything else with attributes is a collaborator."""
LATE_CALLBACKS: Final[Mapping[str, str]] = {
    "src/orbitmq/proxy/http2/call.py:on_end": "a handler that waits for the end of its own call",
    "src/orbitmq/store/read/integrity.py:_fetch": "a repair exists only while the broker has peers",
}


def _chain(node: ast.expr) -> list[str]:
    """The names of ``a.b.c``; empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def _assignments(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Targets with their values; a value is None where it belongs to several targets."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if not isinstance(target, ast.Tuple):
                    yield target, node.value
                elif isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield from ((element, None) for element in target.elts)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target, node.value


def _collaborators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Local names of objects that outlive the function: attributes of ``self``, and the parameters of
    ``__init__``."""
    found = {
        target.id
        for target, value in _assignments(function)
        if isinstance(target, ast.Name) and value is not None and _chain(value)[:1] == ["self"]
    }
    if function.name == "__init__":
        found |= {one.arg for one in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
    return found


def _made(function: ast.AST) -> set[str]:
    """Local names of objects that the function constructs."""
    return {
        target.id
        for target, value in _assignments(function)
        if isinstance(target, ast.Name)
        and isinstance(value, ast.Call)
        and (_chain(value.func) or [""])[-1][:1].isupper()
    }


def check_wiring(source: Source) -> Iterator[str]:
    """wiring, late-callback: a collaborator is complete when it is constructed; see ``broker/events.py``."""
    if not source.path.startswith(WIRED) or source.path in GENERATED:
        return
    for name, function, _ in _functions(source.tree):
        held, made = _collaborators(function), _made(function)
        for target, value in _assignments(function):
            chain = _chain(target)
            where = f"{source.path}:{target.lineno}"
            if len(chain) == 2 and chain[0] == "self":
                late = isinstance(value, ast.Constant) and value.value is None
                late = late and f"{source.path}:{chain[1]}" not in LATE_CALLBACKS
                if late and _is_callback(source.tree, target):
                    yield f"late-callback: {where}: {name} leaves {chain[1]} to be set later: pass an event"
            elif len(chain) > 1 and (
                chain[0] == "self" or chain[0] in held or (chain[0] in made and _is_wired(value))
            ):
                owner = chain[-2].removeprefix("_")
                if f"{source.package}:{owner}" not in STATE:
                    yield f"wiring: {where}: {name} sets {'.'.join(chain)}: pass it to the constructor"


def _is_wired(value: ast.expr | None) -> bool:
    """Whether a value gives another object access to this one."""
    if isinstance(value, ast.Lambda):
        return True
    return value is not None and len(_chain(value)) > 1 and _chain(value)[0] == "self"


def _is_callback(tree: ast.Module, target: ast.expr) -> bool:
    return any(
        isinstance(node, ast.AnnAssign)
        and node.target is target
        and any(isinstance(part, ast.Name) and part.id == "Callable" for part in ast.walk(node.annotation))
        for node in ast.walk(tree)
    )


def check_state(sources: Iterable[Source]) -> Iterator[str]:
    """stale-exception: an entry of ``STATE`` or ``LATE_CALLBACKS`` that nothing needs."""
    texts = {source.path: source.text for source in sources if source.path.startswith(WIRED)}
    for entry in STATE:
        package, _, owner = entry.partition(":")
        pattern = re.compile(rf"\b_?{owner}\.\w+ (?:[-+|]?=) ")
        if not any(
            path.startswith(f"src/orbitmq/{package}/") and pattern.search(text)
            for path, text in texts.items()
        ):
            yield f"stale-exception: STATE names {entry} without need"
    for entry in LATE_CALLBACKS:
        path, _, name = entry.partition(":")
        if f"self.{name}: Callable" not in texts.get(path, ""):
            yield f"stale-exception: LATE_CALLBACKS names {entry} without need"


_TASK_CALLS: Final = frozenset({"create_task", "ensure_future"})
_SKIPS: Final = frozenset({"skip", "skipif", "importorskip"})


def check_calls(source: Source) -> Iterator[str]:
    """task-owner, clock, test-skip."""
    path = source.path
    in_package = path.startswith("src/orbitmq/")
    owns_tasks = owns_clock = not in_package or source.package in ("runtime", "cli", "examples")
    may_skip = not path.startswith("tests/") or path.startswith(("tests/apache/", "tests/console/"))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time" and not owns_clock:
            yield f"clock: {path}:{node.lineno}: take a Clock as a parameter instead of importing from time"
        if not isinstance(node, ast.Attribute):
            continue
        where = f"{path}:{node.lineno}"
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if not owns_tasks and node.attr in _TASK_CALLS:
            yield f"task-owner: {where}: {node.attr} belongs to runtime/; use TaskOwner.start"
        if not owns_clock and owner == "time":
            yield f"clock: {where}: take a Clock as a parameter instead of calling time.{node.attr}"
        of_pytest = owner in ("pytest", "mark") or (
            isinstance(node.value, ast.Attribute) and node.value.attr == "mark"
        )
        if not may_skip and node.attr in _SKIPS and of_pytest:
            yield f"test-skip: {where}: only the harnesses in tests/apache and tests/console may skip"


def check_package_file(source: Source) -> Iterator[str]:
    """package-file: ``__init__.py`` holds a docstring, imports, ``__all__`` and, at the root, the version, a
    ``__getattr__`` that loads the client when it is first used and a ``__dir__`` that lists what it finds."""
    if not source.path.endswith("/__init__.py") or not source.path.startswith("src/"):
        return
    for node in source.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "__all__" or (name == "__version__" and source.path == "src/orbitmq/__init__.py"):
                continue
        at_root = source.path == "src/orbitmq/__init__.py"
        if at_root and isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__"):
            continue
        yield f"package-file: {source.path}:{node.lineno}: an __init__.py only re-exports"


# Spelled in parts, so that this file does not find itself.
_MACHINE_PATH: Final = re.compile(
    r"(?<![\w.~/-])/(?:"
    + "|".join(["ro" + "ot", "ho" + "me", "wo" + "rk", "Us" + "ers", "t" + "mp", "o" + "pt"])
    + r")/\w"
)
_REGISTRY: Final = re.compile(
    "|".join(
        re.escape(left) + re.escape(right)
        for left, right in [
            ("py", "pi.org"),
            ("python", "hosted.org"),
            ("repo.ma", "ven.apache.org"),
            ("repo1.", "maven.org"),
            ("proxy.", "golang.org"),
            ("registry.", "npmjs.org"),
            ("arti", "factory"),
            ("--index", "-url"),
            ("--extra-index", "-url"),
            ("--find", "-links"),
        ]
    ),
    re.IGNORECASE,
)
_UNFINISHED: Final = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME"]) + r")\b")


WORDING: Final = (
    (r"\banew\b(?! (?:=|or)|[)\]:,}])", "again, or recreated, restarted"),
    (r"\bc(?:omes?|ame) again\b", "is redelivered"),
    (r"\bthat (?:is|are|was|were) none\b", "malformed"),
    (r"(?<!front )(?<!same step )\bof ours\b", "our ..."),
    (r"\bof Apache's(?=[.,;:)]|$)", "Apache's ..."),
    (r"\b(?:is|are) told (?:to|of|about|that|what|how)\b", "is notified of, or the request that it gets"),
    (r"\bnobody (?:asks|knows|reads|waits|sees|hears|needs)\b", "unknown, unread, or the passive voice"),
    (r"\bwho(?:ever)? (?:asks|reaches|waits|reads|sends)\b", "the requester, anyone who can reach ..."),
    (
        r"(?<!here )\b(?:is|are) no (?!longer\b|more\b|such\b|different\b|other\b|less\b|usable\b)\w+",
        "is not a",
    ),
    (r"\bl(?:ies|ie) (?:in|at|on|beside|under|below|behind)\b", "is in"),
    (r"\bgoes (?:on by|the way)\b", "continues, recovers, is handled like"),
    (r"\bbeside (?:a|an|the|it|apache|Apache|jvms?|JVMs?)\b", "next to, compared with, during"),
    (r"\b(?:let go|given up)\b", "deleted, released, abandoned, dead-lettered"),
    (r"\bupkeep\b", "maintenance"),
    (r"\brivals?\b", "candidate"),
    (r"\bgives back\b", "returns"),
    (r'(?:[;.] [Gg]ives |"""Gives )', "returns"),
    (r"\bfor ever\b", "forever, indefinitely"),
    (r"\bone behind the other\b", "one after the other"),
    (r"\bat or behind\b", "at or after"),
    (r"\bsa(?:ys|id) goodbye\b", "unregisters"),
    (r"\bha(?:ve|s) (?:their|its) (?:moments|say)\b", "is flaky, counts"),
    (r"\bhalf as fast again\b", "1.5 times as fast"),
)
"""Patterns that read as translated, and what to write instead."""
_WORDING: Final = tuple((re.compile(pattern), instead) for pattern, instead in WORDING)
_ANY_WORDING: Final = re.compile("|".join(pattern for pattern, _ in WORDING))
_PROSE: Final = (".md", ".py", ".rs", ".sh", ".html")


def check_wording(path: str, text: str) -> Iterator[str]:
    """wording: of documents, comments, docstrings and messages."""
    if not path.endswith(_PROSE) or path.startswith("tests/tidy/") or not _ANY_WORDING.search(text):
        return
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in _WORDING:
            if found := pattern.search(line):
                yield f"wording: {path}:{number}: {found.group().strip()!r}: write {instead!r} (docs/glossary.md)"


def check_text(path: str, text: str) -> Iterator[str]:
    """machine-path, registry-host, unfinished: of every text file, whatever its language."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _MACHINE_PATH.search(line):
            yield f"machine-path: {path}:{number}: {found.group()!r} exists on one machine only"
        if found := _REGISTRY.search(line):
            yield f"registry-host: {path}:{number}: {found.group()!r}: where packages come from is no part of this"
        if found := _UNFINISHED.search(line):
            yield f"unfinished: {path}:{number}: open an issue instead of writing {found.group()!r}"
